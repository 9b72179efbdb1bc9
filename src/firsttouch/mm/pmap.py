"""Page tables: which page each entry maps, and what is known of it. Mapping, unmapping, fork.

An address space has a table of *regions* (one page-table page each: PMD_PAGES entries). A region in use has a *slot*;
its entries are `slot * PMD_PAGES + index` in the flat arrays below. Slots are handed out when first needed and taken
back when their address space ends, so memory follows the address space in use, not the number of events.

An entry's `state` is one of NONE .. RESIDENT plus bits (RESIDENT: nothing is mapped, but the process has a page there,
in memory, that its parent had; only where fork copies no page tables):

  TOUCHED  the program has touched the page since it was mapped
  NEAR     mapped by a neighbour's fault, but as the recording kernel also would have (fault-around of its size): a
           recorded touch of it proves that it was not there to be mapped, so it faults
  FRESH    its own touch faulted last
  COLD     its lines are in no cache: zeroed ahead, and not touched yet
  WRITTEN  the program has written to it since it was mapped

A physical page knows its folio: `folio_order[pfn]` for each page, `refs[head]` entries that map it. When the last
entry goes, the whole block is free.

Invariants:
  P1  nr_mapped[slot] entries of a slot are not NONE
  P2  an anonymous entry has a pfn, others have NO_PFN; a RESIDENT one either
  P3  refs[head] is the number of entries that map pages of the folio
  P4  a slot is on the free stack or belongs to exactly one region

Follows Linux set_ptes(), zap_pte_range(), copy_page_range(); where it does not: docs/deviations.md, "pmap".
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firsttouch._jit import inlined, state_kernel
from firsttouch.mm.buddy import NO_PFN
from firsttouch.units import PMD_ORDER, PMD_PAGES

NONE, ZERO_PAGE, ANON_RO, ANON_RW, FILE_RO, FILE_RW, SHMEM, RESIDENT = range(8)
STATE = 7  # mask
TOUCHED, NEAR, FRESH, COLD, WRITTEN = 8, 16, 32, 64, 128

NO_SLOT = np.iinfo(np.int32).min
NOT_HUGE, HUGE, HUGE_ZERO = range(3)

# counts[]
FREE_SLOTS, MAPPED_PAGES, PEAK_PAGES, UNTOUCHED_PAGES, SLOTS_FULL, LEAST_FREE_SLOTS = range(6)


class Pmap(NamedTuple):
    """Page tables of all address spaces, and the folios they map."""

    table: NDArray[np.int64]  # [mm] where the address space's regions begin in `slot`
    nr_regions: NDArray[np.int64]  # [mm]
    slot: NDArray[np.int32]  # [region of all mms] or NO_SLOT
    free_slots: NDArray[np.int32]  # stack, counts[FREE_SLOTS] deep
    nr_mapped: NDArray[np.int32]  # [slot]
    huge: NDArray[np.uint8]  # [slot] NOT_HUGE, HUGE, HUGE_ZERO
    pfn: NDArray[np.int32]  # [entry]
    state: NDArray[np.uint8]  # [entry]
    folio_order: NDArray[np.int8]  # [pfn] of pages in use
    refs: NDArray[np.int32]  # [pfn] of a folio's head
    touched: NDArray[np.int64]  # [mm] pages that are mapped and TOUCHED
    counts: NDArray[np.int64]


def make_pmap(mm_regions: NDArray[np.int64], nr_slots: int, nr_pages: int) -> Pmap:
    """Empty page tables for address spaces of so many regions, with room for `nr_slots` regions in use."""
    counts = np.zeros(6, np.int64)
    counts[FREE_SLOTS] = counts[LEAST_FREE_SLOTS] = nr_slots
    return Pmap(
        table=np.concatenate([[0], np.cumsum(mm_regions)[:-1]]).astype(np.int64),
        nr_regions=mm_regions.astype(np.int64),
        slot=np.full(int(mm_regions.sum()), NO_SLOT, np.int32),
        free_slots=np.arange(nr_slots - 1, -1, -1, dtype=np.int32),
        nr_mapped=np.zeros(nr_slots, np.int32),
        huge=np.zeros(nr_slots, np.uint8),
        pfn=np.zeros(nr_slots * PMD_PAGES, np.int32),
        state=np.zeros(nr_slots * PMD_PAGES, np.uint8),
        folio_order=np.zeros(nr_pages, np.int8),
        refs=np.zeros(nr_pages, np.int32),
        touched=np.zeros(len(mm_regions), np.int64),
        counts=counts,
    )


@inlined
def find_slot(pm: Pmap, mm: int, page: int) -> int:
    """The slot of the region that holds `page`, or NO_SLOT."""
    return int(pm.slot[pm.table[mm] + (page >> PMD_ORDER)])


@inlined
def need_slot(pm: Pmap, mm: int, page: int) -> int:
    """The same, giving the region a slot if it has none; NO_SLOT (and counts[SLOTS_FULL]) if none is left."""
    at = pm.table[mm] + (page >> PMD_ORDER)
    slot = int(pm.slot[at])
    if slot != NO_SLOT:
        return slot
    if pm.counts[FREE_SLOTS] == 0:
        pm.counts[SLOTS_FULL] = 1
        return slot
    pm.counts[FREE_SLOTS] -= 1
    pm.counts[LEAST_FREE_SLOTS] = min(pm.counts[LEAST_FREE_SLOTS], pm.counts[FREE_SLOTS])
    slot = int(pm.free_slots[pm.counts[FREE_SLOTS]])
    pm.slot[at] = slot
    return slot


@state_kernel
def all_none(pm: Pmap, entry: int, nr: int) -> bool:
    """Whether `nr` entries from `entry` map nothing."""
    for i in range(entry, entry + nr):  # noqa: SIM110 (plain loops compile)
        if pm.state[i] != NONE:
            return False
    return True


@state_kernel
def map_block(pm: Pmap, mm: int, slot: int, entry: int, pfn: int, k: int, state: int) -> None:
    """Map a new folio of 2**k pages, headed by `pfn`, at `entry`. All those entries are NONE before."""
    nr = 1 << k
    for i in range(nr):
        pm.pfn[entry + i] = pfn + i
        pm.state[entry + i] = state
        pm.folio_order[pfn + i] = k
    pm.refs[pfn] = nr
    pm.nr_mapped[slot] += nr
    pm.counts[MAPPED_PAGES] += nr
    pm.counts[PEAK_PAGES] = max(pm.counts[PEAK_PAGES], pm.counts[MAPPED_PAGES])


@inlined
def map_pfnless(pm: Pmap, slot: int, entry: int, state: int) -> None:
    """Map a page that is not the program's own memory (zero page, file, shared memory) at an entry that is NONE."""
    pm.pfn[entry] = NO_PFN
    pm.state[entry] = state
    pm.nr_mapped[slot] += 1


@inlined
def mark_touched(pm: Pmap, mm: int, entry: int) -> None:
    """The program touches a mapped page."""
    if pm.state[entry] & TOUCHED == 0:
        pm.state[entry] |= TOUCHED
        pm.touched[mm] += 1


@state_kernel
def clear_entry(pm: Pmap, mm: int, slot: int, entry: int) -> int:
    """Unmap one page that is mapped. Return the head of its folio if that is now free, else NO_PFN."""
    state = int(pm.state[entry])
    pfn = int(pm.pfn[entry])
    if state & TOUCHED:
        pm.touched[mm] -= 1
    elif state & STATE == ANON_RW or state & STATE == ANON_RO:
        pm.counts[UNTOUCHED_PAGES] += 1
    pm.state[entry] = NONE
    pm.nr_mapped[slot] -= 1
    if pm.nr_mapped[slot] == 0:
        pm.huge[slot] = NOT_HUGE
    elif pm.huge[slot] != NOT_HUGE:
        pm.huge[slot] = NOT_HUGE  # part of a superpage goes: demoted
    if pfn == NO_PFN:
        return NO_PFN
    head = pfn & ~((1 << int(pm.folio_order[pfn])) - 1)
    pm.refs[head] -= 1
    if pm.refs[head] != 0:
        return NO_PFN
    pm.counts[MAPPED_PAGES] -= 1 << int(pm.folio_order[pfn])
    return head


@state_kernel
def release_slot(pm: Pmap, mm: int, region: int) -> None:
    """Give back the slot of a region of which nothing is mapped any more."""
    at = pm.table[mm] + region
    pm.free_slots[pm.counts[FREE_SLOTS]] = pm.slot[at]
    pm.counts[FREE_SLOTS] += 1
    pm.slot[at] = NO_SLOT


@state_kernel
def fork_tables(pm: Pmap, parent: int, child: int) -> None:
    """Copy a parent's page tables to a child that has none: private pages become read-only in both, and shared."""
    for region in range(min(pm.nr_regions[parent], pm.nr_regions[child])):
        source = int(pm.slot[pm.table[parent] + region])
        if source == NO_SLOT or pm.nr_mapped[source] == 0:
            continue
        target = need_slot(pm, child, region << PMD_ORDER)
        if target == NO_SLOT:
            return
        pm.nr_mapped[target] = pm.nr_mapped[source]
        pm.huge[target] = pm.huge[source]
        for i in range(PMD_PAGES):
            copy_entry(pm, child, source * PMD_PAGES + i, target * PMD_PAGES + i)


@state_kernel
def copy_entry(pm: Pmap, child: int, source: int, target: int) -> None:
    """Share one entry with a child."""
    state = int(pm.state[source])
    if state & STATE == ANON_RW:
        state = state & ~STATE | ANON_RO
        pm.state[source] = state
    pm.state[target] = state
    pm.pfn[target] = pm.pfn[source]
    if state != NONE:
        if pm.pfn[source] != NO_PFN:
            pm.refs[pm.pfn[source] & ~((1 << int(pm.folio_order[pm.pfn[source]])) - 1)] += 1
        if state & TOUCHED:
            pm.touched[child] += 1


@state_kernel
def move_entry(pm: Pmap, from_slot: int, source: int, to_slot: int, target: int) -> None:
    """mremap: what `source` maps is mapped by `target`, which is NONE, instead."""
    pm.state[target] = pm.state[source]
    pm.pfn[target] = pm.pfn[source]
    pm.state[source] = NONE
    pm.nr_mapped[from_slot] -= 1
    pm.nr_mapped[to_slot] += 1
    pm.huge[from_slot] = NOT_HUGE
    pm.huge[to_slot] = NOT_HUGE


def check(pm: Pmap) -> list[str]:
    """Which invariants do not hold, in words. For tests: it walks everything."""
    wrong = []
    used = pm.slot[pm.slot != NO_SLOT]
    free = pm.free_slots[: pm.counts[FREE_SLOTS]]
    if len(np.unique(np.concatenate([used, free]))) != len(used) + len(free):
        wrong.append("P4: a slot belongs to two regions, or is in use and free")
    refs: dict[int, int] = {}
    for slot in used:
        span = slice(int(slot) * PMD_PAGES, (int(slot) + 1) * PMD_PAGES)
        states, pfns = pm.state[span] & STATE, pm.pfn[span]
        if np.count_nonzero(states) != pm.nr_mapped[slot]:
            wrong.append(
                f"P1: slot {slot} has {np.count_nonzero(states)} entries mapped, nr_mapped {pm.nr_mapped[slot]}"
            )
        anon = (states == ANON_RO) | (states == ANON_RW)
        if np.any(pfns[anon] == NO_PFN) or np.any(pfns[(states != NONE) & (states != RESIDENT) & ~anon] != NO_PFN):
            wrong.append(f"P2: slot {slot} has an anonymous entry without a pfn, or another with one")
        for pfn in pfns[(anon | (states == RESIDENT)) & (pfns != NO_PFN)]:
            head = int(pfn) & ~((1 << int(pm.folio_order[pfn])) - 1)
            refs[head] = refs.get(head, 0) + 1
    wrong += [
        f"P3: folio {head} is mapped {nr} times, refs {pm.refs[head]}"
        for head, nr in refs.items()
        if pm.refs[head] != nr
    ]
    return wrong
