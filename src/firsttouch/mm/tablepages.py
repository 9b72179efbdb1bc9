"""Page-table pages in the terms of the event loop: tablecache.py, charged."""

from firsttouch.mm.fault import advance, credit
from firsttouch.mm.parts import part
from firsttouch.mm.tablecache import NR_TABLE_HITS, NR_TABLE_PAGES
from firsttouch.mm.world import ZEROED_BYTES, World


@part
def table_needed(w: World, cpu: int, t: int, slot: int, _: int) -> int:
    """A fault goes down to the page-table page of `slot`: make it if it is not there; return whether it was made."""
    tc = w.tablecache
    if tc.present[slot]:
        return 0
    tc.present[slot] = True
    tc.counts[NR_TABLE_PAGES] += 1
    if w.rules.recorded:  # the recording kernel made it, too
        credit(w, t, w.cost.table_page + w.cost.alloc + w.cost.zone_page + w.cost.zero_temporal[0])
    advance(w, cpu, w.cost.table_page)
    if tc.spare[cpu] > 0:
        tc.spare[cpu] -= 1
        tc.counts[NR_TABLE_HITS] += 1
        advance(w, cpu, w.cost.zone_page)
        return 1
    w.total[ZEROED_BYTES] += w.rules.page_bytes
    advance(w, cpu, w.cost.alloc + w.cost.zone_page + w.cost.zero[0])
    return 1


@part
def table_freed(w: World, cpu: int, slot: int, _b: int, _c: int) -> int:
    """Nothing is mapped in `slot` any more, and its address space ends: keep the page-table page, or free it."""
    tc = w.tablecache
    if tc.present[slot]:
        tc.present[slot] = False
        if tc.spare[cpu] < tc.cache_pages:
            tc.spare[cpu] += 1
        advance(w, cpu, w.cost.table_page + w.cost.zone_page)
    return 0
