"""What a CPU's lists of free blocks are made of, whatever the rules by which they fill and spill.

Each CPU has, for each zone, NR_LISTS lists, linked both ways through `next` and `prev` of the buddy state, which the
buddy does not use for pages it does not hold. Blocks are popped from the head and pushed there: last in, first out. A
refill appends at the tail and a spill takes from it.

List 2 * k + z holds blocks of order k and zero state z, for the orders 0 to COSTLY_ORDER and that of a superpage.
COLD_LIST, of single unzeroed pages, exists for the rules of Linux 2.6.10 only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firsttouch._jit import inlined
from firsttouch.mm.buddy import NO_PFN, Buddy
from firsttouch.units import PMD_ORDER

COSTLY_ORDER = 3  # the highest small order with a list
NR_LIST_ORDERS = COSTLY_ORDER + 2  # orders 0..COSTLY_ORDER, and PMD_ORDER
COLD_LIST = 2 * NR_LIST_ORDERS
NR_LISTS = COLD_LIST + 1
NO_LIST = -1  # what `list_of` says of other orders; never used as an index
NO_ORDER = -1  # what a free says that gave nothing unzeroed back to the buddy

# Columns of Percpu.state. Few arrays, because every array of a state is passed to every kernel in seven words or more.
NR_PAGES = 0  # pages on all lists
# Linux 6.18
HIGH = 1  # pages; a free that reaches this spills
ALLOC_FACTOR = 2  # the next refill of order 0 is BATCH << ALLOC_FACTOR pages
FREE_COUNT = 3  # pages freed in a row, halved by each allocation
FREED_HIGH = 4  # 1 if the last free was of order 1..COSTLY_ORDER
# Linux 2.6.10
NR_HOT = 5  # pages on the hot list
NR_ZEROED = 6  # pages on the zeroed list
NR_COLD = 7  # pages on the cold list
JUST_FREED = 8  # of the hot list: pages at its head that were freed there, not refilled
NR_STATE = 9
# Columns of Percpu.limit, all in pages.
BATCH = 0  # a refill or spill before it grows
HIGH_MIN = 1  # bounds of HIGH
HIGH_MAX = 2


class Percpu(NamedTuple):
    """Lists of every CPU and zone. The CPU guards its own; the zone lock the buddy behind them."""

    first: NDArray[np.int32]  # [cpu, zone, list] its head: the block freed last, or NO_PFN
    last: NDArray[np.int32]  # [cpu, zone, list] its tail, or NO_PFN
    state: NDArray[np.int64]  # [cpu, zone, NR_PAGES..JUST_FREED]
    limit: NDArray[np.int64]  # [zone, BATCH..HIGH_MAX] never written
    hot_cold: bool  # the rules are those of Linux 2.6.10, not of 6.18
    has_zeroed: bool  # the kernel knows zeroed blocks; without, every request is plain and every free unzeroed
    strands: bool  # zeroed blocks on the lists need zeroed pages in the zone to be used


@inlined
def list_of(k: int, z: int) -> int:
    """The index of the list of order `k` and zero state `z`, or NO_LIST."""
    if k <= COSTLY_ORDER:
        return 2 * k + z
    if k == PMD_ORDER:
        return 2 * (COSTLY_ORDER + 1) + z
    return NO_LIST


@inlined
def order_of_list(i: int) -> int:
    """The order of the blocks on list `i`."""
    k = i >> 1
    if k <= COSTLY_ORDER:
        return k
    return 0 if i == COLD_LIST else PMD_ORDER


@inlined
def pop(p: Percpu, b: Buddy, cpu: int, zone: int, i: int) -> int:
    """Take the head of a list that is not empty."""
    pfn = int(p.first[cpu, zone, i])
    after = b.next[pfn]
    p.first[cpu, zone, i] = after
    if after == NO_PFN:
        p.last[cpu, zone, i] = NO_PFN
    else:
        b.prev[after] = NO_PFN
    p.state[cpu, zone, NR_PAGES] -= 1 << order_of_list(i)
    return pfn


@inlined
def pop_tail(p: Percpu, b: Buddy, cpu: int, zone: int, i: int) -> int:
    """Take the tail of a list that is not empty."""
    pfn = int(p.last[cpu, zone, i])
    before = b.prev[pfn]
    p.last[cpu, zone, i] = before
    if before == NO_PFN:
        p.first[cpu, zone, i] = NO_PFN
    else:
        b.next[before] = NO_PFN
    p.state[cpu, zone, NR_PAGES] -= 1 << order_of_list(i)
    return pfn


@inlined
def push(p: Percpu, b: Buddy, cpu: int, zone: int, i: int, pfn: int) -> None:
    """Put a block at the head of a list."""
    old = p.first[cpu, zone, i]
    b.next[pfn] = old
    b.prev[pfn] = NO_PFN
    if old == NO_PFN:
        p.last[cpu, zone, i] = pfn
    else:
        b.prev[old] = pfn
    p.first[cpu, zone, i] = pfn
    p.state[cpu, zone, NR_PAGES] += 1 << order_of_list(i)


@inlined
def append(p: Percpu, b: Buddy, cpu: int, zone: int, i: int, pfn: int) -> None:
    """Put a block at the tail of a list."""
    old = p.last[cpu, zone, i]
    b.prev[pfn] = old
    b.next[pfn] = NO_PFN
    if old == NO_PFN:
        p.first[cpu, zone, i] = pfn
    else:
        b.next[old] = pfn
    p.last[cpu, zone, i] = pfn
    p.state[cpu, zone, NR_PAGES] += 1 << order_of_list(i)
