"""The event loop: a workload on a machine under a policy comes to an outcome.

**The step rule.** The CPU whose clock is earliest goes next, and goes on only while no other CPU, and no timer, is
earlier: to the end of an event, or of a fault's stage. So a lock is never taken in the future of a CPU that would ask
for it sooner. With one busy CPU nothing else is earlier, and it runs through its events without going back.

**Recorded gaps.** The time between two recorded touches holds what the kernel did for the first. That part is charged
anew under the policy, so it is taken off the gap: a thread's `credit_ns` is kernel time already in its recording that
the model has charged by itself. What a gap cannot cover is carried to the next.

**Idle time** belongs to the scrubber, where the policy has one: a CPU that nobody wants zeroes one block after another
until there is nothing left to zero, and gives way as the idle class of `sched` does.
"""

from __future__ import annotations

import numpy as np

from firsttouch._hook import NAMES
from firsttouch._jit import inlined, state_kernel
from firsttouch._packed import packed
from firsttouch.errors import FirsttouchError
from firsttouch.machine import Machine
from firsttouch.mm.buddy import NO_PFN
from firsttouch.mm.counting import BEGIN, begin_counting, end_counting, thread_times
from firsttouch.mm.daemon import land, next_daemon_ns, scrub_in_idle_time, scrub_step
from firsttouch.mm.fault import (
    advance,
    coldness,
    credit,
    entry_of,
    free_folio,
    read_lines,
    take_block,
    zero_block,
)
from firsttouch.mm.hooks import blame
from firsttouch.mm.kernels import lock_bytes, lock_uses, with_parts
from firsttouch.mm.locks import MM
from firsttouch.mm.outcome import Disturbances, Latency, Outcome
from firsttouch.mm.parts import call_part, part
from firsttouch.mm.placement import BY_PACK, BY_SPREAD, nr_alive, place_of, start
from firsttouch.mm.pmap import (
    ANON_RW,
    NEAR,
    NO_SLOT,
    NONE,
    PEAK_PAGES,
    SLOTS_FULL,
    STATE,
    TOUCHED,
    UNTOUCHED_PAGES,
    clear_entry,
    find_slot,
    fork_tables,
    map_block,
    move_entry,
    need_slot,
    release_slot,
)
from firsttouch.mm.pmap import HUGE as HUGE_REGION
from firsttouch.mm.promotion import NEXT_NS, NO_VMA, PROMOTED, RECOVERED_PAGES, ZEROED_PAGES
from firsttouch.mm.sched import (
    IDLE,
    JOINING,
    LATENCY_NS,
    NEVER_NS,
    NOBODY,
    NR_READY,
    NR_TIMERS,
    SCRUBBING,
    WAITING,
    Sched,
    add_timer,
    end_thread,
    join,
    leave_cpu,
    pop_timer,
    preempt,
    sleep_for_io,
    stop_joining,
    wait,
    wake,
    wake_waiting,
)
from firsttouch.mm.superpage import choose_order, next_order
from firsttouch.mm.tablecache import NR_TABLE_HITS, NR_TABLE_PAGES
from firsttouch.mm.world import (
    BEGUN_NS,
    BEGUN_PAGES,
    COLD_NS,
    COPIED_BYTES,
    CREDIT_NS,
    FAULT_NS,
    HITS,
    HOT_ZEROED_BYTES,
    LIVE_MMS,
    MISSES,
    MMAP_LOCK_FAULTS,
    NEXT_SUPPLY_NS,
    NR_SUPPLY,
    NR_SUPPLY_POINTS,
    OUT_OF_MEMORY,
    PAUSED,
    PEAK_MMS,
    POPULATED_PAGES,
    SCRUB_NS,
    SERVICES,
    SUPPLY_STEP_NS,
    SYSTEM_NS,
    THINK_NS,
    WALL_NS,
    ZEROED_BYTES,
    World,
    make_world,
)
from firsttouch.policy import Policy
from firsttouch.units import PMD_ORDER, PMD_PAGES
from firsttouch.workload import (
    ANON,
    EXEC,
    EXIT,
    FORK,
    JOIN,
    MAP,
    MEASURE,
    MOVE,
    NORESERVE,
    POPULATE,
    READ,
    SHARED,
    SHMEM,
    SLEEP,
    STACK,
    SYSCALL,
    TOUCH,
    UNMAP,
    WAIT,
    WAKE,
    WRITABLE,
    YIELD,
    Workload,
)
from firsttouch.workload.pooled import pooled

THINK, START = 0, 1  # stages of an event; a touch goes on with those of fault.py

MIN_SLOTS = 1024
SUPPLY_FIRST_STEP_NS = 1_000_000


@state_kernel
def run(w: World) -> None:
    """Replay all events, or go on after a MEASURE, at which it stops."""
    s = w.sched
    if w.total[SUPPLY_STEP_NS] == 0:
        for t in range(len(s.state)):
            next_event(w, t, s.next_event[t])
            if w.threads.parent[t] < 0:
                join_mm(w, int(w.threads.mm[t]))
                add_timer(s, t, w.threads.start_ns[t])
        w.total[SUPPLY_STEP_NS] = SUPPLY_FIRST_STEP_NS
    while w.total[OUT_OF_MEMORY] + w.total[PAUSED] + w.pmap.counts[SLOTS_FULL] == 0:
        cpu, first_ns, second_ns = earliest(s)
        timer_ns = s.timer_ns[0] if s.counts[NR_TIMERS] else NEVER_NS
        if w.rules.scrub and min(first_ns, timer_ns) != NEVER_NS:
            daemon_ns = next_daemon_ns(w)
            if daemon_ns < min(first_ns, timer_ns):
                scrub_in_idle_time(w, daemon_ns)
                continue
        if w.parts.promote_step != 0 and w.promotion.daemon[NEXT_NS] < min(first_ns, timer_ns) != NEVER_NS:
            call_part(w.parts.promote_step, w, w.promotion.daemon[NEXT_NS], 0, 0, 0)
            continue
        look_ns = NEVER_NS
        if w.parts.look_for_threads != 0 and s.counts[NR_READY] > 0 and first_ns != NEVER_NS:
            look_ns = call_part(w.parts.look_for_threads, w, first_ns, 0, 0, 0)
            if look_ns <= first_ns:
                continue
        if timer_ns <= first_ns:
            if timer_ns == NEVER_NS:
                t = blocked_thread(s)
                if t == NOBODY:
                    break
                stop_joining(s, t)
                wake(s, t, latest(s), w.rules.quantum_ns)
            else:
                wake(s, pop_timer(s), timer_ns, w.rules.quantum_ns)
        elif s.activity[cpu] == SCRUBBING:
            scrub_step(w, cpu)
        else:
            land(w, cpu)
            run_thread(w, cpu, min(second_ns, timer_ns, look_ns))
        if w.rules.scrub:
            now_ns = min(first_ns, timer_ns)
            if now_ns != NEVER_NS:
                scrub_in_idle_time(w, now_ns)
                sample_supply(w, now_ns)


@inlined
def earliest(s: Sched) -> tuple[int, int, int]:
    """The CPU that is not idle and has the earliest clock, that clock, and the second earliest."""
    cpu, first_ns, second_ns = NOBODY, NEVER_NS, NEVER_NS
    for i in range(len(s.activity)):
        if s.activity[i] != IDLE:
            ns = s.clock_ns[i]
            if ns < first_ns:
                cpu, first_ns, second_ns = i, ns, first_ns
            elif ns < second_ns:
                second_ns = ns
    return cpu, first_ns, second_ns


@state_kernel
def blocked_thread(s: Sched) -> int:
    """The first thread that waits for another when none can run: the recorded waits were guessed wrong. Or NOBODY."""
    for t in range(len(s.state)):
        if s.state[t] in (WAITING, JOINING):
            return t
    return NOBODY


@state_kernel
def latest(s: Sched) -> int:
    """The latest clock of all CPUs."""
    ns = 0
    for cpu in range(len(s.clock_ns)):
        ns = max(ns, s.clock_ns[cpu])
    return ns


@state_kernel
def run_thread(w: World, cpu: int, limit_ns: int) -> None:
    """Run the thread on `cpu` until its clock is past `limit_ns`, its quantum is over, or it leaves the CPU."""
    s, pr = w.sched, w.progress
    t = int(s.thread[cpu])
    while s.clock_ns[cpu] <= limit_ns and s.clock_ns[cpu] <= w.promotion.daemon[NEXT_NS]:
        if s.counts[NR_READY] and s.clock_ns[cpu] >= s.slice_end_ns[cpu] and not holds_locks(w, cpu):
            preempt(s, cpu, w.rules.quantum_ns)
            return
        e = s.next_event[t]
        if pr.stage[t] == THINK:
            if pr.think_ns[t] == 0:
                pr.think_ns[t] = gap(w, t, e)
            if not think(w, cpu, t):
                continue
            pr.stage[t] = START
            if s.clock_ns[cpu] > limit_ns:
                return
        if w.events.op[e] == TOUCH:
            if call_part(w.parts.touch, w, cpu, t, e, limit_ns) != 0:  # as the policy's kernel serves it
                pr.stage[t] = THINK
                pr.step[t] += max(1, w.events.arg[e])
                if pr.step[t] >= w.events.end[e]:
                    next_event(w, t, e + 1)
            if w.total[OUT_OF_MEMORY] or w.pmap.counts[SLOTS_FULL]:
                return
        elif call_part(w.parts.other_event, w, cpu, t, e, limit_ns) == 0 or w.events.op[e] in (FORK, WAKE, MEASURE):
            return  # another CPU may have come to life, with a clock that is now the limit
        if w.parts.event != 0 and w.vmlocks.granted[0] != 0:
            w.vmlocks.granted[0] = 0
            return  # as above: one that waited for a lock


@inlined
def holds_locks(w: World, cpu: int) -> bool:
    """Whether the thread on a CPU holds locks that others wait for in queues: it is not preempted then."""
    return bool(w.parts.event != 0 and w.vmlocks.held[cpu] > 0)


@inlined
def gap(w: World, t: int, e: int) -> int:
    """Time to think before event `e`: the recorded gap, less kernel time in it that the model charges by itself."""
    pr = w.progress
    if w.rules.recorded and w.events.op[e] in (EXIT, EXEC) and w.mm_users[int(pr.mm[t])] == 1:
        credit(w, t, w.pmap.touched[int(pr.mm[t])] * w.cost.unmap_page)
    think_ns = w.events.think_ns[e]
    taken = min(think_ns, pr.credit_ns[t])
    pr.credit_ns[t] -= taken
    return int(think_ns - taken)


@inlined
def think(w: World, cpu: int, t: int) -> bool:
    """Compute, for a quantum at most, so that others who become ready get the CPU; return whether that was all."""
    s, pr = w.sched, w.progress
    now = s.clock_ns[cpu]
    until = now + min(pr.think_ns[t], w.rules.quantum_ns)
    if s.counts[NR_READY]:
        until = min(until, max(now, s.slice_end_ns[cpu]))
    s.clock_ns[cpu] = until
    pr.think_ns[t] -= until - now
    w.total[THINK_NS] += until - now
    return bool(pr.think_ns[t] == 0)


@part
def other_event(w: World, cpu: int, t: int, e: int, limit_ns: int) -> int:
    """Do (or go on with) an event that is not a touch. 0 if the thread left the CPU, else 1."""
    op = int(w.events.op[e])
    s, pr = w.sched, w.progress
    if w.parts.event != 0 and is_of_space(w, t, op):
        if call_part(w.parts.event, w, cpu, t, e, limit_ns) == 0:
            return 1
        if op not in (FORK, EXEC, EXIT):
            done(w, t, e)
            return 1
    if op == UNMAP:
        if unmap_step(w, cpu, t, e):
            done(w, t, e)
    elif op in (MAP, POPULATE):
        if populate_step(w, cpu, t, e, op):
            done(w, t, e)
    elif op == MOVE:
        if move_step(w, cpu, t, e):
            done(w, t, e)
    elif op == SYSCALL:
        advance(w, cpu, w.events.page[e])
        done(w, t, e)
    elif op == READ:
        read_lines(w, cpu, w.events.page[e], w.events.arg[e])
        done(w, t, e)
    elif op == YIELD:
        done(w, t, e)
    elif op == MEASURE:
        w.total[PAUSED] = 1 + w.events.arg[e]
        if w.total[PAUSED] == BEGIN:
            w.total[BEGUN_NS] = s.clock_ns[cpu]
        done(w, t, e)
    elif op == FORK:
        fork(w, cpu, t, w.events.arg[e])
        done(w, t, e)
    elif op == SLEEP:
        done(w, t, e)
        if w.events.arg[e]:
            sleep_for_io(s, t, s.clock_ns[cpu] + w.events.page[e])
        else:
            add_timer(s, t, s.clock_ns[cpu] + w.events.page[e])
        leave_cpu(s, cpu, w.rules.quantum_ns)
        return 0
    elif op == JOIN:
        done(w, t, e)
        if join(s, t, w.events.arg[e]):
            leave_cpu(s, cpu, w.rules.quantum_ns)
            return 0
    elif op == WAIT:
        done(w, t, e)
        if wait(s, t):
            leave_cpu(s, cpu, w.rules.quantum_ns)
            return 0
    elif op == WAKE:
        wake_waiting(s, w.events.arg[e], s.clock_ns[cpu], w.rules.quantum_ns)
        done(w, t, e)
    else:  # EXEC, EXIT: the last thread of an address space takes it down
        mm = int(pr.mm[t])
        if w.parts.event == 0 and w.mm_users[mm] == 1 and not teardown_step(w, cpu, t, mm):
            return 1
        w.mm_users[mm] -= 1
        w.total[LIVE_MMS] -= w.mm_users[mm] == 0
        if op == EXEC:
            pr.mm[t] = w.events.arg[e]
            join_mm(w, int(pr.mm[t]))
            done(w, t, e)
        else:
            w.total[WALL_NS] = max(w.total[WALL_NS], s.clock_ns[cpu])
            end_thread(s, t, s.clock_ns[cpu], w.rules.quantum_ns)
            leave_cpu(s, cpu, w.rules.quantum_ns)
            return 0
    return 1


@inlined
def is_of_space(w: World, t: int, op: int) -> bool:
    """Whether an event changes an address space (threads that end do, if they are its last)."""
    if op in (EXEC, EXIT):
        return bool(w.mm_users[w.progress.mm[t]] == 1)
    return op in (MAP, POPULATE, UNMAP, MOVE, FORK)


@state_kernel
def done(w: World, t: int, e: int) -> None:
    """Event `e` is over."""
    w.progress.stage[t] = THINK
    next_event(w, t, e + 1)


@inlined
def next_event(w: World, t: int, e: int) -> None:
    """Thread `t` comes to event `e`; after its EXIT there is none."""
    w.sched.next_event[t] = e
    if e < w.threads.end[t]:
        w.progress.step[t] = w.events.page[e]


@state_kernel
def unmap_range(w: World, cpu: int, mm: int, first: int, last: int) -> int:
    """Unmap pages of one region; return how many a base-page kernel would have had mapped."""
    pm = w.pmap
    slot = find_slot(pm, mm, first)
    if slot == NO_SLOT or pm.nr_mapped[slot] == 0:
        return 0
    touched = pm.touched[mm]
    ns = 0
    for page in range(first, last):
        entry = entry_of(slot, page)
        if pm.state[entry] & STATE == NONE:
            continue
        pfn = int(pm.pfn[entry])
        ns += w.cost.unmap_share[int(pm.folio_order[pfn])] if pfn != NO_PFN else w.cost.unmap_page
        free_folio(w, cpu, clear_entry(pm, mm, slot, entry))
    advance(w, cpu, ns)
    return int(touched - pm.touched[mm])


@state_kernel
def nr_mapped(w: World, mm: int, first: int, last: int) -> int:
    """Pages of one region that are mapped."""
    slot = find_slot(w.pmap, mm, first)
    nr = 0
    if slot != NO_SLOT:
        for entry in range(entry_of(slot, first), entry_of(slot, last - 1) + 1):
            nr += w.pmap.state[entry] & STATE != NONE
    return nr


@state_kernel
def unmap_step(w: World, cpu: int, t: int, e: int) -> bool:
    """UNMAP, one region a step. The recording holds what unmapping base pages took: that is credited."""
    pr = w.progress
    mm, first, end = int(pr.mm[t]), pr.step[t], w.events.end[e]
    last = min(end, (first | (PMD_PAGES - 1)) + 1)
    before = w.sched.clock_ns[cpu]
    if first < last:
        kept = w.events.arg[e] != 0
        nr_touched = nr_mapped(w, mm, first, last) if kept else unmap_range(w, cpu, mm, first, last)
        if w.rules.recorded:
            credit(w, t, nr_touched * w.cost.unmap_page)
    if not w.rules.per_vma:  # mmap_lock is held for writing
        lock = len(w.buddy.free_pages) + mm
        w.locks.free_at_ns[lock] = max(w.locks.free_at_ns[lock], w.sched.clock_ns[cpu])
        w.locks.hold_ns[MM] += w.sched.clock_ns[cpu] - before
    pr.step[t] = last
    return bool(last >= end)


@state_kernel
def teardown_step(w: World, cpu: int, t: int, mm: int) -> bool:
    """Unmap one region of an address space that ends; return whether all are gone."""
    pr = w.progress
    region = pr.step[t]
    while region < w.pmap.nr_regions[mm]:
        if w.pmap.slot[w.pmap.table[mm] + region] != NO_SLOT:
            unmap_range(w, cpu, mm, region << PMD_ORDER, (region + 1) << PMD_ORDER)
            if w.parts.promote_in_fault != 0:
                w.promotion.vma[w.pmap.slot[w.pmap.table[mm] + region]] = NO_VMA
            if w.parts.table_freed != 0:
                call_part(w.parts.table_freed, w, cpu, w.pmap.slot[w.pmap.table[mm] + region], 0, 0)
            release_slot(w.pmap, mm, region)
            pr.step[t] = region + 1
            return False
        region += 1
    return True


@state_kernel
def populate_step(w: World, cpu: int, t: int, e: int, op: int) -> bool:
    """MAP under `populate`, or the program's own POPULATE: map what is not mapped, one block a step, without faults."""
    pr, pm = w.progress, w.pmap
    v = int(w.events.vma[e])
    page, end = pr.step[t], w.events.end[e]
    wanted = int(w.vmas.flags[v]) & (ANON | WRITABLE | SHARED | SHMEM | STACK | NORESERVE) == ANON | WRITABLE
    if (op == MAP and not w.rules.populate) or not wanted or page >= end:
        return True
    if page == w.events.page[e] and op == MAP:
        advance(w, cpu, w.cost.syscall)
    mm = int(pr.mm[t])
    slot = need_slot(pm, mm, page)
    if slot == NO_SLOT:
        return True
    entry = entry_of(slot, page)
    if w.parts.promote_in_fault != 0:
        w.promotion.vma[slot] = v
    if pm.state[entry] & STATE != NONE:
        pr.step[t] = page + 1
        return False
    k = choose_order(pm, slot, w.vmas.start[v], w.vmas.end[v], page, int(w.vma_orders[v]))
    pfn, z = take_block(w, cpu, k, True)
    while pfn == NO_PFN and k > 0:
        k = next_order(int(w.vma_orders[v]), k)
        pfn, z = take_block(w, cpu, k, True)
    if pfn == NO_PFN:
        w.total[OUT_OF_MEMORY] = 1
        return True
    advance(w, cpu, w.cost.populate_page if k == 0 else w.cost.alloc_large[k])
    zero_block(w, cpu, pfn, k, z)
    head = page & ~((1 << k) - 1)
    map_block(pm, mm, slot, entry_of(slot, head), pfn, k, ANON_RW | coldness(w, k, z))
    if op == POPULATE:
        # The program's own populating happened in the recording too: a recorded touch of such a page did fault.
        for other in range(max(head, w.events.page[e]), min(head + (1 << k), end)):
            pm.state[entry_of(slot, other)] |= NEAR
    if k == PMD_ORDER:
        pm.huge[slot] = HUGE_REGION
    w.total[POPULATED_PAGES] += 1 << k
    pr.step[t] = head + (1 << k)
    return False


@state_kernel
def move_step(w: World, cpu: int, t: int, e: int) -> bool:
    """mremap, one page a step where something is mapped: its entry goes to the same offset at the new place."""
    pr, pm = w.progress, w.pmap
    mm, page, end = int(pr.mm[t]), pr.step[t], w.events.end[e]
    while page < end:
        source = find_slot(pm, mm, page)
        if source == NO_SLOT or pm.nr_mapped[source] == 0:
            page = min(end, (page | (PMD_PAGES - 1)) + 1)
            continue
        entry = entry_of(source, page)
        if pm.state[entry] & STATE != NONE:
            to = w.events.arg[e] + page - w.events.page[e]
            target = need_slot(pm, mm, to)
            if target == NO_SLOT:
                return True
            other = entry_of(target, to)
            if pm.state[other] & STATE != NONE:
                free_folio(w, cpu, clear_entry(pm, mm, target, other))
            move_entry(pm, source, entry, target, other)
        page += 1
    pr.step[t] = page
    return True


@state_kernel
def fork(w: World, cpu: int, t: int, child: int) -> None:
    """A new thread, in this address space or a copy of it. The copying itself is in the recorded gap."""
    parent_mm, child_mm = int(w.progress.mm[t]), int(w.threads.mm[child])
    join_mm(w, child_mm)
    if w.parts.event == 0 and child_mm != parent_mm and w.mm_users[child_mm] == 1:
        if w.parts.fork_tables != 0:
            call_part(w.parts.fork_tables, w, parent_mm, child_mm, 0, 0)
        else:
            fork_tables(w.pmap, parent_mm, child_mm)
        if w.parts.promote_fork != 0:
            call_part(w.parts.promote_fork, w, parent_mm, child_mm, 0, 0)
    at = cpu
    if w.rules.placement in (BY_PACK, BY_SPREAD):
        nth = nr_alive(w.sched, w.threads.parent, t)
        at = place_of(w.rules.placement, nth, cpu, len(w.sched.activity), len(w.bus.free_at_ns))
    start(w.sched, child, w.rules.placement, at, at == cpu, w.sched.clock_ns[cpu], w.rules.quantum_ns)


@state_kernel
def join_mm(w: World, mm: int) -> None:
    """One thread more in an address space."""
    w.mm_users[mm] += 1
    if w.mm_users[mm] == 1:
        w.total[LIVE_MMS] += 1
        w.total[PEAK_MMS] = max(w.total[PEAK_MMS], w.total[LIVE_MMS])


@state_kernel
def sample_supply(w: World, now_ns: int) -> None:
    """Keep zeroed free memory against time; when the table is full, keep every second point and double the step."""
    tot = w.total
    if now_ns < tot[NEXT_SUPPLY_NS]:
        return
    if tot[NR_SUPPLY] == NR_SUPPLY_POINTS:
        for i in range(NR_SUPPLY_POINTS // 2):
            w.supply[i, 0], w.supply[i, 1] = w.supply[2 * i, 0], w.supply[2 * i, 1]
        tot[NR_SUPPLY] = NR_SUPPLY_POINTS // 2
        tot[SUPPLY_STEP_NS] *= 2
    w.supply[tot[NR_SUPPLY], 0] = now_ns
    w.supply[tot[NR_SUPPLY], 1] = w.buddy.zero_pages.sum() * w.rules.page_bytes
    tot[NR_SUPPLY] += 1
    tot[NEXT_SUPPLY_NS] = now_ns + tot[SUPPLY_STEP_NS]


def simulate(workload: Workload, machine: Machine, policy: Policy) -> Outcome:
    """Replay `workload` on `machine` under `policy`. Deterministic; takes no clock, no randomness.

    Raises FirsttouchError when the machine's pages are not the workload's, or it lacks a cost that the policy needs. A
    workload larger than memory is an outcome (`out_of_memory`), not an error: its counters end where memory did.
    """
    if workload.page_bytes != machine.page_bytes:
        raise FirsttouchError(
            f"{workload.name} has pages of {workload.page_bytes} bytes, machine {machine.name} of {machine.page_bytes}",
            "choose a machine with the recording's page size: firsttouch machines",
        )
    workload = pooled(workload, policy.userspace)
    return outcome_of(replay(workload, machine, policy), workload, policy)


def replay(workload: Workload, machine: Machine, policy: Policy) -> World:
    """The state after the last event. Page tables begin small and are made anew, larger, if they do not suffice.

    Raises FirsttouchError when a function of the policy's file raised: which, what it was asked, and why.
    """
    nr_regions = int(workload.mm_regions.sum())
    nr_slots = min(nr_regions, max(MIN_SLOTS, 2 * int(workload.mm_regions.max(initial=1))))
    while True:
        world = with_parts(make_world(workload, machine, policy, max(1, nr_slots)), policy, other_event)
        run(packed(world))
        counted = None
        while world.total[PAUSED]:
            if world.total[PAUSED] == BEGIN:
                begin_counting(world)
            else:
                counted = thread_times(world)
            world.total[PAUSED] = 0
            run(packed(world))
        if counted is not None:
            end_counting(world, counted)
        if not world.pmap.counts[SLOTS_FULL]:
            blame(policy.hooks, world.answers)
            return world
        nr_slots = min(nr_regions, 4 * nr_slots)


def outcome_of(w: World, workload: Workload, policy: Policy) -> Outcome:
    """The counters of a world that has run, in the terms of the product."""
    total = [int(value) for value in w.total]
    faults = [int(value) for value in w.served]
    mapped_untouched = int(((w.pmap.state & STATE == ANON_RW) & (w.pmap.state & TOUCHED == 0)).sum())
    page_bytes = workload.page_bytes
    scrubbed_bytes = int(w.scrub.zeroed_bytes.sum())
    promoted_bytes = int(w.promotion.counts[ZEROED_PAGES]) * page_bytes
    locks = lock_uses(w, policy)
    user_ns, system_ns = total[THINK_NS] + total[COLD_NS], total[SYSTEM_NS] + int(w.vmlocks.charged_ns[0])
    if w.rules.recorded:
        # Gaps hold user and kernel time; how much of each is known of the recording as a whole.
        user_ns = workload.user_ns + total[COLD_NS]
        system_ns = max(0, workload.system_ns - total[CREDIT_NS]) + system_ns
    return Outcome(
        policy=policy.name,
        available=policy.available,
        apply=policy.apply,
        faults=sum(faults),
        faults_by_kind=dict(zip(SERVICES, faults, strict=True)),
        fault_ns=total[FAULT_NS],
        user_ns=user_ns,
        system_ns=system_ns,
        wall_ns=max(0, total[WALL_NS] - total[BEGUN_NS]),
        background_ns=total[SCRUB_NS],
        peak_bytes=(int(w.pmap.counts[PEAK_PAGES]) - total[BEGUN_PAGES]) * page_bytes,
        untouched_bytes=(int(w.pmap.counts[UNTOUCHED_PAGES]) + mapped_untouched) * page_bytes,
        zeroed_hits=total[HITS],
        zeroed_misses=total[MISSES],
        lock_wait_ns={name: use.wait_ns for name, use in locks.items()},
        latency=latency_of(w),
        zeroed_in_fault_bytes=total[ZEROED_BYTES],
        zeroed_ahead_bytes=scrubbed_bytes + total[HOT_ZEROED_BYTES] + promoted_bytes,
        mmap_lock_faults=total[MMAP_LOCK_FAULTS],
        answers_bounded={name: int(nr) for name, nr in zip(NAMES, w.answers.bounded, strict=True) if nr},
        lock_bytes=lock_bytes(w, policy),
        recovered_bytes=int(w.promotion.counts[RECOVERED_PAGES]) * page_bytes,
        promotions=int(w.promotion.counts[PROMOTED]),
        copied_bytes=total[COPIED_BYTES],
        disturbances=Disturbances(
            wakeups=int(w.scrub.nr_wakeups.sum()),
            sched_latency_ns=int(w.sched.counts[LATENCY_NS]),
            bus_bytes=scrubbed_bytes,
            lines_displaced=0 if policy.zero.scrub_method == "nontemporal" else scrubbed_bytes // w.rules.line_bytes,
        ),
        out_of_memory=bool(total[OUT_OF_MEMORY]),
        table_pages=int(w.tablecache.counts[NR_TABLE_PAGES]),
        table_pages_cached=int(w.tablecache.counts[NR_TABLE_HITS]),
        supply=[(int(t) - total[BEGUN_NS], int(nr_bytes)) for t, nr_bytes in w.supply[: total[NR_SUPPLY]]],
        locks=locks,
    )


def latency_of(w: World) -> Latency:
    """Percentiles of the fault latencies: the upper edge of the bin they fall in."""
    counts = np.cumsum(w.latency)
    longest = int(w.max_latency_ns[0])

    def percentile(ratio: float) -> int:
        if counts[-1] == 0:
            return 0
        at = int(np.searchsorted(counts, ratio * counts[-1]))
        octave, eighth = divmod(at, 8)
        edge = at + 1 if at < 8 else (9 + eighth) << (octave - 3)
        return min(edge, longest)

    return Latency(percentile(0.5), percentile(0.9), percentile(0.99), longest)
