"""The daemon that promotes, and a promotion itself: copy what a region maps into one block, zero the rest, map that.

The daemon has no CPU of its own. It takes an idle one, else one that scrubs, else the one whose clock is earliest: its
thread waits, which counts as scheduling latency. It looks at one region a step, and goes on where that step ended, so
threads run between two of its regions. While a region is promoted, mmap_lock and its mapping are held for writing.

Rules, state and invariants (K1 to K3) are in promotion.py. Everything here is a part: compiled when a policy promotes.
"""

from firsttouch._jit import state_kernel
from firsttouch.mm.buddy import NO_PFN
from firsttouch.mm.fault import ALLOC, advance, free_folio, take_block
from firsttouch.mm.hooks import PROMOTE, call, note_failure, settle
from firsttouch.mm.locks import MM
from firsttouch.mm.parts import part
from firsttouch.mm.pmap import (
    ANON_RO,
    ANON_RW,
    COLD,
    HUGE,
    MAPPED_PAGES,
    NEAR,
    NO_SLOT,
    NONE,
    NOT_HUGE,
    PEAK_PAGES,
    STATE,
    TOUCHED,
    UNTOUCHED_PAGES,
    WRITTEN,
    ZERO_PAGE,
)
from firsttouch.mm.promotion import (
    CURSOR,
    HAS_SLEPT,
    LEFT_PAGES,
    NEXT_NS,
    NO_MEMORY,
    NO_VMA,
    PLANNED_NS,
    PROMOTED,
    RECOVERED_PAGES,
    RECOVERING,
    ROUNDS,
    SCANNED,
    ZEROED_PAGES,
    bucket,
)
from firsttouch.mm.sched import BUSY, IDLE, LATENCY_NS, NOBODY, SCRUBBING
from firsttouch.mm.world import COPIED_BYTES, OUT_OF_MEMORY, SCRUB_NS, SYSTEM_NS, World
from firsttouch.units import PMD_ORDER, PMD_PAGES

RETRY_NS = 10_000  # a fault is under way in the region: look again after this
DONE, FAILED, TOO_FEW = range(3)  # what trying to promote a region came to
NO_REGION = -1


@state_kernel
def borrow_cpu(w: World, now_ns: int) -> int:
    """The CPU that the daemon runs on from `now_ns`: an idle one, else the one that is earliest; scrubbers give way."""
    s = w.sched
    for activity in (IDLE, SCRUBBING, BUSY):
        best = NOBODY
        for cpu in range(len(s.activity)):
            if s.activity[cpu] == activity and (best == NOBODY or s.clock_ns[cpu] < s.clock_ns[best]):
                best = cpu
        if best != NOBODY:
            s.idle_ns[best] += max(0, now_ns - s.clock_ns[best])
            s.clock_ns[best] = max(s.clock_ns[best], now_ns)
            return best
    return 0


@state_kernel
def mm_of(w: World, region: int) -> int:
    """The address space that a place of `pmap.slot` belongs to."""
    low, high = 0, len(w.pmap.table) - 1
    while low < high:
        middle = (low + high + 1) >> 1
        if w.pmap.table[middle] <= region:
            low = middle
        else:
            high = middle - 1
    return low


@state_kernel
def takes_part(w: World, mm: int, region: int, slot: int) -> bool:
    """Whether a region maps something and lies inside a mapping that may have superpages."""
    if slot == NO_SLOT or w.pmap.nr_mapped[slot] == 0 or w.promotion.vma[slot] == NO_VMA:
        return False
    vma = int(w.promotion.vma[slot])
    head = (region - w.pmap.table[mm]) << PMD_ORDER
    return bool(w.promotion.may[vma] and w.vmas.start[vma] <= head and head + PMD_PAGES <= w.vmas.end[vma])


@state_kernel
def touched_pages(w: World, slot: int) -> int:
    """How many of a region's pages the program has touched since they were mapped."""
    nr = 0
    for entry in range(slot * PMD_PAGES, (slot + 1) * PMD_PAGES):
        nr += w.pmap.state[entry] & TOUCHED != 0
    return nr


@state_kernel
def next_in_order(w: World) -> int:
    """By address: the next region from the cursor that takes part, NO_REGION when a second round would begin."""
    d, slots = w.promotion.daemon, w.pmap.slot
    while True:
        if d[CURSOR] >= len(slots):
            d[CURSOR] = 0
        if d[CURSOR] == 0:
            d[ROUNDS] += 1
            if d[ROUNDS] > 1:
                return NO_REGION
        mm = mm_of(w, d[CURSOR])
        while d[CURSOR] < len(slots):
            region = d[CURSOR]
            d[CURSOR] += 1
            while mm + 1 < len(w.pmap.table) and w.pmap.table[mm + 1] <= region:
                mm += 1
            if takes_part(w, mm, region, int(slots[region])):
                return int(region)


@state_kernel
def next_by_coverage(w: World) -> int:
    """By coverage: of regions that are no superpage the first of the highest bucket; NO_REGION if there is none."""
    best, highest = NO_REGION, -1
    mm = 0
    for region in range(len(w.pmap.slot)):
        slot = int(w.pmap.slot[region])
        while mm + 1 < len(w.pmap.table) and w.pmap.table[mm + 1] <= region:
            mm += 1
        if not takes_part(w, mm, region, slot) or w.pmap.huge[slot] == HUGE:
            continue
        if not may_promote(w, slot, (region - w.pmap.table[mm]) << PMD_ORDER, False):
            continue
        found = bucket(touched_pages(w, slot))
        if found > highest:
            best, highest = region, found
    return best


@state_kernel
def may_promote(w: World, slot: int, page: int, in_fault: bool) -> bool:
    """Whether the region's entries are within the limits, and the program uses at least one of its pages."""
    pm = w.pmap
    nr_none, nr_shared, nr_touched = 0, 0, 0
    for entry in range(slot * PMD_PAGES, (slot + 1) * PMD_PAGES):
        mapped = pm.state[entry] & STATE
        if mapped in (NONE, ZERO_PAGE):
            nr_none += 1
        elif mapped not in (ANON_RW, ANON_RO):
            return False
        elif mapped == ANON_RO:
            k = int(pm.folio_order[pm.pfn[entry]])
            nr_shared += k == 0 and pm.refs[pm.pfn[entry]] > 1
        nr_touched += pm.state[entry] & TOUCHED != 0
    if w.hooks.promote != 0:
        # The page of the fault is about to be touched.
        return ask_user(w, PMD_PAGES - nr_none, nr_touched + int(in_fault), nr_shared, page, in_fault)
    return bool(nr_none <= w.promotion.max_none and nr_shared <= w.promotion.max_shared and nr_touched)


@state_kernel
def ask_user(w: World, nr_mapped: int, nr_touched: int, nr_shared: int, page: int, in_fault: bool) -> bool:
    """Whether a user's function wants a region promoted."""
    nr_blocks = 0
    for zone in range(len(w.buddy.free_pages)):
        for z in range(2):
            for k in range(PMD_ORDER, w.buddy.nr_free.shape[2]):
                nr_blocks += int(w.buddy.nr_free[zone, z, k]) << (k - PMD_ORDER)
    answer = call(w.hooks.promote, nr_mapped, nr_touched, nr_shared, page, nr_blocks, int(in_fault))
    note_failure(w.answers, PROMOTE, answer, nr_mapped, nr_touched, nr_shared, page, nr_blocks, int(in_fault))
    return settle(w.answers, PROMOTE, answer, 0, 1) == 1


@state_kernel
def fault_under_way(w: World, mm: int, region: int) -> bool:
    """Whether a thread is inside a fault in this region."""
    pr = w.progress
    for t in range(len(pr.stage)):
        if pr.stage[t] >= ALLOC and pr.mm[t] == mm and w.pmap.table[mm] + (pr.step[t] >> PMD_ORDER) == region:
            return True
    return False


@state_kernel
def promote(w: World, cpu: int, mm: int, slot: int) -> bool:
    """Give a region one block in place of what it maps; charges `cpu`. False if memory has no such block."""
    pm, c = w.pmap, w.cost
    block, _ = take_block(w, cpu, PMD_ORDER, False)
    if block == NO_PFN:
        return False
    before = int(w.sched.clock_ns[cpu])
    advance(w, cpu, int(c.alloc_large[PMD_ORDER]))
    pm.counts[PEAK_PAGES] = max(pm.counts[PEAK_PAGES], pm.counts[MAPPED_PAGES] + PMD_PAGES)
    nr_copied, unmap_ns = 0, 0
    for i in range(PMD_PAGES):
        entry = slot * PMD_PAGES + i
        state, pfn = int(pm.state[entry]), int(pm.pfn[entry])
        if state & STATE in (ANON_RW, ANON_RO):
            nr_copied += 1
            k = int(pm.folio_order[pfn])
            unmap_ns += c.unmap_share[k]
            head = pfn & ~((1 << k) - 1)
            pm.refs[head] -= 1
            if pm.refs[head] == 0:
                pm.counts[MAPPED_PAGES] -= 1 << k
                free_folio(w, cpu, head)
            pm.state[entry] = ANON_RW | state & (TOUCHED | NEAR | WRITTEN)
        else:
            pm.state[entry] = ANON_RW | COLD | state & TOUCHED
        pm.pfn[entry] = block + i
        pm.folio_order[block + i] = PMD_ORDER
    pm.refs[block] = pm.nr_mapped[slot] = PMD_PAGES
    pm.counts[MAPPED_PAGES] += PMD_PAGES
    pm.huge[slot] = HUGE
    nr_zeroed = PMD_PAGES - nr_copied
    advance(w, cpu, unmap_ns + nr_copied * c.copy_page + nr_zeroed * int(c.zero_temporal[0]))
    w.total[COPIED_BYTES] += nr_copied * w.rules.page_bytes
    w.promotion.counts[ZEROED_PAGES] += nr_zeroed
    w.promotion.counts[PROMOTED] += 1
    held_until = int(w.sched.clock_ns[cpu])
    w.vma_locks.until_ns[mm] = max(w.vma_locks.until_ns[mm], held_until)
    w.vma_locks.vma[mm] = w.promotion.vma[slot]
    w.locks.hold_ns[MM] += held_until - before
    return True


@state_kernel
def look_at(w: World, cpu: int, region: int) -> int:
    """Scan a region and promote it if it is within the limits: DONE, TOO_FEW, or FAILED for want of memory."""
    mm = mm_of(w, region)
    slot = int(w.pmap.slot[region])
    w.promotion.counts[SCANNED] += 1
    if w.pmap.huge[slot] == HUGE:
        return TOO_FEW
    advance(w, cpu, PMD_PAGES * w.cost.scan_entry)
    if not may_promote(w, slot, (region - w.pmap.table[mm]) << PMD_ORDER, False):
        return TOO_FEW
    return DONE if promote(w, cpu, mm, slot) else FAILED


@state_kernel
def all_free_pages(w: World) -> int:
    """Free pages of all nodes."""
    nr = 0
    for zone in range(len(w.buddy.free_pages)):
        nr += int(w.buddy.free_pages[zone])
    return nr


@state_kernel
def recover_region(w: World, cpu: int, slot: int) -> None:
    """Look for pages of zeros in a superpage; if it has any, break it up and map the zero page in their places."""
    pm = w.pmap
    nr_zero = PMD_PAGES - touched_pages(w, slot)
    advance(w, cpu, PMD_PAGES * w.cost.scan_entry + nr_zero * w.cost.read_page)
    if nr_zero == 0 or not is_whole(w, slot):
        return
    pm.huge[slot] = NOT_HUGE
    for entry in range(slot * PMD_PAGES, (slot + 1) * PMD_PAGES):
        pfn = int(pm.pfn[entry])
        pm.folio_order[pfn] = 0
        pm.refs[pfn] = 1
        if pm.state[entry] & TOUCHED == 0:
            pm.counts[MAPPED_PAGES] -= 1
            pm.counts[UNTOUCHED_PAGES] += 1
            pm.state[entry] = ZERO_PAGE
            pm.pfn[entry] = NO_PFN
            free_folio(w, cpu, pfn)
    advance(w, cpu, nr_zero * w.cost.unmap_page)
    w.promotion.counts[RECOVERED_PAGES] += nr_zero


@state_kernel
def is_whole(w: World, slot: int) -> bool:
    """Whether the region is one block that nobody else maps."""
    first = slot * PMD_PAGES
    block = int(w.pmap.pfn[first])
    return bool(
        w.pmap.huge[slot] == HUGE
        and w.pmap.state[first] & STATE == ANON_RW
        and w.pmap.folio_order[block] == PMD_ORDER
        and w.pmap.refs[block] == PMD_PAGES
    )


@state_kernel
def recover_step(w: World, now_ns: int) -> None:
    """Recover the next superpage; back to promoting when enough is free, or all have been looked at."""
    d, slots = w.promotion.daemon, w.pmap.slot
    region = d[RECOVERING] - 1
    while region < len(slots) and (slots[region] == NO_SLOT or w.pmap.huge[slots[region]] != HUGE):
        region += 1
    if region >= len(slots) or all_free_pages(w) >= w.promotion.recover_until:
        d[RECOVERING] = 0
        d[NEXT_NS] = max(now_ns + 1, d[PLANNED_NS])
    elif fault_under_way(w, mm_of(w, region), region):
        d[RECOVERING] = region + 1
        d[NEXT_NS] = now_ns + RETRY_NS
    else:
        cpu, start_ns, system_ns = begin(w, now_ns)
        recover_region(w, cpu, int(slots[region]))
        end(w, cpu, start_ns, system_ns)
        d[RECOVERING] = region + 2
        d[NEXT_NS] = max(now_ns + 1, int(w.sched.clock_ns[cpu]))


@state_kernel
def begin(w: World, now_ns: int) -> tuple[int, int, int]:
    """The daemon gets a CPU: (cpu, its clock, system time so far)."""
    cpu = borrow_cpu(w, now_ns)
    return cpu, int(w.sched.clock_ns[cpu]), int(w.total[SYSTEM_NS])


@state_kernel
def end(w: World, cpu: int, start_ns: int, system_ns: int) -> None:
    """What the CPU was charged since `begin` is background time, and a delay of its thread."""
    took_ns = int(w.sched.clock_ns[cpu]) - start_ns
    w.total[SYSTEM_NS] = system_ns
    w.total[SCRUB_NS] += took_ns
    if w.sched.thread[cpu] != NOBODY:
        w.sched.counts[LATENCY_NS] += took_ns


@part
def promote_step(w: World, now_ns: int, _b: int, _c: int, _d: int) -> int:
    """One step of the daemon at `now_ns`: wake, or look at one region, or end the wake. Sets when it goes on."""
    p, d = w.promotion, w.promotion.daemon
    if d[RECOVERING] > 0:
        recover_step(w, now_ns)
        return 0
    if d[LEFT_PAGES] <= 0:
        d[LEFT_PAGES], d[ROUNDS], d[HAS_SLEPT] = p.scan_pages, 0, 0
    region = next_by_coverage(w) if p.by_coverage else next_in_order(w)
    if region == NO_REGION:
        d[LEFT_PAGES] = 0
        d[NEXT_NS] = now_ns + p.sleep_ns
        return 0
    if fault_under_way(w, mm_of(w, region), region):
        d[NEXT_NS] = now_ns + RETRY_NS
        if not p.by_coverage:
            d[CURSOR] = region  # the same region again
            if region == 0:
                d[ROUNDS] -= 1
        return 0
    cpu, start_ns, system_ns = begin(w, now_ns)
    found = look_at(w, cpu, region)
    end(w, cpu, start_ns, system_ns)
    d[LEFT_PAGES] -= PMD_PAGES
    d[NEXT_NS] = max(now_ns + 1, int(w.sched.clock_ns[cpu]))
    if found == FAILED:
        p.counts[NO_MEMORY] += 1
        if d[HAS_SLEPT]:
            d[LEFT_PAGES] = 0
        d[HAS_SLEPT] = 1
        if d[LEFT_PAGES] > 0:
            d[NEXT_NS] += p.alloc_sleep_ns
    if d[LEFT_PAGES] <= 0:
        d[NEXT_NS] += p.sleep_ns
    return 1


@part
def in_fault(w: World, cpu: int, mm: int, slot: int, region: int) -> int:
    """After a fault has mapped pages: recover if memory is short; promote the region if that is due. Whether it did."""
    d = w.promotion.daemon
    if d[RECOVERING] == 0 and all_free_pages(w) < w.promotion.recover_below:
        d[RECOVERING] = 1
        d[PLANNED_NS] = d[NEXT_NS]
        d[NEXT_NS] = w.sched.clock_ns[cpu]
    asks = w.hooks.promote != 0
    if not asks and (w.promotion.in_fault_pages == 0 or w.pmap.nr_mapped[slot] < w.promotion.in_fault_pages):
        return 0
    if w.pmap.huge[slot] == HUGE or not takes_part(w, mm, region, slot) or w.total[OUT_OF_MEMORY]:
        return 0
    for entry in range(slot * PMD_PAGES, (slot + 1) * PMD_PAGES):
        if w.pmap.state[entry] & STATE not in (NONE, ZERO_PAGE, ANON_RW):
            return 0
    if asks and not may_promote(w, slot, (region - w.pmap.table[mm]) << PMD_ORDER, True):
        return 0
    return int(promote(w, cpu, mm, slot))


@part
def fork(w: World, parent: int, child: int, _c: int, _d: int) -> int:
    """A child has its parent's mappings; the regions that take part."""
    nr = 0
    for region in range(min(w.pmap.nr_regions[parent], w.pmap.nr_regions[child])):
        source, target = w.pmap.slot[w.pmap.table[parent] + region], w.pmap.slot[w.pmap.table[child] + region]
        if source != NO_SLOT and target != NO_SLOT:
            w.promotion.vma[target] = w.promotion.vma[source]
            nr += 1
    return nr
