"""One page fault, in the order of the kernel. Read this file first.

A touch that the page tables do not serve goes through these stages, between which other CPUs may act (the step rule:
a stage ends where the CPU takes a lock, or is busy with a whole block):

  ENTER    trap; find the mapping; decide the service and the order
  ALLOC    take a block from the CPU's list, or from the zone under its lock
  FILL     zero it, or copy the old page
  AHEAD    where the policy prefaults: allocate, zero and map the pages after it, one by one
  INSTALL  under the page table's lock look again; map it, or give it back if another thread was first

**Recorded touches.** A trace holds touches that faulted on a real kernel with base pages. Replayed, such a touch is
served without a fault only if the policy mapped its page in a way that the recording kernel did not: with a larger
block, a wider window, or ahead of time. A page that is mapped by its own earlier touch, and faults again in the trace,
had lost its mapping in a way the trace does not show (reclaim; without root, munmap): it loses it here, too. So a
replay under the recording's own conditions has exactly as many faults as the trace has touches.

Follows Linux handle_mm_fault(), do_anonymous_page(), do_wp_page(), do_fault(); deviations: docs/deviations.md, "fault".
"""

from firsttouch._jit import inlined, state_kernel
from firsttouch.mm.buddy import NO_PFN, UNZEROED, ZEROED, zone_of
from firsttouch.mm.bus import occupy
from firsttouch.mm.faultahead import NO_PREFAULT, end_window, in_order, map_around, prefault_pages
from firsttouch.mm.hooks import FAILED, LOCK, NR_USER_LOCKS, ORDER, WINDOW, call, note_failure, settle
from firsttouch.mm.locks import MM, PAGE_TABLE, ZONE, acquire, acquire_unfair, node_of, share
from firsttouch.mm.parts import call_part, part
from firsttouch.mm.percpu import pcp_alloc, pcp_free
from firsttouch.mm.pmap import (
    ANON_RO,
    ANON_RW,
    COLD,
    FILE_RO,
    FILE_RW,
    FRESH,
    HUGE_ZERO,
    NEAR,
    NO_SLOT,
    NONE,
    NOT_HUGE,
    RESIDENT,
    SHMEM,
    STATE,
    TOUCHED,
    WRITTEN,
    ZERO_PAGE,
    Pmap,
    all_none,
    clear_entry,
    find_slot,
    map_block,
    map_pfnless,
    mark_touched,
    need_slot,
)
from firsttouch.mm.pmap import HUGE as HUGE_REGION
from firsttouch.mm.scrub import wake_after_free
from firsttouch.mm.superpage import choose_order, next_order, room_order, superpage_fits
from firsttouch.mm.world import (
    ATOMIC,
    COLD_NS,
    COPIED_BYTES,
    COW,
    CREDIT_NS,
    FAULT_NS,
    FILE,
    GLOBAL,
    HITS,
    HUGE,
    MISSES,
    MM_WIDE,
    MMAP_LOCK_FAULTS,
    NO_FAULT,
    NR_BINS,
    OUT_OF_MEMORY,
    REUSE,
    SHARED_FILL,
    SOFT,
    SPURIOUS,
    SYSTEM_NS,
    THINK_NS,
    ZERO_FILL,
    ZERO_PAGE_READ,
    ZEROED_BYTES,
    World,
)
from firsttouch.units import PMD_ORDER, PMD_PAGES
from firsttouch.workload import ANON, KEPT, KERNEL, PROTECTION, RACED, RECORDED, SHARED, WRITE
from firsttouch.workload import SHMEM as SHMEM_VMA

ENTER, ALLOC, FILL, AHEAD, INSTALL = range(2, 7)  # stages; the earlier ones are simulate.THINK and simulate.START


@inlined
def entry_of(slot: int, page: int) -> int:
    """Where `page`'s entry is in the flat arrays of a slot's region."""
    return slot * PMD_PAGES + (page & (PMD_PAGES - 1))


@inlined
def service_of_mapped(w: World, state: int, kind: int, flags: int) -> int:
    """What a touch of a mapped page needs: NO_FAULT, or the service of its fault."""
    mapped = state & STATE
    if mapped == RESIDENT:
        return COW if kind & WRITE and flags & SHMEM_VMA == 0 else SOFT
    if kind & RACED:
        return SPURIOUS if state & (FRESH | NEAR) else NO_FAULT
    if kind & WRITE:
        if mapped == ZERO_PAGE:
            return ZERO_FILL
        if mapped == ANON_RO:
            return COW
        if mapped == FILE_RO:
            return REUSE if flags & SHARED else COW
        if kind & PROTECTION and kind & RECORDED and (state & WRITTEN or mapped != ANON_RW):
            return REUSE  # it had no write permission (mprotect, soft-dirty), whatever the model thinks
    return NO_FAULT


@inlined
def is_better_mapped(kind: int, state: int) -> bool:
    """Whether a recorded touch needs no fault because the policy mapped its page as the recording kernel had not."""
    if state & NEAR:
        return False
    return kind & (RACED | KEPT) != 0 or state & TOUCHED == 0 or kind & (PROTECTION | WRITE) == PROTECTION | WRITE


@inlined
def service_of_none(kind: int, flags: int) -> int:
    """The service of a fault on a page that nothing maps."""
    if flags & SHMEM_VMA:
        return SHARED_FILL
    if flags & ANON == 0:
        return COW if kind & WRITE and flags & SHARED == 0 else FILE
    if kind & WRITE == 0:
        return ZERO_PAGE_READ
    return COW if kind & PROTECTION else ZERO_FILL


@inlined
def recorded_cost(w: World, kind: int, flags: int, state: int) -> int:
    """What this touch's fault cost in the recording, recording included: kernel time inside the gap that follows it."""
    c = w.cost
    if kind & RACED:
        return c.trap + c.record
    if flags & SHMEM_VMA:
        return c.trap + c.record + c.alloc + c.zone_page + int(c.zero_temporal[0])
    if flags & ANON == 0 and (kind & WRITE == 0 or flags & SHARED):
        return c.trap + c.record + c.file_map + (w.rules.recorded_window_pages - 1) * c.map_page
    if kind & WRITE == 0:
        return c.trap + c.record
    copied = (kind & PROTECTION and state & STATE != ZERO_PAGE) or flags & ANON == 0
    return c.trap + c.record + c.alloc + c.zone_page + (c.copy_page if copied else c.zero_temporal[0])


@part
def touch(w: World, cpu: int, t: int, e: int, limit_ns: int) -> int:
    """Do (or go on with) one touch of event `e` of thread `t`; return whether it is done, or stopped past the limit."""
    mm = int(w.progress.mm[t])
    page = w.progress.step[t]
    if w.progress.stage[t] < ALLOC:
        slot = need_slot(w.pmap, mm, page)
        if slot == NO_SLOT:
            return 1
        if not enter(w, cpu, t, e, mm, slot, entry_of(slot, page)):
            return 1
        if w.sched.clock_ns[cpu] > limit_ns:
            return 0
    if w.progress.stage[t] == ALLOC:
        if not allocate(w, cpu, t):
            return 1
        if w.sched.clock_ns[cpu] > limit_ns:
            return 0
    if w.progress.stage[t] == FILL:
        fill(w, cpu, t)
        if w.sched.clock_ns[cpu] > limit_ns:
            return 0
    while w.progress.stage[t] == AHEAD:
        map_next(w, cpu, t, mm)
        if w.sched.clock_ns[cpu] > limit_ns:
            return 0
    install(w, cpu, t, e, mm)
    return 1


@inlined
def enter(w: World, cpu: int, t: int, e: int, mm: int, slot: int, entry: int) -> bool:
    """ENTER: serve the touch if the page is mapped for it (return False), else trap and decide what the fault needs."""
    pm, pr = w.pmap, w.progress
    kind, vma = int(w.events.kind[e]), int(w.events.vma[e])
    flags = int(w.vmas.flags[vma])
    state = int(pm.state[entry])
    if kind & RECORDED:
        credit(w, t, recorded_cost(w, kind, flags, state))
    service = NO_FAULT
    if state & STATE != NONE:
        service = service_of_mapped(w, state, kind, flags)
        if service == NO_FAULT:
            if kind & RECORDED == 0 or is_better_mapped(kind, state):
                pm.state[entry] = state & ~FRESH
                serve(w, cpu, mm, entry, kind)
                return False
            free_folio(w, cpu, clear_entry(pm, mm, slot, entry))
    if service == NO_FAULT:
        service = service_of_none(kind, flags)
        if service == ZERO_PAGE_READ and not w.rules.zero_page:
            service = ZERO_FILL
    page = pr.step[t]
    pr.start_ns[t] = w.sched.clock_ns[cpu]
    pr.order[t] = 0
    orders = int(w.vma_orders[vma])
    start, end = w.vmas.start[vma], w.vmas.end[vma]
    if service == ZERO_FILL:
        if pm.state[entry] & STATE == NONE:
            if w.hooks.order != 0:
                room = room_order(pm, slot, start, end, page)
                free = free_pages(w, cpu)
                wanted = call(w.hooks.order, orders, room, page, start, end, free)
                note_failure(w.answers, ORDER, wanted, orders, room, page, start, end, free)
                pr.order[t] = settle(w.answers, ORDER, wanted, 0, room)
            else:
                pr.order[t] = choose_order(pm, slot, start, end, page, orders)
        elif pm.huge[slot] == HUGE_ZERO:
            pr.order[t] = PMD_ORDER
    elif service == ZERO_PAGE_READ and w.rules.use_zero_page and superpage_fits(pm, slot, start, end, page, orders):
        pr.order[t] = PMD_ORDER
    elif service == COW and pm.state[entry] & STATE in (ANON_RO, RESIDENT) and is_last_user(pm, slot, entry):
        service = REUSE if pm.state[entry] & STATE == ANON_RO else SOFT
    pr.service[t] = service
    pr.window[t], pr.mapped[t] = 1, 1
    if service == ZERO_FILL and pr.order[t] == 0:
        if w.hooks.window != 0:
            run, last = in_order(w.prefault, t, page)
            free = free_pages(w, cpu)
            wanted = call(w.hooks.window, run, last, page, start, end, free)
            note_failure(w.answers, WINDOW, wanted, run, last, page, start, end, free)
            wanted = settle(w.answers, WINDOW, wanted, 1, max(1, min(end, (page | (PMD_PAGES - 1)) + 1) - page))
            pr.window[t] = end_window(w.prefault, t, page, wanted, end)
        elif w.prefault.rule != NO_PREFAULT:
            pr.window[t] = prefault_pages(w.prefault, t, page, end)
    advance(w, cpu, w.cost.trap + lock_mm(w, cpu, mm, vma, kind, service == ZERO_FILL))
    if w.parts.table_needed != 0:
        call_part(w.parts.table_needed, w, cpu, t, slot, 0)
    if w.rules.page_table == MM_WIDE:
        lock_table(w, cpu, mm, slot, page, vma, w.cost.walk)
    pr.stage[t] = ALLOC if service in (ZERO_FILL, COW) else INSTALL
    if service == SHARED_FILL:
        advance(w, cpu, w.cost.alloc + w.cost.zone_page + w.cost.zero[0])
    return True


@state_kernel
def is_last_user(pm: Pmap, slot: int, entry: int) -> bool:
    """Whether only this region maps the folio behind `entry`, each page once, so that a write may keep the page."""
    pfn = int(pm.pfn[entry])
    k = int(pm.folio_order[pfn])
    if k == 0:
        return bool(pm.refs[pfn] == 1)
    head = pfn & ~((1 << k) - 1)
    first = entry - (pfn - head)
    nr = 0
    for i in range(max(first, slot * PMD_PAGES), min(first + (1 << k), (slot + 1) * PMD_PAGES)):
        if pm.state[i] != NONE and pm.pfn[i] == head + i - first:
            nr += 1
    return bool(pm.refs[head] == nr)


@state_kernel
def map_resident(pm: Pmap, slot: int, entry: int) -> None:
    """Map a page that the process has without its being mapped: read-only if others have it too."""
    state = ANON_RO
    if pm.pfn[entry] == NO_PFN:
        state = SHMEM
    elif is_last_user(pm, slot, entry):
        state = ANON_RW
    pm.state[entry] = int(pm.state[entry]) & ~STATE | state


@state_kernel
def free_pages(w: World, cpu: int) -> int:
    """Free pages of the CPU's own node."""
    nr_zones = len(w.buddy.free_pages)
    return int(w.buddy.free_pages[cpu * nr_zones // len(w.sched.clock_ns)])


@inlined
def lock_mm(w: World, cpu: int, mm: int, vma: int, kind: int, fills: bool) -> int:
    """The address space's shared line: a per-VMA lock or mmap_lock taken for reading, and the counters beside it.

    Under mmap_lock the line travels twice, to take it and to let go, and whoever has it for writing holds it up. A
    fault that would lock its mapping takes mmap_lock all the same in kernel mode, while the mapping is locked for
    writing, and when the first write that fills it with anonymous memory finds mmap_lock held for writing.
    """
    lock = len(w.buddy.free_pages) + mm
    now = w.sched.clock_ns[cpu]
    held_ns = max(0, int(w.vma_locks.until_ns[mm]) - int(now))
    if w.rules.per_vma and kind & KERNEL == 0:
        may_try = held_ns == 0 or w.vma_locks.vma[mm] != vma
        if fills and w.vma_locks.has_anon[vma] == 0:
            w.vma_locks.has_anon[vma] = 1
            may_try = held_ns == 0
        if may_try:
            return share(w.locks, MM, lock, cpu, now, w.cost.handoff, w.cost.line_waiter)
    w.total[MMAP_LOCK_FAULTS] += 1
    w.locks.wait_ns[MM] += held_ns
    return held_ns + share(w.locks, MM, lock, cpu, now + held_ns, 2 * w.cost.handoff, w.cost.line_waiter)


@state_kernel
def user_lock(w: World, cpu: int, mm: int, page: int, vma: int) -> int:
    """The lock that a user's function says covers `page`."""
    start, end = w.vmas.start[vma], w.vmas.end[vma]
    wanted = call(w.hooks.lock, page, mm, start, end, cpu, NR_USER_LOCKS)
    note_failure(w.answers, LOCK, wanted, page, mm, start, end, cpu, NR_USER_LOCKS)
    inside = wanted % NR_USER_LOCKS
    w.answers.bounded[LOCK] += wanted != FAILED and inside != wanted
    return int(len(w.locks.free_at_ns) - NR_USER_LOCKS + inside)


@inlined
def lock_table(w: World, cpu: int, mm: int, slot: int, page: int, vma: int, hold_ns: int) -> None:
    """The lock of the page tables, for `hold_ns` that are charged elsewhere: of the region, the mm, or the system."""
    lock = len(w.buddy.free_pages) + len(w.mm_users)
    if w.hooks.lock != 0:
        lock = user_lock(w, cpu, mm, page, vma)
    elif w.rules.page_table == MM_WIDE:
        lock += mm
    elif w.rules.page_table != GLOBAL:
        lock += len(w.mm_users) + slot
    now = w.sched.clock_ns[cpu]
    if w.rules.page_table == ATOMIC:
        kept = hold_ns + share(w.locks, PAGE_TABLE, lock, cpu, now, w.cost.handoff, w.cost.line_waiter)
    elif w.parts.spin != 0:
        kept = call_part(w.parts.spin, w, cpu, lock, hold_ns, 0)
    else:
        kept = acquire(w.locks, PAGE_TABLE, lock, cpu, now, hold_ns, w.cost.handoff, w.cost.waiter)
    advance(w, cpu, kept - hold_ns)


@part
def spin(w: World, cpu: int, lock: int, hold_ns: int, _: int) -> int:
    """Take the lock of a kernel whose locks are test-and-set."""
    now = w.sched.clock_ns[cpu]
    return acquire_unfair(w.locks, PAGE_TABLE, lock, cpu, now, hold_ns, w.cost.handoff, w.cost.waiter)


@inlined
def advance(w: World, cpu: int, ns: int) -> None:
    """Charge kernel time to a CPU."""
    w.sched.clock_ns[cpu] += ns
    w.total[SYSTEM_NS] += ns


@inlined
def credit(w: World, t: int, ns: int) -> None:
    """Kernel time that the thread's recorded gaps hold, and that the model charges by itself."""
    w.progress.credit_ns[t] += ns
    w.total[CREDIT_NS] += ns


@inlined
def serve(w: World, cpu: int, mm: int, entry: int, kind: int) -> None:
    """The program gets its page: mark it touched, and let it pay for its lines, more if they are in no cache."""
    mark_touched(w.pmap, mm, entry)
    w.sched.clock_ns[cpu] += w.cost.touch_page
    w.total[THINK_NS] += w.cost.touch_page
    if kind & WRITE:
        w.pmap.state[entry] |= WRITTEN
    if w.pmap.state[entry] & COLD:
        w.pmap.state[entry] = int(w.pmap.state[entry]) & ~COLD
        ns = w.cost.cold_page
        if w.cost.remote_cold_page + w.cost.bus_cold_page > 0:
            ns = cold_touch_ns(w, cpu, int(w.pmap.pfn[entry]))
        w.sched.clock_ns[cpu] += ns
        w.total[COLD_NS] += ns


@state_kernel
def cold_touch_ns(w: World, cpu: int, pfn: int) -> int:
    """What its user pays more for a page in no cache: the lines come from its node's memory, over this node's bus."""
    ns = w.cost.cold_page
    if pfn != NO_PFN and zone_of(w.buddy, pfn) != node_of(w.locks, cpu):
        ns += w.cost.remote_cold_page
    return on_bus(w, cpu, ns, w.cost.bus_cold_page)


@inlined
def on_bus(w: World, cpu: int, ns: int, bus_ns: int) -> int:
    """How long a transfer takes that takes `ns` alone and the bus of the CPU's node for `bus_ns`."""
    if bus_ns == 0:
        return ns
    return occupy(w.bus, cpu * len(w.bus.free_at_ns) // len(w.sched.clock_ns), w.sched.clock_ns[cpu], ns, bus_ns)


@state_kernel
def read_lines(w: World, cpu: int, ns: int, lines: int) -> None:
    """The program reads lines of files that are in no cache: over the bus of node 0, where files lie."""
    bus_ns = w.cost.bus_page * lines * w.rules.line_bytes // (2 * w.rules.page_bytes)
    if bus_ns:
        ns = occupy(w.bus, 0, w.sched.clock_ns[cpu], ns, bus_ns)
    w.sched.clock_ns[cpu] += ns
    w.total[THINK_NS] += ns


@inlined
def take_block(w: World, cpu: int, k: int, want_zeroed: bool) -> tuple[int, int]:
    """2**k pages for what `cpu` is at, as the policy's kernel takes them: (pfn or NO_PFN, zero state)."""
    taken = call_part(w.parts.take_block, w, cpu, k, int(want_zeroed), 0)
    if taken < 0:
        return NO_PFN, UNZEROED
    return taken >> 1, taken & 1


@part
def take_from_lists(w: World, cpu: int, k: int, want_zeroed: int, _: int) -> int:
    """2**k pages from the CPU's own node, or another; charges the zone lock. 2 * pfn + zero state, or NO_PFN."""
    nr_zones = len(w.buddy.free_pages)
    zone = cpu * nr_zones // len(w.sched.clock_ns) if nr_zones > 1 else 0
    for _node in range(nr_zones):
        pfn, z, moved = pcp_alloc(w.percpu, w.buddy, cpu, zone, k, want_zeroed != 0)
        if moved:
            hold = w.cost.zone_page * (moved if k == 0 else 1)
            advance(
                w, cpu, acquire(w.locks, ZONE, zone, cpu, w.sched.clock_ns[cpu], hold, w.cost.handoff, w.cost.waiter)
            )
        if pfn != NO_PFN:
            return 2 * pfn + z
        zone = zone + 1 if zone + 1 < nr_zones else 0
    return NO_PFN


@inlined
def free_folio(w: World, cpu: int, head: int) -> None:
    """Give back a folio that nothing maps (none if `head` is NO_PFN), as the policy's kernel does."""
    if head != NO_PFN:
        call_part(w.parts.free_folio, w, cpu, head, 0, 0)


@part
def free_to_lists(w: World, cpu: int, head: int, _b: int, _c: int) -> int:
    """Give a folio back to the CPU's lists, or to its zone; wake the scrubber if blocks merged far."""
    k = int(w.pmap.folio_order[head])
    zone = zone_of(w.buddy, head)
    z = UNZEROED
    if w.rules.init_on_free:
        z = ZEROED
        advance(w, cpu, w.cost.zero_temporal[k])
        w.total[ZEROED_BYTES] += w.rules.page_bytes << k
    spilled, merged = pcp_free(w.percpu, w.buddy, cpu, zone, head, k, z)
    if spilled:
        hold = w.cost.zone_page * (spilled if k == 0 else 1)
        advance(w, cpu, acquire(w.locks, ZONE, zone, cpu, w.sched.clock_ns[cpu], hold, w.cost.handoff, w.cost.waiter))
    if w.rules.scrub:
        now = int(w.sched.clock_ns[cpu])
        wake_after_free(w.scrub, w.scrub_rules, w.buddy, zone, merged, int(w.load.avenrun[0]), now)
    return 0


@inlined
def zero_block(w: World, cpu: int, pfn: int, k: int, z: int) -> None:
    """Zero a block for a user who wants zeros, unless it came zeroed: longer if it is far, or the bus is busy."""
    if z == ZEROED:
        w.total[HITS] += 1
        return
    w.total[MISSES] += 1
    w.total[ZEROED_BYTES] += w.rules.page_bytes << k
    ns = int(w.cost.zero[k])
    nr_nodes = len(w.bus.free_at_ns)
    node = cpu * nr_nodes // len(w.sched.clock_ns) if nr_nodes > 1 else 0
    if nr_nodes > 1 and zone_of(w.buddy, pfn) != node:
        ns += w.cost.remote_page << k
    advance(w, cpu, on_bus(w, cpu, ns, w.cost.bus_page << k))
    w.sched.clock_ns[cpu] += w.cost.write_drain
    w.total[COLD_NS] += w.cost.write_drain


@inlined
def coldness(w: World, k: int, z: int) -> int:
    """COLD if the lines of a block that came with zero state `z` are in no cache when it is mapped."""
    return COLD if w.cost.leaves_cold[k] or (z == ZEROED and not w.rules.hot_zeroed) else 0


@state_kernel
def allocate(w: World, cpu: int, t: int) -> bool:
    """ALLOC: a block of the fault's order, or of the next lower one that memory has. False: out of memory."""
    pr = w.progress
    k = int(pr.order[t])
    zeros = pr.service[t] == ZERO_FILL
    pfn, z = take_block(w, cpu, k, zeros)
    while pfn == NO_PFN and k > 0:
        k = next_order(int(w.vma_orders[w.events.vma[w.sched.next_event[t]]]), k)
        pfn, z = take_block(w, cpu, k, zeros)
    if pfn == NO_PFN:
        w.total[OUT_OF_MEMORY] = 1
        return False
    pr.order[t], pr.pfn[t], pr.zeroed[t] = k, pfn, z
    advance(w, cpu, w.cost.alloc if k == 0 else w.cost.alloc_large[k])
    pr.stage[t] = FILL
    return True


@state_kernel
def fill(w: World, cpu: int, t: int) -> None:
    """FILL: zero the block unless it came zeroed, or copy one page."""
    pr = w.progress
    k = int(pr.order[t])
    if pr.service[t] == COW:
        advance(w, cpu, on_bus(w, cpu, w.cost.copy_page, w.cost.bus_copy_page))
        w.total[COPIED_BYTES] += w.rules.page_bytes
    else:
        zero_block(w, cpu, int(pr.pfn[t]), k, int(pr.zeroed[t]))
    pr.stage[t] = INSTALL if pr.window[t] == 1 else AHEAD


@state_kernel
def map_next(w: World, cpu: int, t: int, mm: int) -> None:
    """AHEAD: one more page of the window, if nothing maps it; past the last one, on to INSTALL."""
    pr, pm = w.progress, w.pmap
    page = pr.step[t] + pr.mapped[t]
    if pr.mapped[t] >= pr.window[t]:
        pr.stage[t] = INSTALL
        return
    pr.mapped[t] += 1
    slot = find_slot(pm, mm, page)
    entry = entry_of(slot, page)
    if pm.state[entry] != NONE:
        return
    pfn, z = take_block(w, cpu, 0, True)
    if pfn == NO_PFN:
        pr.window[t] = pr.mapped[t]  # it is only ahead of time: the fault itself has its page
        return
    advance(w, cpu, w.cost.alloc + w.cost.map_page)
    zero_block(w, cpu, pfn, 0, z)
    map_block(pm, mm, slot, entry, pfn, 0, ANON_RW | coldness(w, 0, z))


@inlined
def install(w: World, cpu: int, t: int, e: int, mm: int) -> None:
    """INSTALL: map what the fault prepared, under the page table's lock, and let the program have its page."""
    pm, pr = w.pmap, w.progress
    page, vma = pr.step[t], int(w.events.vma[e])
    slot = find_slot(pm, mm, page)
    entry = entry_of(slot, page)
    service = int(pr.service[t])
    lock_table(w, cpu, mm, slot, page, vma, w.cost.install)
    if service == ZERO_FILL:
        service = install_zero_fill(w, cpu, t, mm, slot, entry)
    elif service == COW:
        install_copy(w, cpu, t, mm, slot, entry)
    elif service == REUSE:
        install_reuse(pm, slot, entry)
    elif service == ZERO_PAGE_READ:
        install_zero_page(pm, slot, entry, int(pr.order[t]))
    elif service == FILE:
        install_file(w, cpu, t, slot, entry, page, vma, int(w.events.kind[e]))
    elif service == SHARED_FILL and pm.state[entry] & STATE == NONE:
        map_pfnless(pm, slot, entry, SHMEM)
    elif service == SOFT and pm.state[entry] & STATE == RESIDENT:
        map_resident(pm, slot, entry)
    if w.parts.promote_in_fault != 0 and service in (ZERO_FILL, HUGE):
        w.promotion.vma[slot] = vma
        call_part(w.parts.promote_in_fault, w, cpu, mm, slot, w.pmap.table[mm] + (page >> PMD_ORDER))
    if w.parts.neighbours != 0:
        call_part(w.parts.neighbours, w, cpu, t, slot, service)
    count_fault(w, service, w.sched.clock_ns[cpu] - pr.start_ns[t])
    if pm.state[entry] & STATE != NONE:  # else another thread unmapped it meanwhile
        pm.state[entry] |= FRESH
        serve(w, cpu, mm, entry, int(w.events.kind[e]))


@state_kernel
def install_zero_fill(w: World, cpu: int, t: int, mm: int, slot: int, entry: int) -> int:
    """Map a zeroed block, replacing a zero page. Returns the service it was (SPURIOUS: another thread was first)."""
    pm, pr = w.pmap, w.progress
    k, pfn = int(pr.order[t]), int(pr.pfn[t])
    first = entry & ~((1 << k) - 1)
    if pm.state[entry] & STATE == ZERO_PAGE:
        if k == PMD_ORDER and pm.huge[slot] == HUGE_ZERO:
            for i in range(first, first + PMD_PAGES):
                if pm.state[i] & STATE == ZERO_PAGE:
                    clear_entry(pm, mm, slot, i)
        else:
            pm.huge[slot] = NOT_HUGE
            clear_entry(pm, mm, slot, entry)
    if not all_none(pm, first, 1 << k):
        pm.folio_order[pfn] = k
        free_folio(w, cpu, pfn)
        return SPURIOUS if pm.state[entry] & STATE != NONE else retry_small(w, cpu, t, mm, slot, entry)
    map_block(pm, mm, slot, first, pfn, k, ANON_RW | coldness(w, k, int(pr.zeroed[t])))
    if k == PMD_ORDER:
        pm.huge[slot] = HUGE_REGION
        return HUGE
    return ZERO_FILL


@state_kernel
def retry_small(w: World, cpu: int, t: int, mm: int, slot: int, entry: int) -> int:
    """A neighbour was mapped meanwhile, so the block no longer fits: the kernel returns and the touch faults again."""
    pr = w.progress
    count_fault(w, SPURIOUS, w.sched.clock_ns[cpu] - pr.start_ns[t])
    pr.start_ns[t] = w.sched.clock_ns[cpu]
    pr.order[t] = 0
    advance(w, cpu, w.cost.trap)
    if not allocate(w, cpu, t):
        return SPURIOUS
    fill(w, cpu, t)
    map_block(w.pmap, mm, slot, entry, int(pr.pfn[t]), 0, ANON_RW | coldness(w, 0, int(pr.zeroed[t])))
    return ZERO_FILL


@state_kernel
def install_copy(w: World, cpu: int, t: int, mm: int, slot: int, entry: int) -> None:
    """Map the copy in place of the page that was shared."""
    pm = w.pmap
    if pm.state[entry] & STATE != NONE:
        free_folio(w, cpu, clear_entry(pm, mm, slot, entry))
    map_block(pm, mm, slot, entry, int(w.progress.pfn[t]), 0, ANON_RW)


@state_kernel
def install_reuse(pm: Pmap, slot: int, entry: int) -> None:
    """Make what is mapped writable: one entry, or the whole superpage."""
    first, end = entry, entry + 1
    if pm.huge[slot] == HUGE_REGION:
        first, end = slot * PMD_PAGES, (slot + 1) * PMD_PAGES
    for i in range(first, end):
        mapped = pm.state[i] & STATE
        if mapped == ANON_RO:
            pm.state[i] = int(pm.state[i]) & ~STATE | ANON_RW
        elif mapped == FILE_RO:
            pm.state[i] = int(pm.state[i]) & ~STATE | FILE_RW


@state_kernel
def install_zero_page(pm: Pmap, slot: int, entry: int, k: int) -> None:
    """Map the zero page, or the huge one over the whole region."""
    if k == PMD_ORDER and pm.nr_mapped[slot] == 0:
        first = entry & ~(PMD_PAGES - 1)
        for i in range(first, first + PMD_PAGES):
            map_pfnless(pm, slot, i, ZERO_PAGE)
        pm.huge[slot] = HUGE_ZERO
    elif pm.state[entry] & STATE == NONE:
        map_pfnless(pm, slot, entry, ZERO_PAGE)


@state_kernel
def install_file(w: World, cpu: int, t: int, slot: int, entry: int, page: int, vma: int, kind: int) -> None:
    """Map a page of a file, and on a read those around it."""
    pm = w.pmap
    window = w.rules.window_pages
    advance(w, cpu, w.cost.file_map + (window - 1) * w.cost.map_page)
    if pm.state[entry] & STATE != NONE:
        return
    map_pfnless(pm, slot, entry, FILE_RW if kind & WRITE else FILE_RO)
    if kind & WRITE == 0 and window > 1:
        map_around(pm, slot, w.vmas.start[vma], w.vmas.end[vma], page, window, w.rules.recorded_window_pages)


@inlined
def count_fault(w: World, service: int, ns: int) -> None:
    """One fault, from trap to return."""
    w.served[service] += 1
    w.total[FAULT_NS] += ns
    w.max_latency_ns[0] = max(w.max_latency_ns[0], ns)
    w.latency[latency_bin(ns)] += 1


@inlined
def latency_bin(ns: int) -> int:
    """The 1/8-octave bin of a latency: 8 * floor(log2) plus the next three bits."""
    if ns < 8:
        return max(0, ns)
    octave, rest = 0, ns
    for half in (32, 16, 8, 4, 2, 1):
        if rest >> half:
            rest >>= half
            octave += half
    return min(NR_BINS - 1, octave * 8 + (ns >> (octave - 3)) - 8)
