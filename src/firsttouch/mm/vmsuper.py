"""Promotion and demotion: when the pages of a region are mapped by one entry of the page tables.

A region whose 512 pages are all mapped, from a full reservation, each at its place, with the same permission and all
written to or all not, is *promoted*: one entry maps them, and one pv entry stands for them, that of the first page; the
others, and chunks that become empty, are given up. Pages that may be written to and were not are made read-only by the
attempt, and stay so if it fails: the next write to one faults, and that fault tries again. So a region that is all
written to becomes a writable superpage, one that was only read a read-only one.

A superpage is *demoted* before a part of it changes: each page gets its pv entry back.

`Pmap.huge` of the region's slot is SUPERPAGE while it is one.

Follows amd64 pmap_promote_pde(), pmap_demote_pde_locked(), pmap_pv_promote_pde(), pmap_pv_demote_pde(); where it does
not: docs/deviations.md, "vmsuper".
"""

from firsttouch._jit import inlined, state_kernel
from firsttouch.mm.pmap import ANON_RO, ANON_RW, HUGE, NOT_HUGE, SLOTS_FULL, STATE, WRITTEN
from firsttouch.mm.pv import NO_CHUNK, add_chunk, add_entry, free_chunk, needs_chunk, remove_entry
from firsttouch.mm.reservation import NO_FRAME, NR_DEMOTIONS, NR_FAILURES, NR_PROMOTIONS, Reservation
from firsttouch.mm.world import World
from firsttouch.units import PMD_PAGES

SUPERPAGE = HUGE
NO_CHUNKS = -1  # the region was not promoted


@inlined
def is_full(r: Reservation, region: int) -> bool:
    """Whether all pages of a region's reservation are taken."""
    frame = r.of_region[region]
    return bool(frame != NO_FRAME and r.nr_used[frame] == PMD_PAGES)


@state_kernel
def promote(w: World, mm: int, slot: int, region: int) -> int:
    """Promote a region if it can be; return how many chunks of pv entries that gave up, or NO_CHUNKS."""
    pm, r = w.pmap, w.reservation
    if pm.nr_mapped[slot] != PMD_PAGES or pm.huge[slot] != NOT_HUGE or not is_full(r, region):
        return NO_CHUNKS
    first = slot * PMD_PAGES
    if not is_alike(w, first, int(r.of_region[region]) * PMD_PAGES):
        r.counts[NR_FAILURES] += 1
        return NO_CHUNKS
    pm.huge[slot] = SUPERPAGE
    r.counts[NR_PROMOTIONS] += 1
    nr = 0
    for entry in range(first + 1, first + PMD_PAGES):
        chunk = remove_entry(w.pv, mm, entry)
        if chunk != NO_CHUNK:
            free_chunk(w.pv, chunk)
            nr += 1
    return nr


@state_kernel
def is_alike(w: World, first: int, pfn: int) -> bool:
    """Whether 512 entries map a frame's pages in order and alike. Takes permission from unwritten ones on the way."""
    pm = w.pmap
    wanted = -1
    for nth in range(PMD_PAGES):
        i = PMD_PAGES - nth if nth else 0  # the first, then from the last down, as the kernel does
        state = int(pm.state[first + i])
        if state & STATE == ANON_RW and state & WRITTEN == 0:
            state = state & ~STATE | ANON_RO
            pm.state[first + i] = state
        if wanted == -1:
            wanted = state & STATE
        if pm.pfn[first + i] != pfn + i or state & STATE != wanted or wanted not in (ANON_RO, ANON_RW):
            return False
    return True


@state_kernel
def demote(w: World, mm: int, slot: int) -> int:
    """Map a superpage's pages by entries of their own again, if the slot is one; how many chunks that took."""
    pm, pv = w.pmap, w.pv
    if pm.huge[slot] != SUPERPAGE:
        return 0
    pm.huge[slot] = NOT_HUGE
    w.reservation.counts[NR_DEMOTIONS] += 1
    first = slot * PMD_PAGES
    frame = int(pv.frame[pv.place_of[first]])
    nr = 0
    for entry in range(first + 1, first + PMD_PAGES):
        if needs_chunk(pv, mm):
            if not add_chunk(pv, mm):
                pm.counts[SLOTS_FULL] = 1
                return nr
            nr += 1
        add_entry(pv, mm, entry, frame)
    return nr


@inlined
def mapped_frame(w: World, slot: int, entry: int) -> int:
    """The frame of the page that an entry maps, by itself or in a superpage."""
    if w.pmap.huge[slot] == SUPERPAGE:
        entry = slot * PMD_PAGES
    return int(w.pv.frame[w.pv.place_of[entry]])
