"""Free pages by colour: the free page queues of FreeBSD 6, one page at a time, under one mutex.

A page's *colour* is its number modulo the number of colours: pages of one colour compete for the same lines of a
physically indexed cache. Each colour has one queue. Whoever needs a page says which colour would suit his address.

    head  unzeroed pages, the one freed last first  ...  zeroed pages, the one zeroed last at the end  tail

A request for zeros takes the tail of its colour, any other the head; so each finds what it wants, if its colour has
it. If its colour has no page, others are tried from their heads whatever was wanted, those farthest away first. A page
that comes zeroed to someone who did not ask for zeros is counted as unzeroed: its zeroing is wasted.

The queues link pages through the `next` and `prev` of the buddy, and keep their zero state and totals there
(`zeroed`, `order`, `free_pages[0]`, `zero_pages[0]`); the buddy's own lists stay empty.

Invariants:
  Q1  a queue is linked both ways from first to last, and holds pages of its colour only
  Q2  on a queue no unzeroed page is behind a zeroed one
  Q3  free_pages[0] is the number of pages on queues, zero_pages[0] that of zeroed ones
  Q4  order[pfn] is 1 for a page on a queue and NOT_HEAD for any other

Follows FreeBSD vm_pageq_find(), vm_page_alloc() and vm_page_free_toq() of early 2006; where it does not:
docs/deviations.md, "pageq".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firsttouch._jit import inlined, state_kernel
from firsttouch.errors import FirsttouchError
from firsttouch.mm.buddy import NO_PFN, NOT_HEAD, UNZEROED, ZEROED, Buddy

ON_QUEUE = 1  # Buddy.order of a single free page
MAX_COLOURS = 1024
# (at least so many colours, strides of a walk over objects, over colours): primes, so that a walk comes by every colour
_STRIDES = ((128, 31, 23), (64, 13, 7), (32, 9, 5), (16, 5, 3), (1, 1, 1))


class PageQueues(NamedTuple):
    """One queue a colour. Writers: alloc, free, and the thread that zeroes in idle time."""

    mask: int  # colours - 1
    object_stride: int  # the colours of two objects' first pages are so far apart
    rover_stride: int  # the thread that zeroes goes from a colour to the one so far on
    first: NDArray[np.int32]  # [colour] head, or NO_PFN
    last: NDArray[np.int32]  # [colour] tail, or NO_PFN


def no_queues() -> PageQueues:
    """For a kernel whose free pages are in a buddy allocator."""
    return PageQueues(0, 1, 1, np.full(1, NO_PFN, np.int32), np.full(1, NO_PFN, np.int32))


def make_queues(b: Buddy, nr_colours: int) -> PageQueues:
    """Move all memory of `b`, which has one zone and nothing allocated, to queues in order of address, unzeroed.

    Raises FirsttouchError for a number of colours that is not a power of two from 1 to MAX_COLOURS.
    """
    if not 1 <= nr_colours <= MAX_COLOURS or nr_colours & (nr_colours - 1):
        raise FirsttouchError(
            f"cannot model {nr_colours} colours of pages", f"a power of two from 1 to {MAX_COLOURS}; FreeBSD has 32"
        )
    nr_pages = int(b.zone_start[-1])
    pfn = np.arange(nr_pages, dtype=np.int32)
    b.first[:], b.nr_free[:] = NO_PFN, 0
    b.next[:] = np.where(pfn + nr_colours < nr_pages, pfn + nr_colours, NO_PFN)
    b.prev[:] = np.where(pfn >= nr_colours, pfn - nr_colours, NO_PFN)
    b.order[:], b.zeroed[:] = ON_QUEUE, UNZEROED
    b.free_pages[0], b.zero_pages[0] = nr_pages, 0
    colour = np.arange(nr_colours)
    first = np.where(colour < nr_pages, colour, NO_PFN).astype(np.int32)
    last = np.where(colour < nr_pages, colour + (nr_pages - 1 - colour) // nr_colours * nr_colours, NO_PFN)
    _, object_stride, rover_stride = next(row for row in _STRIDES if nr_colours >= row[0])
    return PageQueues(nr_colours - 1, object_stride, rover_stride, first, last.astype(np.int32))


@inlined
def _unlink(q: PageQueues, b: Buddy, pfn: int) -> None:
    """Take a page off its queue, wherever in it."""
    colour = pfn & q.mask
    before, after = b.prev[pfn], b.next[pfn]
    if before == NO_PFN:
        q.first[colour] = after
    else:
        b.next[before] = after
    if after == NO_PFN:
        q.last[colour] = before
    else:
        b.prev[after] = before
    b.order[pfn] = NOT_HEAD


@state_kernel
def take_page(q: PageQueues, b: Buddy, pfn: int) -> int:
    """Take a free page off its queue; its zero state."""
    _unlink(q, b, pfn)
    b.free_pages[0] -= 1
    z = int(b.zeroed[pfn])
    if z == ZEROED:
        b.zero_pages[0] -= 1
    return z


@state_kernel
def put_page(q: PageQueues, b: Buddy, pfn: int, z: int) -> None:
    """Free one page: to the tail of its colour if it is zeroed, else to the head."""
    colour = pfn & q.mask
    if z == ZEROED:
        old = q.last[colour]
        b.prev[pfn], b.next[pfn] = old, NO_PFN
        q.last[colour] = pfn
        if old == NO_PFN:
            q.first[colour] = pfn
        else:
            b.next[old] = pfn
        b.zero_pages[0] += 1
    else:
        old = q.first[colour]
        b.next[pfn], b.prev[pfn] = old, NO_PFN
        q.first[colour] = pfn
        if old == NO_PFN:
            q.last[colour] = pfn
        else:
            b.prev[old] = pfn
    b.order[pfn], b.zeroed[pfn] = ON_QUEUE, z
    b.free_pages[0] += 1


@state_kernel
def find_page(q: PageQueues, colour: int, want_zeroed: bool) -> int:
    """The page that a request for `colour` gets, which stays on its queue; NO_PFN if memory is used up."""
    pfn = int(q.last[colour]) if want_zeroed else int(q.first[colour])
    away = (q.mask + 1) // 2
    while pfn == NO_PFN and away > 0:
        pfn = int(q.first[(colour + away) & q.mask])
        if pfn == NO_PFN:
            pfn = int(q.first[(colour - away) & q.mask])
        away -= 1
    return pfn


@state_kernel
def alloc_page(q: PageQueues, b: Buddy, colour: int, want_zeroed: bool) -> tuple[int, int]:
    """Take a page for `colour`: (pfn or NO_PFN, ZEROED only if zeros were wanted and it has them)."""
    pfn = find_page(q, colour, want_zeroed)
    if pfn == NO_PFN:
        return NO_PFN, UNZEROED
    z = take_page(q, b, pfn)
    return pfn, z if want_zeroed else UNZEROED


def check(q: PageQueues, b: Buddy, taken: Iterable[int] = ()) -> list[str]:
    """Which invariants do not hold, in words; `taken`: pages that are in use. For tests: it walks everything."""
    wrong: list[str] = []
    seen: dict[int, int] = {}
    for colour in range(q.mask + 1):
        pfn, before, zeroed = int(q.first[colour]), NO_PFN, False
        while pfn != NO_PFN:
            if pfn in seen or pfn & q.mask != colour or b.prev[pfn] != before:
                wrong.append(f"Q1: page {pfn} on queue {colour}, {b.prev[pfn]} before it, not {before}")
                break
            if zeroed and b.zeroed[pfn] == UNZEROED:
                wrong.append(f"Q2: unzeroed page {pfn} is behind a zeroed one on queue {colour}")
            zeroed = bool(b.zeroed[pfn])
            seen[pfn] = int(zeroed)
            before, pfn = pfn, int(b.next[pfn])
        if q.last[colour] != before:
            wrong.append(f"Q1: queue {colour} ends with {before}, last says {q.last[colour]}")
    if (len(seen), sum(seen.values())) != (b.free_pages[0], b.zero_pages[0]):
        wrong.append(
            f"Q3: {len(seen)} pages on queues, {sum(seen.values())} zeroed; "
            f"free_pages says {b.free_pages[0]}, zero_pages {b.zero_pages[0]}"
        )
    wrong += [
        f"Q4: page {pfn} has order {b.order[pfn]}, is {'' if pfn in seen else 'not '}on a queue"
        for pfn in range(len(b.order))
        if b.order[pfn] != (ON_QUEUE if pfn in seen else NOT_HEAD)
    ]
    wrong += [f"Q4: page {pfn} is in use and on a queue" for pfn in taken if pfn in seen]
    return wrong
