"""Buddy allocator of physical memory: zones, with separate zeroed and unzeroed free lists.

A free block of 2**order pages is represented by its first page, the *head*. Only heads are on a list. Pages are
numbered through all zones, so one array indexed by pfn serves them all; a block never crosses the end of its zone, and
zones may be of any size. `order[pfn]` holds order + 1 for a head and NOT_HEAD elsewhere: memory that was never a head
stays an untouched page of zeros on the host, so a model of many gigabytes costs what the simulated program uses.

A block is zeroed as a whole or unzeroed as a whole: a free merges with buddies of its own state only, a split keeps the
state, and an allocation looks through all orders of the class it is told to use (class before order). Every list is
last in, first out.

Invariants:
  I1  a head of order k is aligned to 2**k pages, and its block is inside its zone
  I2  free blocks do not overlap
  I3  no two free buddies of one order (below the highest) and one zero state
  I4  nr_free[zone, z, k] is the length of list (zone, z, k), and the list is linked both ways
  I5  order and zeroed of a head are those of the list it is on
  I6  order is NOT_HEAD for every page that is not a head on a list
  I7  free_pages[zone] is what is on its lists and in flight; zero_pages[zone] is what is on its zeroed lists

Follows Linux __free_one_page(), __rmqueue_smallest() and expand(), with the class index of the 2004-2005 prezeroing
patches (V4, V6); where it does not: docs/deviations.md, "buddy".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from firsttouch._jit import inlined, state_kernel
from firsttouch.errors import FirsttouchError
from firsttouch.mm.freelists import NO_PFN as NO_PFN
from firsttouch.mm.freelists import NOT_HEAD as NOT_HEAD
from firsttouch.mm.freelists import UNZEROED as UNZEROED
from firsttouch.mm.freelists import ZEROED as ZEROED
from firsttouch.mm.freelists import Buddy as Buddy
from firsttouch.mm.freelists import empty_buddy


def make_buddy(zone_pages: Sequence[int], max_order: int = 10, zeroed: bool = False) -> Buddy:
    """All pages free, in the largest blocks that fit, each list in ascending order of address.

    Parameters
    ----------
    zone_pages
        Size of each zone in pages; any positive number.
    max_order
        The highest order, whose blocks do not merge (10 in Linux on x86-64).
    zeroed
        Whether all of it is known to hold zeros, as after a boot that zeroed memory.

    Raises FirsttouchError for an empty zone, or more pages than an int32 can number.
    """
    start = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.asarray(zone_pages, np.int64))))
    nr_zones, nr_pages = len(start) - 1, int(start[-1])
    if nr_zones == 0 or min(zone_pages) < 1 or nr_pages > np.iinfo(np.int32).max:
        raise FirsttouchError(
            f"cannot model zones of {list(zone_pages)} pages",
            "each needs at least 1 page, all together at most 2**31 - 1",
        )
    if not 0 <= max_order <= 30:
        raise FirsttouchError(f"cannot model blocks of order {max_order}", "the highest order is 0 to 30; Linux has 10")
    b = empty_buddy(start, max_order)
    for zone in range(nr_zones):
        _free_all(b, zone, ZEROED if zeroed else UNZEROED)
    return b


@inlined
def _push(b: Buddy, zone: int, pfn: int, k: int, z: int) -> None:
    """Put a block at the head of its list."""
    old = b.first[zone, z, k]
    b.next[pfn] = old
    b.prev[pfn] = NO_PFN
    if old != NO_PFN:
        b.prev[old] = pfn
    b.first[zone, z, k] = pfn
    b.nr_free[zone, z, k] += 1
    b.order[pfn] = k + 1
    b.zeroed[pfn] = z


@inlined
def _unlink(b: Buddy, zone: int, pfn: int, k: int, z: int) -> None:
    """Take a block off its list, wherever in it."""
    after, before = b.next[pfn], b.prev[pfn]
    if before == NO_PFN:
        b.first[zone, z, k] = after
    else:
        b.next[before] = after
    if after != NO_PFN:
        b.prev[after] = before
    b.nr_free[zone, z, k] -= 1
    b.order[pfn] = NOT_HEAD


@state_kernel
def _free_all(b: Buddy, zone: int, z: int) -> None:
    """Fill the lists of an empty zone, from its end down, so that the lowest address is at the head."""
    start, end = b.zone_start[zone], b.zone_start[zone + 1]
    top = b.first.shape[2] - 1
    b.free_pages[zone] = end - start
    if z == ZEROED:
        b.zero_pages[zone] = end - start
    while end > start:
        k = 0
        while k < top and end % (2 << k) == 0 and end - (2 << k) >= start:
            k += 1
        end -= 1 << k
        _push(b, zone, end, k, z)


@state_kernel
def alloc_block(b: Buddy, zone: int, k: int, z: int) -> int:
    """Take 2**k pages of class `z`, splitting the smallest larger block of that class; NO_PFN if the class has none."""
    nr_orders = b.first.shape[2]
    found = k
    while found < nr_orders and b.first[zone, z, found] == NO_PFN:
        found += 1
    if found >= nr_orders:
        return NO_PFN
    pfn = int(b.first[zone, z, found])
    _unlink(b, zone, pfn, found, z)
    while found > k:
        found -= 1
        _push(b, zone, pfn + (1 << found), found, z)
    b.free_pages[zone] -= 1 << k
    if z == ZEROED:
        b.zero_pages[zone] -= 1 << k
    return pfn


@state_kernel
def free_block(b: Buddy, zone: int, pfn: int, k: int, z: int) -> int:
    """Free 2**k pages at `pfn`, merging with free buddies of the same zero state; the order they end up in."""
    b.free_pages[zone] += 1 << k
    return put_back(b, zone, pfn, k, z)


@state_kernel
def put_back(b: Buddy, zone: int, pfn: int, k: int, z: int) -> int:
    """`free_block` for a block that free_pages still counts: one taken by `take_head`."""
    if z == ZEROED:
        b.zero_pages[zone] += 1 << k
    start, end = b.zone_start[zone], b.zone_start[zone + 1]
    top = b.first.shape[2] - 1
    while k < top:
        mate = pfn ^ (1 << k)
        if mate < start or mate >= end or b.order[mate] != k + 1 or b.zeroed[mate] != z:
            break
        _unlink(b, zone, mate, k, z)
        pfn = min(pfn, mate)
        k += 1
    _push(b, zone, pfn, k, z)
    return k


@state_kernel
def take_head(b: Buddy, zone: int, k: int, z: int) -> int:
    """Unlink the head block of exactly order k, or NO_PFN. It is in flight: free_pages goes on counting it."""
    pfn = int(b.first[zone, z, k])
    if pfn != NO_PFN:
        _unlink(b, zone, pfn, k, z)
        if z == ZEROED:
            b.zero_pages[zone] -= 1 << k
    return pfn


@state_kernel
def take_block(b: Buddy, zone: int, pfn: int) -> int:
    """Unlink the free block headed at `pfn`, wherever it is on its list; its order. In flight as after `take_head`."""
    k, z = int(b.order[pfn]) - 1, int(b.zeroed[pfn])
    _unlink(b, zone, pfn, k, z)
    if z == ZEROED:
        b.zero_pages[zone] -= 1 << k
    return k


@state_kernel
def zone_of(b: Buddy, pfn: int) -> int:
    """The zone of a page."""
    zone = min(pfn // b.zone_start[1], len(b.zone_start) - 2)  # right at once where zones are of one size
    while pfn < b.zone_start[zone]:
        zone -= 1
    while pfn >= b.zone_start[zone + 1]:
        zone += 1
    return int(zone)


def check(b: Buddy, in_flight: Iterable[tuple[int, int]] = ()) -> list[str]:
    """What is wrong with `b`, each line with its invariant. `in_flight`: (pfn, k) of blocks that `take_head` took."""
    wrong: list[str] = []
    owner: dict[int, int] = {}  # page -> head of its free block
    heads: dict[int, tuple[int, int, int]] = {}  # head -> its list

    def cover(pfn: int, k: int, what: str) -> None:
        for page in range(pfn, pfn + (1 << k)):
            if page in owner:
                wrong.append(f"I2: {what} {pfn} overlaps block {owner[page]} at page {page}")
            owner[page] = pfn

    flying_pages = np.zeros(len(b.free_pages), np.int64)
    for pfn, k in in_flight:
        cover(pfn, k, "block in flight")
        flying_pages[zone_of(b, pfn)] += 1 << k
    for zone, z, k in np.ndindex(*b.first.shape):
        start, end = int(b.zone_start[zone]), int(b.zone_start[zone + 1])
        pfn, before, length = int(b.first[zone, z, k]), NO_PFN, 0
        while pfn != NO_PFN:
            if pfn % (1 << k) or pfn < start or pfn + (1 << k) > end:
                wrong.append(f"I1: block {pfn} of order {k} in zone {zone} [{start}, {end})")
                break
            if b.prev[pfn] != before:
                wrong.append(f"I4: block {pfn} on list {zone, z, k} has {b.prev[pfn]} before it, not {before}")
            if b.order[pfn] != k + 1 or b.zeroed[pfn] != z:
                wrong.append(
                    f"I5: block {pfn} on list {zone, z, k} says order {b.order[pfn] - 1}, zeroed {b.zeroed[pfn]}"
                )
            if pfn in heads:
                wrong.append(f"I2: block {pfn} is on list {zone, z, k} and on {heads[pfn]}")
                break
            cover(pfn, k, "block")
            heads[pfn] = (zone, z, k)
            before, pfn, length = pfn, int(b.next[pfn]), length + 1
        if length != b.nr_free[zone, z, k]:
            wrong.append(f"I4: list {zone, z, k} has {length} blocks, nr_free says {b.nr_free[zone, z, k]}")
    for pfn, (zone, z, k) in heads.items():
        mate = pfn ^ (1 << k)
        if k < b.first.shape[2] - 1 and pfn < mate and heads.get(mate) == (zone, z, k):
            wrong.append(f"I3: buddies {pfn} and {mate} of order {k}, zeroed {z}, are not merged")
    wrong += [
        f"I6: page {pfn} has order {b.order[pfn] - 1} and is on no list"
        for pfn in np.flatnonzero(b.order)
        if pfn not in heads
    ]
    orders = np.left_shift(1, np.arange(b.first.shape[2]))
    on_lists = b.nr_free @ orders
    for zone in range(len(b.free_pages)):
        listed, flying, zeros = int(on_lists[zone].sum()), int(flying_pages[zone]), int(on_lists[zone, ZEROED])
        if b.free_pages[zone] != listed + flying:
            wrong.append(
                f"I7: zone {zone} has {listed} pages on lists, {flying} in flight; free_pages says {b.free_pages[zone]}"
            )
        if b.zero_pages[zone] != zeros:
            wrong.append(f"I7: zone {zone} has {zeros} pages on zeroed lists; zero_pages says {b.zero_pages[zone]}")
    return wrong
