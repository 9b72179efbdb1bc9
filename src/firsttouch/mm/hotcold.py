"""Per-CPU lists of single pages as Linux 2.6.10 keeps them: hot and cold, and a third of zeroed pages.

A request and a free name the list they mean: hot is what a program's faults use, cold what is filled by devices, and
zeroed, which the prezeroing patches added, what is to hold zeros. Blocks of more than one page have no list: each takes
the zone lock. Low and high water marks are multiples of `batch`:

  list    low  high
  hot      2b    6b    pages that were freed a moment ago, still in the cache
  cold      0    2b
  zeroed    0    2b

At or below `low` an allocation first appends a batch at the tail; at or above `high` a free first gives the batch at
the tail back. So while a CPU only allocates its hot list stays between 2b and 3b.

**Zeroed pages.** A request for zeros uses the zeroed list when the *zone* has enough zeroed pages, and else the hot
one; a refill keeps to its class. So pages on a CPU's zeroed list are out of reach (`strands`) while the zone has none.
When both list and class are empty the other class serves, one block at a time, and what it gives counts as unzeroed: a
request for zeros then zeroes it again. Everything freed is unzeroed, and a drain forgets what was zeroed.

**Zeroing just-freed pages**, the rival of zeroing blocks: an idle CPU takes the page it freed last off its hot list,
zeroes it while it is in the cache, and puts it on its zeroed list. Pages that a refill brought are not taken.

Invariants, beside those of percpu.py:
  P6  NR_HOT, NR_ZEROED and NR_COLD are the lengths of the three lists; there are no others
  P7  each is at most `high`; JUST_FREED is at most NR_HOT

Follows Linux 2.6.10 free_area_init_core(), buffered_rmqueue(), free_hot_cold_page() and free_pages_bulk(), and the
prezeroing patches V4 and V6; where it does not: docs/deviations.md, "percpu".
"""

from __future__ import annotations

from firsttouch._jit import inlined, state_kernel
from firsttouch.mm.buddy import NO_PFN, UNZEROED, ZEROED, Buddy, alloc_block, free_block
from firsttouch.mm.pcplist import (
    BATCH,
    COLD_LIST,
    JUST_FREED,
    NO_ORDER,
    NR_COLD,
    NR_HOT,
    NR_PAGES,
    Percpu,
    append,
    pop,
    pop_tail,
    push,
)
from firsttouch.units import BASE_PAGE_BYTES

HOT_LIST, ZEROED_LIST = 0, 1  # list_of(0, UNZEROED) and list_of(0, ZEROED)
_BATCH_BYTES_MAX = 256 << 10


def hot_cold_batch_pages(zone_pages: int, page_bytes: int = BASE_PAGE_BYTES) -> int:
    """Pages of one batch: a quarter of the zone / 1024 or of 256 KiB, and at least one."""
    return max(1, min(zone_pages // 1024, _BATCH_BYTES_MAX // page_bytes) // 4)


@inlined
def low_pages(batch: int, i: int) -> int:
    """A list that holds this many pages or fewer is refilled before an allocation."""
    return 2 * batch if i == HOT_LIST else 0


@inlined
def high_pages(batch: int, i: int) -> int:
    """A list that holds this many pages or more spills before a free."""
    return 6 * batch if i == HOT_LIST else 2 * batch


@inlined
def count_column(i: int) -> int:
    """The column of `state` that counts list `i`."""
    return NR_COLD if i == COLD_LIST else NR_HOT + i


@state_kernel
def _refill(p: Percpu, b: Buddy, cpu: int, zone: int, i: int) -> int:
    """Append a batch of the list's own class at its tail; the pages that came."""
    moved = 0
    while moved < p.limit[zone, BATCH]:
        pfn = alloc_block(b, zone, 0, i & 1)
        if pfn == NO_PFN:
            break
        append(p, b, cpu, zone, i, pfn)
        moved += 1
    p.state[cpu, zone, count_column(i)] += moved
    return moved


@inlined
def _pop_counted(p: Percpu, b: Buddy, cpu: int, zone: int, i: int) -> int:
    """Take the head of a list that is not empty."""
    p.state[cpu, zone, count_column(i)] -= 1
    if i == HOT_LIST and p.state[cpu, zone, JUST_FREED] > 0:
        p.state[cpu, zone, JUST_FREED] -= 1
    return pop(p, b, cpu, zone, i)


@state_kernel
def alloc_page(p: Percpu, b: Buddy, cpu: int, zone: int, i: int) -> tuple[int, int, int]:
    """One page from list `i`, or from the zone: (pfn or NO_PFN, zero state, pages moved from the buddy)."""
    moved = 0
    if p.state[cpu, zone, count_column(i)] <= low_pages(p.limit[zone, BATCH], i):
        moved = _refill(p, b, cpu, zone, i)
    if p.first[cpu, zone, i] != NO_PFN:
        return _pop_counted(p, b, cpu, zone, i), i & 1, moved
    return _alloc_zone(b, zone, 0, i & 1)


@state_kernel
def _alloc_zone(b: Buddy, zone: int, k: int, z: int) -> tuple[int, int, int]:
    """A block of class `z` from the buddy; of the other class, counted as unzeroed, if there is none."""
    pfn = alloc_block(b, zone, k, z)
    if pfn == NO_PFN:
        pfn = alloc_block(b, zone, k, 1 - z)
        z = UNZEROED
    return pfn, z, 0 if pfn == NO_PFN else 1 << k


@state_kernel
def alloc_hot(p: Percpu, b: Buddy, cpu: int, zone: int, k: int, want_zeroed: bool) -> tuple[int, int, int]:
    """`percpu.pcp_alloc` under these rules: a request that does not ask for a cold page."""
    z = UNZEROED
    if want_zeroed and p.has_zeroed:
        own = not p.strands and k == 0 and p.first[cpu, zone, ZEROED_LIST] != NO_PFN
        if own or b.zero_pages[zone] >= 1 << k:
            z = ZEROED
    if k == 0:
        return alloc_page(p, b, cpu, zone, ZEROED_LIST if z == ZEROED else HOT_LIST)
    return _alloc_zone(b, zone, k, z)


@state_kernel
def _spill(p: Percpu, b: Buddy, cpu: int, zone: int, i: int, nr_pages: int, z: int) -> tuple[int, int]:
    """Give up to `nr_pages` from the tail back as class `z`: (pages, highest order that unzeroed ones merged to)."""
    spilled, highest = 0, NO_ORDER
    while spilled < nr_pages and p.last[cpu, zone, i] != NO_PFN:
        final = free_block(b, zone, pop_tail(p, b, cpu, zone, i), 0, z)
        spilled += 1
        if z == UNZEROED:
            highest = max(highest, final)
    p.state[cpu, zone, count_column(i)] -= spilled
    if i == HOT_LIST:
        p.state[cpu, zone, JUST_FREED] = min(p.state[cpu, zone, JUST_FREED], p.state[cpu, zone, NR_HOT])
    return spilled, highest


@state_kernel
def free_page(p: Percpu, b: Buddy, cpu: int, zone: int, pfn: int, i: int) -> tuple[int, int]:
    """Put one page on list `i`, which spills first if it is full; returns as `percpu.pcp_free`."""
    spilled, highest = 0, NO_ORDER
    batch = p.limit[zone, BATCH]
    if p.state[cpu, zone, count_column(i)] >= high_pages(batch, i):
        spilled, highest = _spill(p, b, cpu, zone, i, batch, i & 1)
    push(p, b, cpu, zone, i, pfn)
    p.state[cpu, zone, count_column(i)] += 1
    if i == HOT_LIST:
        p.state[cpu, zone, JUST_FREED] += 1
    return spilled, highest


@state_kernel
def free_hot(p: Percpu, b: Buddy, cpu: int, zone: int, pfn: int, k: int) -> tuple[int, int]:
    """`percpu.pcp_free` under these rules: what is freed is unzeroed."""
    if k == 0:
        return free_page(p, b, cpu, zone, pfn, HOT_LIST)
    return 1 << k, free_block(b, zone, pfn, k, UNZEROED)


@state_kernel
def drain(p: Percpu, b: Buddy, cpu: int, zone: int) -> tuple[int, int]:
    """Give all pages of `cpu` back, unzeroed; returns as `percpu.pcp_free`."""
    spilled, highest = 0, NO_ORDER
    for i in (HOT_LIST, COLD_LIST, ZEROED_LIST):
        nr_pages, final = _spill(p, b, cpu, zone, i, p.state[cpu, zone, NR_PAGES], UNZEROED)
        spilled += nr_pages
        highest = max(highest, final)
    return spilled, highest


@state_kernel
def take_just_freed(p: Percpu, b: Buddy, cpu: int, zone: int) -> int:
    """The page that `cpu` freed last, off its list, to be zeroed while the CPU is idle; NO_PFN if there is none."""
    if p.state[cpu, zone, JUST_FREED] == 0 or not p.has_zeroed:
        return NO_PFN
    return _pop_counted(p, b, cpu, zone, HOT_LIST)


@state_kernel
def give_just_zeroed(p: Percpu, b: Buddy, cpu: int, zone: int, pfn: int) -> int:
    """Put a page that `take_just_freed` took, now zeroed, on the zeroed list of `cpu`; the pages that spilled."""
    return free_page(p, b, cpu, zone, pfn, ZEROED_LIST)[0]
