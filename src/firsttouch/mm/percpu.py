"""Per-CPU lists of free blocks in front of the buddy lists, so that most allocations and frees need no zone lock.

Each CPU has, for each zone, one list per order and zero state: orders 0 to 3 and the order of a superpage. A list is
last in, first out, and is linked through `next` and `prev` of the buddy state, which the buddy does not use for pages
it does not hold. An empty list is refilled from the buddy in a batch; lists that hold too much spill a batch from their
tails. Both batches grow while a CPU only allocates or only frees: `alloc_factor` doubles the refill each time and a
free halves it; `free_count` counts pages freed in a row, is what a spill gives back, and is halved by an allocation.
All lists of one CPU and zone share the counts. `high` follows demand between `high_min` and `high_max`.

Zeroed and plain requests: a request for zeros takes the zeroed class when the zone has enough zeroed pages, or when the
CPU's own zeroed list holds a block, and else the unzeroed one. A plain request takes an unzeroed block, and a zeroed
one only when there is no other; that one comes alone, not in a batch. With `strands`, as in the 2004 patches, the CPU's
zeroed list is out of reach while the zone itself has too few zeroed pages.

Invariants:
  P1  nr_blocks[cpu, zone, i] is the length of list i, and the list is linked both ways from first to last
  P2  nr_pages[cpu, zone] is the number of pages on its lists
  P3  a block is aligned, inside its zone, on one list only, and the buddy does not hold it
  P4  high_min <= high <= high_max
  P5  the zeroed lists are empty unless has_zeroed

Follows Linux 6.18 rmqueue_pcplist(), nr_pcp_alloc(), free_frozen_page_commit(), nr_pcp_high(), nr_pcp_free(),
free_pcppages_bulk() and zone_batchsize(); where it does not: docs/deviations.md, "percpu".
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firsttouch._jit import kernel
from firsttouch.errors import FirsttouchError
from firsttouch.mm.buddy import NO_PFN, NOT_HEAD, UNZEROED, ZEROED, Buddy, alloc_block, free_block
from firsttouch.units import BASE_PAGE_BYTES, PMD_ORDER, PMD_PAGES

COSTLY_ORDER = 3  # the highest small order with a list
NR_LIST_ORDERS = COSTLY_ORDER + 2  # orders 0..COSTLY_ORDER, and PMD_ORDER
NO_LIST = -1  # what `list_of` says of other orders; never used as an index
NO_ORDER = -1  # what a free says that gave nothing unzeroed back to the buddy
BATCH_SCALE_MAX = 5  # a batch grows to at most batch << BATCH_SCALE_MAX pages
_HIGH_FRACTION = 8  # all CPUs together may keep a zone's pages / 8


class Percpu(NamedTuple):
    """Lists of every CPU and zone. i: `list_of(k, z)`. The CPU guards its own; the zone lock the buddy behind them."""

    first: NDArray[np.int32]  # [cpu, zone, i] head of the list: the block freed last, or NO_PFN
    last: NDArray[np.int32]  # [cpu, zone, i] its tail, or NO_PFN
    nr_blocks: NDArray[np.int64]  # [cpu, zone, i] blocks on the list
    nr_pages: NDArray[np.int64]  # [cpu, zone] pages on all lists
    high: NDArray[np.int64]  # [cpu, zone] pages; a free that reaches this spills
    alloc_factor: NDArray[np.int64]  # [cpu, zone] the next refill of order 0 is batch << alloc_factor pages
    free_count: NDArray[np.int64]  # [cpu, zone] pages freed in a row, halved by each allocation
    freed_high: NDArray[np.uint8]  # [cpu, zone] whether the last free was of order 1..COSTLY_ORDER
    batch: NDArray[np.int64]  # [zone] pages of a refill or spill before it grows
    high_min: NDArray[np.int64]  # [zone] pages; lower bound of high
    high_max: NDArray[np.int64]  # [zone] pages; upper bound of high
    has_zeroed: bool  # the kernel knows zeroed blocks; without, every request is plain and every free unzeroed
    strands: bool  # zeroed blocks on the lists need zeroed pages in the zone to be used


def make_percpu(
    b: Buddy,
    nr_cpus: int,
    *,
    batch_pages: int = 0,
    has_zeroed: bool,
    strands: bool = False,
    page_bytes: int = BASE_PAGE_BYTES,
) -> Percpu:
    """Empty lists for `nr_cpus` CPUs in front of `b`.

    Parameters
    ----------
    batch_pages
        Pages of a refill or spill; 0 computes it from each zone's size as the kernel does.
    has_zeroed
        Whether the kernel modelled keeps zeroed blocks apart.
    strands
        Whether a CPU's zeroed blocks are out of reach while the zone has none (the prezeroing patches of 2004-2005).
    page_bytes
        Size of a base page; the batch is bounded in bytes.

    Raises FirsttouchError for no CPU or a negative batch.
    """
    if nr_cpus < 1 or batch_pages < 0:
        raise FirsttouchError(f"cannot model per-CPU lists of {nr_cpus} CPUs with a batch of {batch_pages} pages", "")
    zone_pages = [int(pages) for pages in np.diff(b.zone_start)]
    low_pages = watermark_low_pages(zone_pages, page_bytes)
    batch = [batch_pages or zone_batch_pages(pages, page_bytes) for pages in zone_pages]
    high_min = [max(low // nr_cpus, 4 * n) for low, n in zip(low_pages, batch, strict=True)]
    high_max = [max(pages // _HIGH_FRACTION // nr_cpus, low) for pages, low in zip(zone_pages, high_min, strict=True)]
    shape = (nr_cpus, len(zone_pages))
    return Percpu(
        first=np.full((*shape, 2 * NR_LIST_ORDERS), NO_PFN, np.int32),
        last=np.full((*shape, 2 * NR_LIST_ORDERS), NO_PFN, np.int32),
        nr_blocks=np.zeros((*shape, 2 * NR_LIST_ORDERS), np.int64),
        nr_pages=np.zeros(shape, np.int64),
        high=np.tile(np.asarray(high_min, np.int64), (nr_cpus, 1)),
        alloc_factor=np.zeros(shape, np.int64),
        free_count=np.zeros(shape, np.int64),
        freed_high=np.zeros(shape, np.uint8),
        batch=np.asarray(batch, np.int64),
        high_min=np.asarray(high_min, np.int64),
        high_max=np.asarray(high_max, np.int64),
        has_zeroed=has_zeroed,
        strands=strands,
    )


def zone_batch_pages(zone_pages: int, page_bytes: int = BASE_PAGE_BYTES) -> int:
    """Pages of one batch: a quarter of the zone / 1024 or of 1 MiB, times 1.5, down to a power of two, minus 1."""
    quarter = max(1, min(zone_pages // 1024, (1 << 20) // page_bytes) // 4)
    rounded = 1 << ((quarter + quarter // 2).bit_length() - 1)
    return max(1, rounded - 1)


def watermark_low_pages(zone_pages: list[int], page_bytes: int = BASE_PAGE_BYTES) -> list[int]:
    """Each zone's low watermark as Linux sets it with THP configured; it bounds the per-CPU lists from below."""
    all_pages = sum(zone_pages)
    all_kib = all_pages * page_bytes // 1024
    minimum_kib = min(max(math.isqrt(all_kib * 16), 128), 262_144)
    # khugepaged wants 2 pageblocks and 3 * 3 more in each zone, at most a twentieth of memory. The two zones
    # below 4 GiB that a machine has and the model has not are counted.
    recommended = min((len(zone_pages) + 2) * (2 + 9) * PMD_PAGES, all_pages // 20)
    minimum = max(minimum_kib * 1024 // page_bytes, recommended)
    out = []
    for pages in zone_pages:
        share = minimum * pages // all_pages
        out.append(share + max(share // 4, pages // 1000))
    return out


@kernel
def list_of(k: int, z: int) -> int:
    """The index of the list of order `k` and zero state `z`, or NO_LIST."""
    if k <= COSTLY_ORDER:
        return 2 * k + z
    if k == PMD_ORDER:
        return 2 * (COSTLY_ORDER + 1) + z
    return NO_LIST


@kernel
def order_of_list(i: int) -> int:
    """The order of the blocks on list `i`."""
    k = i >> 1
    return PMD_ORDER if k > COSTLY_ORDER else k


@kernel
def _pop(p: Percpu, b: Buddy, cpu: int, zone: int, i: int) -> int:
    """Take the head of a list that is not empty."""
    pfn = int(p.first[cpu, zone, i])
    after = b.next[pfn]
    p.first[cpu, zone, i] = after
    if after == NO_PFN:
        p.last[cpu, zone, i] = NO_PFN
    else:
        b.prev[after] = NO_PFN
    p.nr_blocks[cpu, zone, i] -= 1
    p.nr_pages[cpu, zone] -= 1 << order_of_list(i)
    return pfn


@kernel
def _pop_tail(p: Percpu, b: Buddy, cpu: int, zone: int, i: int) -> int:
    """Take the tail of a list that is not empty."""
    pfn = int(p.last[cpu, zone, i])
    before = b.prev[pfn]
    p.last[cpu, zone, i] = before
    if before == NO_PFN:
        p.first[cpu, zone, i] = NO_PFN
    else:
        b.next[before] = NO_PFN
    p.nr_blocks[cpu, zone, i] -= 1
    p.nr_pages[cpu, zone] -= 1 << order_of_list(i)
    return pfn


@kernel
def _push(p: Percpu, b: Buddy, cpu: int, zone: int, i: int, pfn: int) -> None:
    """Put a block at the head of a list."""
    old = p.first[cpu, zone, i]
    b.next[pfn] = old
    b.prev[pfn] = NO_PFN
    if old == NO_PFN:
        p.last[cpu, zone, i] = pfn
    else:
        b.prev[old] = pfn
    p.first[cpu, zone, i] = pfn
    p.nr_blocks[cpu, zone, i] += 1
    p.nr_pages[cpu, zone] += 1 << order_of_list(i)


@kernel
def _append(p: Percpu, b: Buddy, cpu: int, zone: int, i: int, pfn: int) -> None:
    """Put a block at the tail of a list."""
    old = p.last[cpu, zone, i]
    b.prev[pfn] = old
    b.next[pfn] = NO_PFN
    if old == NO_PFN:
        p.first[cpu, zone, i] = pfn
    else:
        b.next[old] = pfn
    p.last[cpu, zone, i] = pfn
    p.nr_blocks[cpu, zone, i] += 1
    p.nr_pages[cpu, zone] += 1 << order_of_list(i)


@kernel
def _nr_refill(p: Percpu, cpu: int, zone: int, k: int) -> int:
    """Blocks of the next refill; growing `alloc_factor` and `high` as allocations go on."""
    batch = p.batch[zone]
    nr_pages = batch << p.alloc_factor[cpu, zone] if k == 0 else batch
    high = p.high[cpu, zone]
    if p.high_min[zone] != p.high_max[zone]:
        high = min(high + nr_pages, p.high_max[zone])
        p.high[cpu, zone] = high
    if k == 0:
        room = max(high - p.nr_pages[cpu, zone] - batch, batch)
        if nr_pages <= room and p.alloc_factor[cpu, zone] < BATCH_SCALE_MAX:
            p.alloc_factor[cpu, zone] += 1
        nr_pages = min(nr_pages, room)
    if nr_pages > 1:
        return int(max(nr_pages >> k, 2))
    return int(nr_pages)


@kernel
def _take(p: Percpu, b: Buddy, cpu: int, zone: int, k: int, z: int) -> tuple[int, int]:
    """A block of class `z` from the CPU's list, refilled if empty: (pfn or NO_PFN, pages moved from the buddy)."""
    i = list_of(k, z)
    moved = 0
    if p.first[cpu, zone, i] == NO_PFN:
        nr_blocks = _nr_refill(p, cpu, zone, k)
        while nr_blocks > 0:
            pfn = alloc_block(b, zone, k, z)
            if pfn == NO_PFN:
                break
            _append(p, b, cpu, zone, i, pfn)
            moved += 1 << k
            nr_blocks -= 1
        if moved == 0:
            return NO_PFN, 0
    return _pop(p, b, cpu, zone, i), moved


@kernel
def _alloc_unlisted(b: Buddy, zone: int, k: int, want: bool) -> tuple[int, int, int]:
    """A block of an order without a list, straight from the buddy."""
    z = ZEROED if want and b.zero_pages[zone] >= 1 << k else UNZEROED
    pfn = alloc_block(b, zone, k, z)
    if pfn == NO_PFN:
        z = 1 - z
        pfn = alloc_block(b, zone, k, z)
    return pfn, z, 0 if pfn == NO_PFN else 1 << k


@kernel
def pcp_alloc(p: Percpu, b: Buddy, cpu: int, zone: int, k: int, want_zeroed: bool) -> tuple[int, int, int]:
    """Allocate 2**k pages for `cpu`: (pfn or NO_PFN, zero state of the block, pages moved from the buddy).

    The last is 0 when the CPU's list had one; otherwise the zone lock was taken, and held for that many pages.
    """
    want = want_zeroed and p.has_zeroed
    i = list_of(k, ZEROED)
    if i == NO_LIST:
        return _alloc_unlisted(b, zone, k, want)
    p.free_count[cpu, zone] >>= 1
    in_reach = p.first[cpu, zone, i] != NO_PFN and (not p.strands or b.zero_pages[zone] >= 1 << k)
    if want and (in_reach or b.zero_pages[zone] >= 1 << k):
        pfn, moved = _take(p, b, cpu, zone, k, ZEROED)
        if pfn != NO_PFN:
            return pfn, ZEROED, moved
    pfn, moved = _take(p, b, cpu, zone, k, UNZEROED)
    if pfn != NO_PFN:
        return pfn, UNZEROED, moved
    if in_reach:
        return _pop(p, b, cpu, zone, i), ZEROED, 0
    pfn = alloc_block(b, zone, k, ZEROED)
    return pfn, ZEROED, 0 if pfn == NO_PFN else 1 << k


@kernel
def _spill(p: Percpu, b: Buddy, cpu: int, zone: int, i: int, nr_pages: int) -> tuple[int, int]:
    """Give `nr_pages` or slightly more back to the buddy, tails first, list `i` first and then the others in turn.

    Returns the pages given back, and the highest order that an unzeroed block merged to, or NO_ORDER.
    """
    nr_pages = min(nr_pages, p.nr_pages[cpu, zone])
    spilled, highest = 0, NO_ORDER
    while spilled < nr_pages:
        k, z = order_of_list(i), i & 1
        while spilled < nr_pages and p.last[cpu, zone, i] != NO_PFN:
            final = free_block(b, zone, _pop_tail(p, b, cpu, zone, i), k, z)
            spilled += 1 << k
            if z == UNZEROED:
                highest = max(highest, final)
        i = (i + 1) % (2 * NR_LIST_ORDERS)
    return spilled, highest


@kernel
def _frees_high(p: Percpu, cpu: int, zone: int, k: int) -> bool:
    """Whether a run of frees of orders 1..COSTLY_ORDER has become so long that the lists should not keep them."""
    if k == 0 or k > COSTLY_ORDER:
        p.freed_high[cpu, zone] = 0
        return False
    batch = p.batch[zone]
    run = p.freed_high[cpu, zone] == 1 and p.free_count[cpu, zone] >= batch + p.high_min[zone] // 2
    p.freed_high[cpu, zone] = 1
    return bool(run and p.nr_pages[cpu, zone] >= batch)


@kernel
def _nr_spill(p: Percpu, cpu: int, zone: int) -> int:
    """Pages a free should give back, 0 if the lists may keep what they have; raises `high` as frees go on."""
    high, batch = p.high[cpu, zone], p.batch[zone]
    if p.nr_pages[cpu, zone] < high:
        return 0
    if p.high_min[zone] != p.high_max[zone]:
        need = p.free_count[cpu, zone] + batch
        if high < need:
            p.high[cpu, zone] = min(max(need, p.high_min[zone]), p.high_max[zone])
    return int(min(max(p.free_count[cpu, zone], batch), high - batch))


@kernel
def pcp_free(p: Percpu, b: Buddy, cpu: int, zone: int, pfn: int, k: int, z: int) -> tuple[int, int]:
    """Free 2**k pages onto the list of `cpu`: (pages spilled to the buddy, highest order that unzeroed ones merged to).

    The second is what may wake the scrubber; it is NO_ORDER if no unzeroed block reached the buddy.
    """
    if not p.has_zeroed:
        z = UNZEROED
    i = list_of(k, z)
    if i == NO_LIST:
        final = free_block(b, zone, pfn, k, z)
        return 1 << k, final if z == UNZEROED else NO_ORDER
    p.alloc_factor[cpu, zone] >>= 1
    _push(p, b, cpu, zone, i, pfn)
    frees_high = _frees_high(p, cpu, zone, k)
    batch = p.batch[zone]
    if p.free_count[cpu, zone] < batch << BATCH_SCALE_MAX:
        p.free_count[cpu, zone] += 1 << k
    if frees_high:
        p.high[cpu, zone] = max(p.high[cpu, zone] - (batch << BATCH_SCALE_MAX), p.high_min[zone])
        return _spill(p, b, cpu, zone, i, batch << BATCH_SCALE_MAX)
    nr_pages = _nr_spill(p, cpu, zone)
    if nr_pages == 0:
        return 0, NO_ORDER
    return _spill(p, b, cpu, zone, i, nr_pages)


@kernel
def pcp_drain(p: Percpu, b: Buddy, cpu: int) -> tuple[int, int]:
    """Give everything on the lists of `cpu` back to the buddy; returns as `pcp_free`, over all zones."""
    drained, highest = 0, NO_ORDER
    for zone in range(p.nr_pages.shape[1]):
        spilled, final = _spill(p, b, cpu, zone, 0, p.nr_pages[cpu, zone])
        drained += spilled
        highest = max(highest, final)
    return drained, highest


@kernel
def pages_on_lists(p: Percpu) -> int:
    """Pages that all CPUs keep."""
    return int(p.nr_pages.sum())


def check(p: Percpu, b: Buddy) -> list[str]:
    """What is wrong with `p`, each line with the number of its invariant."""
    wrong: list[str] = []
    seen: dict[int, tuple[int, int, int]] = {}
    held = {
        page for pfn in np.flatnonzero(b.order) for page in range(int(pfn), int(pfn) + (1 << (int(b.order[pfn]) - 1)))
    }
    listed = np.zeros_like(p.nr_pages)
    for cpu, zone, i in np.ndindex(*p.first.shape):
        k, where = order_of_list(i), (cpu, zone, i)
        start, end = int(b.zone_start[zone]), int(b.zone_start[zone + 1])
        pfn, before, length = int(p.first[where]), NO_PFN, 0
        while pfn != NO_PFN:
            if pfn % (1 << k) or pfn < start or pfn + (1 << k) > end:
                wrong.append(f"P3: block {pfn} of order {k} on list {where} is misplaced in zone [{start}, {end})")
                break
            if b.prev[pfn] != before:
                wrong.append(f"P1: block {pfn} on list {where} has {b.prev[pfn]} before it, not {before}")
            again = [
                page for page in range(pfn, pfn + (1 << k)) if page in seen or page in held or b.order[page] != NOT_HEAD
            ]
            if again:
                wrong.append(f"P3: pages {again} of block {pfn} on list {where} are elsewhere too")
                break
            seen.update(dict.fromkeys(range(pfn, pfn + (1 << k)), where))
            before, pfn, length = pfn, int(b.next[pfn]), length + 1
        if p.last[where] != before:
            wrong.append(f"P1: list {where} ends at {before}, last says {p.last[where]}")
        if length != p.nr_blocks[where]:
            wrong.append(f"P1: list {where} has {length} blocks, nr_blocks says {p.nr_blocks[where]}")
        if length and i & 1 and not p.has_zeroed:
            wrong.append(f"P5: list {where} holds {length} zeroed blocks")
        listed[cpu, zone] += length << k
    for cpu, zone in np.ndindex(*p.nr_pages.shape):
        if p.nr_pages[cpu, zone] != listed[cpu, zone]:
            wrong.append(f"P2: lists {cpu, zone} hold {listed[cpu, zone]} pages, nr_pages says {p.nr_pages[cpu, zone]}")
        if not p.high_min[zone] <= p.high[cpu, zone] <= p.high_max[zone]:
            wrong.append(
                f"P4: high of {cpu, zone} is {p.high[cpu, zone]}, not in {p.high_min[zone]}..{p.high_max[zone]}"
            )
    return wrong
