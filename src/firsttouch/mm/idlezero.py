"""pagezero of FreeBSD 6: a thread of the idle class that keeps part of the free pages zeroed, one page a turn.

Time is not here: it is a daemon of the idle class, which freebsd.py charges for each turn.

    wants a page     while fewer than 4/5 of the free pages are zeroed; but once that mark is reached, not before they
                     are fewer than 2/3
    a turn           the head of the next colour's queue, if it is not zeroed, is taken off, zeroed, and put at the tail
                     of its queue; then on to the colour `rover_stride` further
    sleeps           when it wants none, for 300 s at most; a free of a page that leaves it wanting one wakes it

Allocations do not wake it, however many zeroed pages they take: only the next free does, or the 300 s.

Invariants:
  Z1  the page that is being zeroed is on no queue and counts as in use
  Z2  the thread sleeps only when it wants no page
  Z3  marks are computed in whole pages, rounded down, of the pages that are free at that moment

Follows FreeBSD vm_page_zero_check(), vm_page_zero_idle(), vm_page_zero_idle_wakeup() and vm_pagezero() of early 2006;
where it does not: docs/deviations.md, "idlezero".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firsttouch._jit import state_kernel
from firsttouch.errors import FirsttouchError
from firsttouch.mm.buddy import NO_PFN, UNZEROED, ZEROED, Buddy
from firsttouch.mm.pageq import PageQueues, find_page, put_page, take_page

SLEEP_NS = 300_000_000_000

# state[]
REACHED, ROVER = range(2)


class Idlezero(NamedTuple):
    """The thread's own state; its turns write it."""

    low: NDArray[np.int64]  # [2] (never) below low[0] / low[1] of the free pages it starts again
    high: NDArray[np.int64]  # [2] (never) at high[0] / high[1] of them it stops
    state: NDArray[np.int64]  # REACHED: the high mark, in the last turn; ROVER: the next colour


def make_idlezero(low: Sequence[int] = (2, 3), high: Sequence[int] = (4, 5)) -> Idlezero:
    """The thread before its first turn, at colour 0. Marks are pairs (numerator, denominator) of the free pages.

    Raises FirsttouchError for a mark that is no such pair, is above all pages, or a low one above the high one.
    """
    for mark in (low, high):
        if len(mark) != 2 or mark[1] < 1 or not 0 <= mark[0] <= mark[1]:
            raise FirsttouchError(
                f"a mark of pagezero is {list(mark)}: not a fraction from 0 to 1",
                "a mark is [numerator, denominator] of the free pages; FreeBSD has [2, 3] and [4, 5]",
            )
    if low[0] * high[1] > high[0] * low[1]:
        raise FirsttouchError(
            f"pagezero would start below {low[0]}/{low[1]} of the free pages and stop at {high[0]}/{high[1]}",
            "the low mark is at most the high one; FreeBSD has [2, 3] and [4, 5]",
        )
    return Idlezero(np.array(low, np.int64), np.array(high, np.int64), np.zeros(2, np.int64))


@state_kernel
def wants_page(z: Idlezero, b: Buddy) -> bool:
    """Whether the thread has something to do."""
    free, zeroed = b.free_pages[0], b.zero_pages[0]
    if z.state[REACHED] and zeroed >= free * z.low[0] // z.low[1]:
        return False
    return bool(zeroed < free * z.high[0] // z.high[1])


@state_kernel
def next_page(z: Idlezero, q: PageQueues, b: Buddy) -> int:
    """The first half of a turn: the page to zero, off its queue, or NO_PFN if this colour's head is zeroed."""
    z.state[REACHED] = 0
    pfn = find_page(q, int(z.state[ROVER]), False)
    if pfn == NO_PFN or b.zeroed[pfn] != UNZEROED:
        end_turn(z, q)
        return NO_PFN
    take_page(q, b, pfn)
    return pfn


@state_kernel
def page_zeroed(z: Idlezero, q: PageQueues, b: Buddy, pfn: int) -> None:
    """The second half: the page is zeroed; back to its queue."""
    put_page(q, b, pfn, ZEROED)
    if b.zero_pages[0] >= b.free_pages[0] * z.high[0] // z.high[1]:
        z.state[REACHED] = 1
    end_turn(z, q)


@state_kernel
def end_turn(z: Idlezero, q: PageQueues) -> None:
    """On to another colour."""
    z.state[ROVER] = (z.state[ROVER] + q.rover_stride) & q.mask


@state_kernel
def zero_until_asleep(z: Idlezero, q: PageQueues, b: Buddy) -> None:
    """All that the thread does on a machine with nothing else to do, until it wants no page."""
    while wants_page(z, b):
        pfn = next_page(z, q, b)
        if pfn != NO_PFN:
            page_zeroed(z, q, b, pfn)
