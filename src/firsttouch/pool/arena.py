"""The arena: one mapping cut into pages of 64 KiB, each part of a live block or of a free one in one of three states.

Free memory that is mapped is in `faulted`, a buddy allocator with unzeroed and zeroed lists, the same code as the
model's. Free memory that the kernel has not mapped yet, or has taken back, is in `unfaulted`, a second one over the
same pages: it is zero as soon as it is touched, at the price of faults. A request gets whole pages; what a power of two
has beyond them goes back at once. A zone is a region of the arena with its own lock.

When no block is large enough, neighbouring free blocks of any state are joined for one request, and only those of them
that are unzeroed need zeroing.

Memory that was freed moments ago is in the CPU's caches: small requests for zeros are better served from it than from
memory zeroed long ago, and the scrubber leaves it alone. The lists do not know it: what is freed merges with colder
memory, or is cut into powers of two none of which is large enough. So `recent` remembers the last runs that were freed,
and a request for as many pages gets one back as it was, if all of it is still free and unzeroed.

Invariants:
  P1  each page is in exactly one block: free in `faulted`, free in `unfaulted`, or live; `nr_pages` of a live block's
      first page is its length, and 0 everywhere else
  P2  memory of free zeroed and free unfaulted blocks holds zeros only
  P3  `unfaulted` has nothing on its unzeroed lists
  P4  counts[zone, LIVE_PAGES] is what is live in the zone, blocks in flight between lists not included

Everything here runs under the zone's lock, knows no addresses, and runs without the JIT.
"""

from __future__ import annotations

import numpy as np

from firsttouch._jit import inlined, state_kernel
from firsttouch.mm import buddy
from firsttouch.mm.buddy import alloc_block, free_block, put_back, take_block, take_head
from firsttouch.mm.freelists import NO_PFN, NOT_HEAD, UNZEROED, ZEROED, Buddy
from firsttouch.pool.state import (
    HOT,
    JOINED,
    LIVE_PAGES,
    NR_FREES,
    NR_RECENT,
    NR_WAKEUPS,
    PAGE_SHIFT,
    PEAK_PAGES,
    POPULATED_BYTES,
    TRIMMED_BYTES,
    UNFAULTED,
    Arena,
)

# Giving back


@state_kernel
def give_run(b: Buddy, zone: int, pfn: int, nr: int, z: int) -> int:
    """Free `nr` consecutive pages as the largest aligned blocks; the highest order that one merged to."""
    top = b.first.shape[2] - 1
    highest = -1
    while nr > 0:
        k = 0
        while k < top and pfn & ((2 << k) - 1) == 0 and (2 << k) <= nr:
            k += 1
        highest = max(highest, free_block(b, zone, pfn, k, z))
        pfn += 1 << k
        nr -= 1 << k
    return highest


@state_kernel
def free_all(a: Arena) -> None:
    """Fill the lists of a new arena: all of it is free and unfaulted."""
    for zone in range(a.counts.shape[0]):
        start = int(a.unfaulted.zone_start[zone])
        give_run(a.unfaulted, zone, start, int(a.unfaulted.zone_start[zone + 1]) - start, ZEROED)


@state_kernel
def give_unzeroed(a: Arena, zone: int, pfn: int, nr: int, freed_ns: int) -> int:
    """`give_run` of unzeroed memory, which remembers when it was freed."""
    top = a.faulted.first.shape[2] - 1
    highest = -1
    while nr > 0:
        k = 0
        while k < top and pfn & ((2 << k) - 1) == 0 and (2 << k) <= nr:
            k += 1
        merged = free_block(a.faulted, zone, pfn, k, UNZEROED)
        a.freed_ns[pfn >> merged << merged] = freed_ns
        highest = max(highest, merged)
        pfn += 1 << k
        nr -= 1 << k
    return highest


@state_kernel
def release_pages(a: Arena, zone: int, pfn: int, now_ns: int) -> int:
    """A live block is live no more; the highest order that it merged to."""
    nr = int(a.nr_pages[pfn])
    a.nr_pages[pfn] = 0
    a.counts[zone, LIVE_PAGES] -= nr
    a.counts[zone, NR_FREES] += 1
    slot = a.counts[zone, NR_FREES] % NR_RECENT
    a.recent[zone, slot, 0], a.recent[zone, slot, 1], a.recent[zone, slot, 2] = pfn, nr, now_ns
    return give_unzeroed(a, zone, pfn, nr, now_ns)


@state_kernel
def shrink_pages(a: Arena, zone: int, pfn: int, nr: int, now_ns: int) -> None:
    """Keep the first `nr` pages of a live block."""
    rest = int(a.nr_pages[pfn]) - nr
    a.nr_pages[pfn] = nr
    a.counts[zone, LIVE_PAGES] -= rest
    give_unzeroed(a, zone, pfn + nr, rest, now_ns)


# Taking


@inlined
def _first_order(b: Buddy, zone: int, k: int, z: int) -> int:
    """The smallest order from k up that has a block of class z; the number of orders if none has."""
    nr_orders = b.first.shape[2]
    while k < nr_orders and b.first[zone, z, k] == NO_PFN:
        k += 1
    return k


@state_kernel
def order_for(nr: int) -> int:
    """The smallest order of a block of `nr` pages."""
    k = 0
    while (1 << k) < nr:
        k += 1
    return k


@state_kernel
def _head_of(b: Buddy, pfn: int) -> int:
    """The head of the free block that a page is in; NO_PFN if it is in none."""
    for k in range(b.first.shape[2]):
        head = pfn >> k << k
        if b.order[head] > k and head + (1 << (b.order[head] - 1)) > pfn:
            return head
    return NO_PFN


@state_kernel
def _is_unzeroed(b: Buddy, pfn: int, nr: int) -> bool:
    """Whether all of a run is free and unzeroed."""
    end = pfn + nr
    while pfn < end:
        head = _head_of(b, pfn)
        if head == NO_PFN or b.zeroed[head] != UNZEROED:
            return False
        pfn = head + (1 << (b.order[head] - 1))
    return True


@state_kernel
def _take_unzeroed_run(a: Arena, zone: int, start: int, nr: int) -> None:
    """Take a run out of the free unzeroed blocks that it is in."""
    b = a.faulted
    pfn, end = start, start + nr
    while pfn < end:
        head = _head_of(b, pfn)
        freed_ns = int(a.freed_ns[head])
        k = take_block(b, zone, head)
        b.free_pages[zone] -= 1 << k
        give_unzeroed(a, zone, head, pfn - head, freed_ns)
        pfn = head + (1 << k)
        give_unzeroed(a, zone, end, pfn - end, freed_ns)


@state_kernel
def _take_recent(a: Arena, zone: int, nr: int, since_ns: int) -> int:
    """The run of `nr` pages that was freed last, at `since_ns` or later; NO_PFN if there is none that is free yet."""
    newest = int(a.counts[zone, NR_FREES])
    for back in range(NR_RECENT):
        slot = (newest - back) % NR_RECENT
        if a.recent[zone, slot, 1] == nr and a.recent[zone, slot, 2] >= since_ns:
            a.recent[zone, slot, 1] = 0
            pfn = int(a.recent[zone, slot, 0])
            if _is_unzeroed(a.faulted, pfn, nr):
                _take_unzeroed_run(a, zone, pfn, nr)
                return pfn
    return NO_PFN


@state_kernel
def _take_unzeroed(a: Arena, zone: int, nr: int, since_ns: int) -> int:
    """`nr` pages of unzeroed memory, freed at `since_ns` or later; NO_PFN if there is no such block."""
    b = a.faulted
    k = order_for(nr)
    found = _first_order(b, zone, k, UNZEROED)
    if found >= b.first.shape[2]:
        return NO_PFN
    head = int(b.first[zone, UNZEROED, found])
    freed_ns = int(a.freed_ns[head])
    if freed_ns < since_ns:
        return NO_PFN
    pfn = alloc_block(b, zone, k, UNZEROED)
    for half in range(k, found):
        a.freed_ns[pfn + (1 << half)] = freed_ns
    give_unzeroed(a, zone, pfn + nr, (1 << k) - nr, freed_ns)
    return pfn


@state_kernel
def _take_zeros(b: Buddy, zone: int, nr: int) -> int:
    """`nr` pages from the zeroed lists of one allocator, or NO_PFN."""
    k = order_for(nr)
    if k >= b.first.shape[2]:
        return NO_PFN
    pfn = alloc_block(b, zone, k, ZEROED)
    if pfn != NO_PFN:
        give_run(b, zone, pfn + nr, (1 << k) - nr, ZEROED)
    return pfn


@state_kernel
def find_run(a: Arena, zone: int, nr: int, faulted_only: bool) -> int:
    """The first `nr` consecutive free pages, of whatever blocks; NO_PFN if there are none. They begin with a block."""
    pfn, end = int(a.faulted.zone_start[zone]), int(a.faulted.zone_start[zone + 1])
    start = pfn
    while pfn < end:
        if a.faulted.order[pfn] != NOT_HEAD:
            pfn += 1 << (a.faulted.order[pfn] - 1)
        elif a.unfaulted.order[pfn] != NOT_HEAD:
            pfn += 1 << (a.unfaulted.order[pfn] - 1)
            if faulted_only:
                start = pfn
        else:
            pfn += a.nr_pages[pfn]
            start = pfn
        if pfn - start >= nr:
            return start
    return NO_PFN


@state_kernel
def _take_run(a: Arena, zone: int, start: int, nr: int) -> None:
    """Take the free blocks from `start` on. Of each, `next` keeps its length, and `prev` whether it holds zeros."""
    pfn, end = start, start + nr
    while pfn < end:
        faulted = a.faulted.order[pfn] != NOT_HEAD
        b = a.faulted if faulted else a.unfaulted
        z = int(b.zeroed[pfn])
        k = take_block(b, zone, pfn)
        b.free_pages[zone] -= 1 << k
        length = min(1 << k, end - pfn)
        if length == 1 << k:
            pass
        elif z == UNZEROED:
            give_unzeroed(a, zone, end, (1 << k) - length, int(a.freed_ns[pfn]))
        else:
            give_run(b, zone, end, (1 << k) - length, ZEROED)
        a.faulted.next[pfn] = length
        a.faulted.prev[pfn] = z
        pfn += length


@state_kernel
def _find_block(a: Arena, zone: int, nr: int, zeros: bool, hot_since_ns: int) -> tuple[int, int]:
    """The block that serves a request best, and where it is from.

    For zeros: unzeroed memory in cache (if `hot_since_ns` is not 0), zeroed memory, unzeroed memory. For others
    unzeroed memory, last freed first, then zeroed. For both then joined blocks, and memory to be faulted.
    """
    if not zeros:
        pfn = _take_recent(a, zone, nr, 0)
        if pfn != NO_PFN:
            return pfn, UNZEROED
    elif hot_since_ns:
        pfn = _take_recent(a, zone, nr, hot_since_ns)
        if pfn == NO_PFN:
            pfn = _take_unzeroed(a, zone, nr, hot_since_ns)
        if pfn != NO_PFN:
            return pfn, HOT
    for turn in range(2):
        if zeros == (turn == 0):
            pfn, source = _take_zeros(a.faulted, zone, nr), ZEROED
        else:
            pfn, source = _take_unzeroed(a, zone, nr, 0), UNZEROED
        if pfn != NO_PFN:
            return pfn, source
    pfn = NO_PFN
    if a.faulted.free_pages[zone] >= nr:
        pfn = find_run(a, zone, nr, True)
    if pfn == NO_PFN:
        pfn = _take_zeros(a.unfaulted, zone, nr)
        if pfn != NO_PFN:
            return pfn, UNFAULTED
        if a.faulted.free_pages[zone] + a.unfaulted.free_pages[zone] >= nr:
            pfn = find_run(a, zone, nr, False)
    if pfn != NO_PFN:
        _take_run(a, zone, pfn, nr)
    return pfn, JOINED


@state_kernel
def take_pages(a: Arena, zone: int, nr: int, zeros: bool, hot_since_ns: int) -> tuple[int, int]:
    """Make `nr` pages live: (pfn, source), or (NO_PFN, 0) when the zone has no room."""
    pfn, source = _find_block(a, zone, nr, zeros, hot_since_ns)
    if pfn == NO_PFN:
        return NO_PFN, 0
    a.nr_pages[pfn] = nr
    live = a.counts[zone, LIVE_PAGES] + nr
    a.counts[zone, LIVE_PAGES] = live
    a.counts[zone, PEAK_PAGES] = max(a.counts[zone, PEAK_PAGES], live)
    return pfn, source


# Waking the scrubber, as the model's: a free that merges to the start order wakes it, once


@state_kernel
def wake_for(a: Arena, zone: int, start_order: int, merged_order: int) -> bool:
    """After a free of unzeroed memory that merged to `merged_order`: whether the scrubber has to be woken for it."""
    if merged_order < start_order or a.awake[zone]:
        return False
    a.awake[zone] = 1
    a.counts[zone, NR_WAKEUPS] += 1
    return True


@state_kernel
def wants_scrub(a: Arena, zone: int, stop_order: int) -> bool:
    """Whether there is an unzeroed block of the stop order or above."""
    return bool(_first_order(a.faulted, zone, stop_order, UNZEROED) < a.faulted.first.shape[2])


# Blocks in flight: off their list while they are zeroed, populated or given back to the kernel. They look live.


@state_kernel
def _fly(a: Arena, pfn: int, k: int) -> None:
    a.nr_pages[pfn] = 1 << k


@state_kernel
def take_cold(a: Arena, zone: int, stop_order: int, max_order: int, before_ns: int) -> tuple[int, int]:
    """Unzeroed memory freed before `before_ns` to scrub, the highest order first, at most 2**max_order pages of it.

    (pfn, order), or (NO_PFN, 0). Of each list only the last freed blocks are looked at.
    """
    b = a.faulted
    for k in range(b.first.shape[2] - 1, stop_order - 1, -1):
        pfn = int(b.first[zone, UNZEROED, k])
        for _ in range(64):
            if pfn == NO_PFN or a.freed_ns[pfn] < before_ns:
                break
            pfn = int(b.next[pfn])
        if pfn != NO_PFN and a.freed_ns[pfn] < before_ns:
            take_block(b, zone, pfn)
            while k > max_order:
                k -= 1
                put_back(b, zone, pfn + (1 << k), k, UNZEROED)
                a.freed_ns[pfn + (1 << k)] = a.freed_ns[pfn]
            _fly(a, pfn, k)
            return pfn, k
    return NO_PFN, 0


@state_kernel
def land_zeroed(a: Arena, zone: int, pfn: int, k: int) -> None:
    """What `take_cold` took has been zeroed."""
    a.nr_pages[pfn] = 0
    put_back(a.faulted, zone, pfn, k, ZEROED)


@state_kernel
def land_unzeroed(a: Arena, zone: int, pfn: int, k: int) -> None:
    """What `take_cold` took has perhaps been zeroed in part."""
    a.nr_pages[pfn] = 0
    merged = put_back(a.faulted, zone, pfn, k, UNZEROED)
    a.freed_ns[pfn >> merged << merged] = 0


@state_kernel
def take_unfaulted(a: Arena, zone: int, max_order: int) -> tuple[int, int]:
    """Unfaulted memory to populate, the highest order up to `max_order` first: (pfn, order), or (NO_PFN, 0)."""
    for k in range(min(max_order, a.unfaulted.first.shape[2] - 1), -1, -1):
        pfn = alloc_block(a.unfaulted, zone, k, ZEROED)
        if pfn != NO_PFN:
            _fly(a, pfn, k)
            return pfn, k
    return NO_PFN, 0


@state_kernel
def land_populated(a: Arena, zone: int, pfn: int, k: int) -> None:
    """What `take_unfaulted` took is mapped, or may be: faulted, and still zero."""
    a.nr_pages[pfn] = 0
    a.counts[zone, POPULATED_BYTES] += 1 << (k + PAGE_SHIFT)
    free_block(a.faulted, zone, pfn, k, ZEROED)


@state_kernel
def land_unpopulated(a: Arena, zone: int, pfn: int, k: int) -> None:
    """What `take_unfaulted` took is as it was."""
    a.nr_pages[pfn] = 0
    free_block(a.unfaulted, zone, pfn, k, ZEROED)


@state_kernel
def take_faulted(a: Arena, zone: int, min_order: int, max_order: int) -> tuple[int, int]:
    """Free mapped memory to give back to the kernel, at most 2**max_order pages of it: (pfn, order), or (NO_PFN, 0).

    Unzeroed memory goes first: zeroing it was not worth while yet.
    """
    b = a.faulted
    for z in (UNZEROED, ZEROED):
        for k in range(b.first.shape[2] - 1, min_order - 1, -1):
            pfn = take_head(b, zone, k, z)
            if pfn == NO_PFN:
                continue
            while k > max_order:
                k -= 1
                put_back(b, zone, pfn + (1 << k), k, z)
                if z == UNZEROED:
                    a.freed_ns[pfn + (1 << k)] = a.freed_ns[pfn]
            b.free_pages[zone] -= 1 << k
            _fly(a, pfn, k)
            return pfn, k
    return NO_PFN, 0


@state_kernel
def land_unfaulted(a: Arena, zone: int, pfn: int, k: int) -> None:
    """What `take_faulted` took has been given back to the kernel."""
    a.nr_pages[pfn] = 0
    a.counts[zone, TRIMMED_BYTES] += 1 << (k + PAGE_SHIFT)
    free_block(a.unfaulted, zone, pfn, k, ZEROED)


def check(a: Arena, in_flight: tuple[tuple[int, int], ...] = ()) -> list[str]:
    """What is wrong with `a`, each line with its invariant; `in_flight`: (pfn, order) of what `take_cold` took."""
    wrong = [f"faulted: {line}" for line in buddy.check(a.faulted, in_flight)]
    wrong += [f"unfaulted: {line}" for line in buddy.check(a.unfaulted)]
    owner = np.zeros(len(a.nr_pages), np.int64)
    for free in (a.faulted, a.unfaulted):
        for pfn in np.flatnonzero(free.order).tolist():
            owner[pfn : pfn + (1 << (int(free.order[pfn]) - 1))] += 1
    for pfn in np.flatnonzero(a.nr_pages).tolist():
        owner[pfn : pfn + int(a.nr_pages[pfn])] += 1
    wrong += [f"P1: page {pfn} is in {owner[pfn]} blocks" for pfn in np.flatnonzero(owner != 1).tolist()]
    if a.unfaulted.nr_free[:, UNZEROED].any():
        wrong.append("P3: unfaulted memory is on an unzeroed list")
    flying = dict(in_flight)
    for zone in range(len(a.counts)):
        start, end = a.faulted.zone_start[zone : zone + 2].tolist()
        live = sum(int(a.nr_pages[pfn]) for pfn in range(start, end) if pfn not in flying)
        if live != a.counts[zone, LIVE_PAGES]:
            wrong.append(f"P4: zone {zone} has {live} live pages, its count says {a.counts[zone, LIVE_PAGES]}")
    return wrong
