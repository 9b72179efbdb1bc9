"""Per-CPU lists of free blocks in front of the buddy lists, so that most allocations and frees need no zone lock.

Here are the rules of Linux 6.18, and the one door to either set: `make_percpu` is told which rules it is to follow, and
allocations and frees follow them. Those of Linux 2.6.10 are in hotcold.py; what lists are is in pcplist.py.

Each CPU has, for each zone, one list per order and zero state: orders 0 to 3 and the order of a superpage. An empty
list is refilled from the buddy in a batch; lists that hold too much spill a batch from their tails. Both batches grow
while a CPU only allocates or only frees: ALLOC_FACTOR doubles the refill each time and a free halves it; FREE_COUNT
counts pages freed in a row, is what a spill gives back, and is halved by an allocation. All lists of one CPU and zone
share the counts. HIGH follows demand between HIGH_MIN and HIGH_MAX.

Zeroed and plain requests: a request for zeros takes the zeroed class when the zone has enough zeroed pages, or when the
CPU's own zeroed list holds a block, and else the unzeroed one. A plain request takes an unzeroed block, and a zeroed
one only when there is no other; that one comes alone, not in a batch. With `strands` the CPU's zeroed list is out of
reach while the zone itself has too few zeroed pages.

Invariants:
  P1  a list is linked both ways from first to last
  P2  state[cpu, zone, NR_PAGES] is the number of pages on its lists
  P3  a block is aligned, inside its zone, on one list only, and the buddy does not hold it
  P4  HIGH_MIN <= HIGH <= HIGH_MAX
  P5  the zeroed lists are empty unless has_zeroed

Follows Linux 6.18 rmqueue_pcplist(), nr_pcp_alloc(), free_frozen_page_commit(), nr_pcp_high(), nr_pcp_free(),
free_pcppages_bulk() and zone_batchsize(); where it does not: docs/deviations.md, "percpu".
"""

from __future__ import annotations

import math

import numpy as np

from firsttouch._jit import inlined, state_kernel
from firsttouch.errors import FirsttouchError
from firsttouch.mm import hotcold
from firsttouch.mm.buddy import NO_PFN, NOT_HEAD, UNZEROED, ZEROED, Buddy, alloc_block, free_block
from firsttouch.mm.pcplist import (
    ALLOC_FACTOR,
    BATCH,
    COLD_LIST,
    COSTLY_ORDER,
    FREE_COUNT,
    FREED_HIGH,
    HIGH,
    HIGH_MAX,
    HIGH_MIN,
    JUST_FREED,
    NO_LIST,
    NO_ORDER,
    NR_HOT,
    NR_LIST_ORDERS,
    NR_LISTS,
    NR_PAGES,
    NR_STATE,
    Percpu,
    append,
    list_of,
    order_of_list,
    pop,
    pop_tail,
    push,
)
from firsttouch.units import BASE_PAGE_BYTES, PMD_PAGES

BATCH_SCALE_MAX = 5  # a batch grows to at most batch << BATCH_SCALE_MAX pages
_HIGH_FRACTION = 8  # all CPUs together may keep a zone's pages / 8
LINUX_6_18, LINUX_2_6_10 = RULES = ("linux-6.18", "linux-2.6.10")


def make_percpu(
    b: Buddy,
    nr_cpus: int,
    *,
    rules: str = LINUX_6_18,
    batch_pages: int = 0,
    has_zeroed: bool,
    strands: bool = False,
    page_bytes: int = BASE_PAGE_BYTES,
) -> Percpu:
    """Empty lists for `nr_cpus` CPUs in front of `b`.

    Parameters
    ----------
    rules
        One of RULES: whose lists they are.
    batch_pages
        Pages of a refill or spill; 0 computes it from each zone's size as the kernel does.
    has_zeroed
        Whether the kernel modelled keeps zeroed blocks apart.
    strands
        Whether a CPU's zeroed blocks are out of reach while the zone has none (the prezeroing patches of 2004-2005).
        With the rules of Linux 2.6.10, false means that a CPU looks at its own zeroed pages first.
    page_bytes
        Size of a base page; the batch is bounded in bytes.

    Raises FirsttouchError for unknown rules, no CPU, or a negative batch.
    """
    if rules not in RULES:
        raise FirsttouchError(f"there are no rules of per-CPU lists {rules!r}", f"there are {' and '.join(RULES)}")
    if nr_cpus < 1 or batch_pages < 0:
        raise FirsttouchError(f"cannot model per-CPU lists of {nr_cpus} CPUs with a batch of {batch_pages} pages", "")
    zone_pages = [int(pages) for pages in np.diff(b.zone_start)]
    low_pages = watermark_low_pages(zone_pages, page_bytes)
    limit = np.zeros((len(zone_pages), 3), np.int64)
    for zone, (pages, low) in enumerate(zip(zone_pages, low_pages, strict=True)):
        if rules == LINUX_2_6_10:
            batch = batch_pages or hotcold.hot_cold_batch_pages(pages, page_bytes)
            limit[zone] = batch, *[hotcold.high_pages(batch, hotcold.HOT_LIST)] * 2
        else:
            limit[zone, BATCH] = batch_pages or zone_batch_pages(pages, page_bytes)
            limit[zone, HIGH_MIN] = max(low // nr_cpus, 4 * limit[zone, BATCH])
            limit[zone, HIGH_MAX] = max(pages // _HIGH_FRACTION // nr_cpus, limit[zone, HIGH_MIN])
    state = np.zeros((nr_cpus, len(zone_pages), NR_STATE), np.int64)
    state[:, :, HIGH] = limit[:, HIGH_MIN]
    shape = (nr_cpus, len(zone_pages), NR_LISTS)
    return Percpu(
        first=np.full(shape, NO_PFN, np.int32),
        last=np.full(shape, NO_PFN, np.int32),
        state=state,
        limit=limit,
        hot_cold=rules == LINUX_2_6_10,
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


@state_kernel
def _nr_refill(p: Percpu, cpu: int, zone: int, k: int) -> int:
    """Blocks of the next refill; growing ALLOC_FACTOR and HIGH as allocations go on."""
    batch = p.limit[zone, BATCH]
    nr_pages = batch << p.state[cpu, zone, ALLOC_FACTOR] if k == 0 else batch
    high = p.state[cpu, zone, HIGH]
    if p.limit[zone, HIGH_MIN] != p.limit[zone, HIGH_MAX]:
        high = min(high + nr_pages, p.limit[zone, HIGH_MAX])
        p.state[cpu, zone, HIGH] = high
    if k == 0:
        room = max(high - p.state[cpu, zone, NR_PAGES] - batch, batch)
        if nr_pages <= room and p.state[cpu, zone, ALLOC_FACTOR] < BATCH_SCALE_MAX:
            p.state[cpu, zone, ALLOC_FACTOR] += 1
        nr_pages = min(nr_pages, room)
    if nr_pages > 1:
        return int(max(nr_pages >> k, 2))
    return int(nr_pages)


@state_kernel
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
            append(p, b, cpu, zone, i, pfn)
            moved += 1 << k
            nr_blocks -= 1
        if moved == 0:
            return NO_PFN, 0
    return pop(p, b, cpu, zone, i), moved


@state_kernel
def _alloc_unlisted(b: Buddy, zone: int, k: int, want: bool) -> tuple[int, int, int]:
    """A block of an order without a list, straight from the buddy."""
    z = ZEROED if want and b.zero_pages[zone] >= 1 << k else UNZEROED
    pfn = alloc_block(b, zone, k, z)
    if pfn == NO_PFN:
        z = 1 - z
        pfn = alloc_block(b, zone, k, z)
    return pfn, z, 0 if pfn == NO_PFN else 1 << k


@state_kernel
def _alloc_refill(p: Percpu, b: Buddy, cpu: int, zone: int, k: int, want: bool) -> tuple[int, int, int]:
    """`pcp_alloc` when the list it would rather use is empty, or there is none for this order."""
    zeroed_list = list_of(k, ZEROED)
    if zeroed_list == NO_LIST:
        return _alloc_unlisted(b, zone, k, want)
    if want and b.zero_pages[zone] >= 1 << k:
        pfn, moved = _take(p, b, cpu, zone, k, ZEROED)
        if pfn != NO_PFN:
            return pfn, ZEROED, moved
    pfn, moved = _take(p, b, cpu, zone, k, UNZEROED)
    if pfn != NO_PFN:
        return pfn, UNZEROED, moved
    if p.first[cpu, zone, zeroed_list] != NO_PFN and not p.strands:
        return pop(p, b, cpu, zone, zeroed_list), ZEROED, 0
    pfn = alloc_block(b, zone, k, ZEROED)
    return pfn, ZEROED, 0 if pfn == NO_PFN else 1 << k


@inlined
def pcp_alloc(p: Percpu, b: Buddy, cpu: int, zone: int, k: int, want_zeroed: bool) -> tuple[int, int, int]:
    """Allocate 2**k pages for `cpu`: (pfn or NO_PFN, zero state of the block, pages moved from the buddy).

    The last is 0 when the CPU's list had enough; otherwise the zone lock was taken, and held for that many pages.
    """
    if p.hot_cold:
        return hotcold.alloc_hot(p, b, cpu, zone, k, want_zeroed)
    want = want_zeroed and p.has_zeroed
    z = ZEROED if want and (not p.strands or b.zero_pages[zone] >= 1 << k) else UNZEROED
    i = list_of(k, z)
    if i != NO_LIST:
        p.state[cpu, zone, FREE_COUNT] >>= 1
        if p.first[cpu, zone, i] != NO_PFN:
            return pop(p, b, cpu, zone, i), z, 0
    return _alloc_refill(p, b, cpu, zone, k, want)


@state_kernel
def _spill(p: Percpu, b: Buddy, cpu: int, zone: int, i: int, nr_pages: int) -> tuple[int, int]:
    """Give `nr_pages` or slightly more back to the buddy, tails first, list `i` first and then the others in turn.

    Returns the pages given back, and the highest order that an unzeroed block merged to, or NO_ORDER.
    """
    nr_pages = min(nr_pages, p.state[cpu, zone, NR_PAGES])
    spilled, highest = 0, NO_ORDER
    while spilled < nr_pages:
        k, z = order_of_list(i), i & 1
        while spilled < nr_pages and p.last[cpu, zone, i] != NO_PFN:
            final = free_block(b, zone, pop_tail(p, b, cpu, zone, i), k, z)
            spilled += 1 << k
            if z == UNZEROED:
                highest = max(highest, final)
        i = (i + 1) % (2 * NR_LIST_ORDERS)
    return spilled, highest


@inlined
def _frees_high(p: Percpu, cpu: int, zone: int, k: int) -> bool:
    """Whether a run of frees of orders 1..COSTLY_ORDER has become so long that the lists should not keep them."""
    if k == 0 or k > COSTLY_ORDER:
        p.state[cpu, zone, FREED_HIGH] = 0
        return False
    batch = p.limit[zone, BATCH]
    in_a_row = p.state[cpu, zone, FREE_COUNT] >= batch + p.limit[zone, HIGH_MIN] // 2
    run = in_a_row and p.state[cpu, zone, FREED_HIGH] == 1
    p.state[cpu, zone, FREED_HIGH] = 1
    return bool(run and p.state[cpu, zone, NR_PAGES] >= batch)


@state_kernel
def _spill_over(p: Percpu, b: Buddy, cpu: int, zone: int, i: int) -> tuple[int, int]:
    """Spill as many pages as were freed in a row, at least a batch; raises HIGH as frees go on."""
    high, batch = p.state[cpu, zone, HIGH], p.limit[zone, BATCH]
    free_count = p.state[cpu, zone, FREE_COUNT]
    if p.limit[zone, HIGH_MIN] != p.limit[zone, HIGH_MAX]:
        p.state[cpu, zone, HIGH] = max(high, min(free_count + batch, p.limit[zone, HIGH_MAX]))
    return _spill(p, b, cpu, zone, i, min(max(free_count, batch), high - batch))


@state_kernel
def _spill_run(p: Percpu, b: Buddy, cpu: int, zone: int, i: int) -> tuple[int, int]:
    """Spill the largest batch, and lower HIGH by as much."""
    nr_pages = p.limit[zone, BATCH] << BATCH_SCALE_MAX
    p.state[cpu, zone, HIGH] = max(p.state[cpu, zone, HIGH] - nr_pages, p.limit[zone, HIGH_MIN])
    return _spill(p, b, cpu, zone, i, nr_pages)


@state_kernel
def _free_unlisted(b: Buddy, zone: int, pfn: int, k: int, z: int) -> tuple[int, int]:
    """Free a block of an order without a list."""
    final = free_block(b, zone, pfn, k, z)
    return 1 << k, final if z == UNZEROED else NO_ORDER


@inlined
def pcp_free(p: Percpu, b: Buddy, cpu: int, zone: int, pfn: int, k: int, z: int) -> tuple[int, int]:
    """Free 2**k pages onto the list of `cpu`: (pages spilled to the buddy, highest order that unzeroed ones merged to).

    The second is what may wake the scrubber; it is NO_ORDER if no unzeroed block reached the buddy.
    """
    if p.hot_cold:
        return hotcold.free_hot(p, b, cpu, zone, pfn, k)
    if not p.has_zeroed:
        z = UNZEROED
    i = list_of(k, z)
    if i == NO_LIST:
        return _free_unlisted(b, zone, pfn, k, z)
    p.state[cpu, zone, ALLOC_FACTOR] >>= 1
    push(p, b, cpu, zone, i, pfn)
    frees_high = _frees_high(p, cpu, zone, k)
    if p.state[cpu, zone, FREE_COUNT] < p.limit[zone, BATCH] << BATCH_SCALE_MAX:
        p.state[cpu, zone, FREE_COUNT] += 1 << k
    if frees_high:
        return _spill_run(p, b, cpu, zone, i)
    if p.state[cpu, zone, NR_PAGES] >= p.state[cpu, zone, HIGH]:
        return _spill_over(p, b, cpu, zone, i)
    return 0, NO_ORDER


@state_kernel
def pcp_drain(p: Percpu, b: Buddy, cpu: int) -> tuple[int, int]:
    """Give everything on the lists of `cpu` back to the buddy; returns as `pcp_free`, over all zones."""
    drained, highest = 0, NO_ORDER
    for zone in range(p.state.shape[1]):
        if p.hot_cold:
            spilled, final = hotcold.drain(p, b, cpu, zone)
        else:
            spilled, final = _spill(p, b, cpu, zone, 0, p.state[cpu, zone, NR_PAGES])
        drained += spilled
        highest = max(highest, final)
    return drained, highest


@state_kernel
def pages_on_lists(p: Percpu) -> int:
    """Pages that all CPUs keep."""
    return int(p.state[:, :, NR_PAGES].sum())


def check(p: Percpu, b: Buddy) -> list[str]:
    """What is wrong with `p`, each line with the number of its invariant."""
    wrong: list[str] = []
    seen: dict[int, tuple[int, int, int]] = {}
    held = {
        page for pfn in np.flatnonzero(b.order) for page in range(int(pfn), int(pfn) + (1 << (int(b.order[pfn]) - 1)))
    }
    listed = np.zeros(p.state.shape[:2], np.int64)
    lengths = np.zeros(p.first.shape, np.int64)
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
        if length and i & 1 and not p.has_zeroed:
            wrong.append(f"P5: list {where} holds {length} zeroed blocks")
        listed[cpu, zone] += length << k
        lengths[where] = length
    for cpu, zone in np.ndindex(*p.state.shape[:2]):
        if p.state[cpu, zone, NR_PAGES] != listed[cpu, zone]:
            wrong.append(
                f"P2: lists {cpu, zone} hold {listed[cpu, zone]} pages, NR_PAGES says {p.state[cpu, zone, NR_PAGES]}"
            )
        if not p.limit[zone, HIGH_MIN] <= p.state[cpu, zone, HIGH] <= p.limit[zone, HIGH_MAX]:
            wrong.append(f"P4: HIGH of {cpu, zone} is {p.state[cpu, zone, HIGH]}, out of bounds")
        wrong += _check_hot_cold(p, cpu, zone, lengths[cpu, zone].tolist())
    return wrong


def _check_hot_cold(p: Percpu, cpu: int, zone: int, lengths: list[int]) -> list[str]:
    """P6 and P7 of one CPU and zone; under the rules of 6.18 there is no cold list."""
    if not p.hot_cold:
        return [f"P6: the cold list of {cpu, zone} holds {lengths[COLD_LIST]} pages"] if lengths[COLD_LIST] else []
    wrong = []
    kept = (hotcold.HOT_LIST, hotcold.ZEROED_LIST, COLD_LIST)
    for i, length in enumerate(lengths):
        if i not in kept:
            if length:
                wrong.append(f"P6: list {cpu, zone, i} holds {length} blocks and should not be there")
            continue
        count = p.state[cpu, zone, hotcold.count_column(i)]
        if count != length:
            wrong.append(f"P6: list {cpu, zone, i} holds {length} pages, its count says {count}")
        if length > hotcold.high_pages(p.limit[zone, BATCH], i):
            wrong.append(f"P7: list {cpu, zone, i} holds {length} pages, more than its high water mark")
    if not 0 <= p.state[cpu, zone, JUST_FREED] <= p.state[cpu, zone, NR_HOT]:
        wrong.append(f"P7: {p.state[cpu, zone, JUST_FREED]} pages of the hot list of {cpu, zone} were just freed")
    return wrong


__all__ = [
    "ALLOC_FACTOR",
    "BATCH",
    "FREE_COUNT",
    "HIGH",
    "HIGH_MAX",
    "HIGH_MIN",
    "LINUX_2_6_10",
    "LINUX_6_18",
    "NO_LIST",
    "NO_ORDER",
    "RULES",
    "Percpu",
    "check",
    "list_of",
    "make_percpu",
    "order_of_list",
    "pages_on_lists",
    "pcp_alloc",
    "pcp_drain",
    "pcp_free",
    "watermark_low_pages",
    "zone_batch_pages",
]
