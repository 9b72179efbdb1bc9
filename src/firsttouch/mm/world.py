"""Everything a simulation holds, in one tuple of tuples that kernels pass along.

Each mechanism owns one part and says in its own file what it means. What belongs to none is here: the progress of each
thread through its current event, the rules of the policy as plain numbers, and the counters of the outcome.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firsttouch._packed import packed
from firsttouch.machine import Machine
from firsttouch.mm.balance import Balance, make_balance
from firsttouch.mm.buddy import NO_PFN, UNZEROED, ZEROED, Buddy, make_buddy
from firsttouch.mm.bus import Bus, make_bus
from firsttouch.mm.costs import MAX_ORDER, CostTable, cost_table
from firsttouch.mm.faultahead import Around, Prefault, make_around, make_prefault
from firsttouch.mm.hooks import NR_USER_LOCKS, Answers, Hooks, check_hooks, load_hooks, make_answers
from firsttouch.mm.idlezero import SLEEP_NS, Idlezero, make_idlezero, zero_until_asleep
from firsttouch.mm.load import Load, make_load
from firsttouch.mm.locks import Locks, VmaLocks, make_locks, make_vma_locks
from firsttouch.mm.pageq import PageQueues, make_queues, no_queues
from firsttouch.mm.parts import NO_PARTS, Parts
from firsttouch.mm.percpu import LINUX_6_18, Percpu, make_percpu
from firsttouch.mm.placement import PLACEMENTS
from firsttouch.mm.pmap import Pmap, make_pmap
from firsttouch.mm.promotion import Promotion, make_promotion
from firsttouch.mm.pv import Pv
from firsttouch.mm.reservation import Reservation, make_reservation
from firsttouch.mm.sched import IDLE_YIELDS, NEVER_NS, NOBODY, Sched, make_sched
from firsttouch.mm.scrub import (
    BY_FRACTION,
    NO_LOAD_TEST,
    NO_SCRUB,
    Scrub,
    ScrubRules,
    in_window,
    make_scrub,
    next_opening_ns,
    scrub_rules,
)
from firsttouch.mm.superpage import fault_orders
from firsttouch.mm.tablecache import TableCache, make_tablecache
from firsttouch.mm.vmlocks import VmLocks
from firsttouch.mm.vmobject import VmObject, make_freebsd
from firsttouch.policy import Policy
from firsttouch.workload import Events, Threads, Vmas, Workload

# Services: what a fault turns out to be. All but the last are counted in faults_by_kind.
ZERO_FILL, HUGE, ZERO_PAGE_READ, COW, REUSE, FILE, SHARED_FILL, SOFT, SPURIOUS, NO_FAULT = range(10)
SERVICES = ("zero_fill", "huge", "zero_page", "cow", "reuse", "file", "shared", "resident", "spurious")

# Rules.page_table: what guards page tables during a fault
SPLIT, MM_WIDE, ATOMIC, GLOBAL = range(4)  # a lock a page-table page; one an address space, twice; none; one in all
PAGE_TABLE_MODES = ("split", "mm", "atomic", "global")

# total[]
(FAULT_NS, THINK_NS, COLD_NS, CREDIT_NS, SYSTEM_NS, SCRUB_NS, HITS, MISSES, ZEROED_BYTES, COPIED_BYTES,
 HOT_ZEROED_BYTES, OUT_OF_MEMORY, POPULATED_PAGES, WALL_NS, NR_SUPPLY, NEXT_SUPPLY_NS,
 SUPPLY_STEP_NS, MMAP_LOCK_FAULTS, LIVE_MMS, PEAK_MMS, PAUSED, BEGUN_NS, BEGUN_PAGES) = range(23)  # fmt: skip
NR_TOTALS = BEGUN_PAGES + 1

NR_BINS = 64 * 8
NR_SUPPLY_POINTS = 512


class Rules(NamedTuple):
    """The policy's choices and the workload's conditions, as numbers."""

    recorded: bool  # events are a recording: faults, unmaps and their costs are relative to it
    use_zero_page: bool
    zero_page: bool  # a read fault on anonymous memory maps a page of zeros that all share
    window_pages: int  # fault-around
    recorded_window_pages: int
    populate: bool
    per_vma: bool
    page_table: int  # SPLIT, MM_WIDE, ATOMIC, GLOBAL
    scrub: bool
    hot_zeroed: bool  # zeroed pages are in the cache: the CPU that freed them zeroed them
    init_on_free: bool
    quantum_ns: int
    placement: int  # BY_IDLE, BY_PACK, BY_SPREAD, BY_BALANCE
    page_bytes: int
    line_bytes: int


class Progress(NamedTuple):
    """Where each thread is in its current event."""

    stage: NDArray[np.uint8]  # [thread] of the event: see simulate.THINK .. and fault.ENTER ..
    think_ns: NDArray[np.int64]  # [thread] left to think
    credit_ns: NDArray[
        np.int64
    ]  # [thread] kernel time inside recorded gaps that is charged anew, still to be taken off
    step: NDArray[np.int64]  # [thread] page that an event over a range has come to
    mm: NDArray[np.int32]  # [thread] address space
    service: NDArray[np.uint8]  # [thread] of the fault
    order: NDArray[np.int8]  # [thread] of the fault's block
    pfn: NDArray[np.int32]  # [thread] of the fault's block
    zeroed: NDArray[np.uint8]  # [thread] whether that came zeroed
    start_ns: NDArray[np.int64]  # [thread] when the fault trapped
    window: NDArray[np.int32]  # [thread] pages that the fault maps, its own included, and
    mapped: NDArray[np.int32]  # [thread] how many of them it has come past


class World(NamedTuple):
    """One simulation."""

    buddy: Buddy
    percpu: Percpu
    pmap: Pmap
    locks: Locks
    vma_locks: VmaLocks
    bus: Bus
    sched: Sched
    balance: Balance
    scrub: Scrub
    events: Events
    threads: Threads
    vmas: Vmas
    vma_orders: NDArray[np.int32]  # [vma] bits of the orders it may use
    progress: Progress
    prefault: Prefault
    around: Around
    tablecache: TableCache
    hooks: Hooks
    answers: Answers
    promotion: Promotion
    mm_users: NDArray[np.int32]  # [mm] threads in it
    scrub_rules: ScrubRules
    load: Load
    flying: NDArray[np.int32]  # [node, (pfn, order, zone)] block that its daemon is zeroing, or NO_PFN
    landing_ns: NDArray[np.int64]  # [node] when an engine will have zeroed it, or NEVER_NS: a CPU zeroes it
    scrubs_for: NDArray[np.int32]  # [cpu] node whose daemon it runs, or NOBODY
    owed_ns: NDArray[np.int64]  # [node] what its daemon, preempted, has still to do of its block
    just_freed: NDArray[np.int32]  # [cpu, (pfn, order, zone)] single page that the CPU is zeroing, or NO_PFN
    opening_ns: NDArray[np.int64]  # [1] when the daily window opens next
    pageq: PageQueues
    idlezero: Idlezero
    parts: Parts
    cost: CostTable
    rules: Rules
    total: NDArray[np.int64]
    served: NDArray[np.int64]  # [service] faults
    latency: NDArray[np.int64]  # [bin] faults, 1/8 octave a bin
    max_latency_ns: NDArray[np.int64]  # [1]
    supply: NDArray[np.int64]  # [point, (t_ns, zeroed free bytes)]
    vmlocks: VmLocks  # of FreeBSD 13, as the next two; without locks, entries and threads for others
    vmobject: VmObject
    pv: Pv
    reservation: Reservation


def make_world(workload: Workload, machine: Machine, policy: Policy, nr_slots: int) -> World:
    """The state before the first event. `nr_slots`: regions that may be in use at one time.

    If a scrubber may run at time 0, all free memory begins zeroed: the machine was idle before the program began.
    """
    node_pages = machine.free_bytes // machine.page_bytes // machine.nr_nodes
    zero = policy.zero
    hooks = load_hooks(policy.hooks)
    check_hooks(policy, hooks)
    asks_what_to_scrub = bool(hooks.scrub != 0)
    rules = scrub_rules(
        "none" if zero.scrub == "pagezero" else zero.scrub,
        start=0 if asks_what_to_scrub else zero.scrub_start,
        stop=0 if asks_what_to_scrub else zero.scrub_stop,
        load=zero.scrub_load,
        from_s=zero.scrub_from_s,
        until_s=zero.scrub_until_s,
        just_freed=zero.zero_hot_pages,
        pages_per_s=zero.scrub_pages_per_s,
    )
    # A daemon whose start no block reaches, or whose load limit is 0, is off; one that must wait has zeroed nothing.
    reachable = rules.kind == BY_FRACTION or rules.start <= MAX_ORDER
    may_run = rules.load_test == NO_LOAD_TEST or rules.load > 0
    is_on = rules.kind != NO_SCRUB and reachable and may_run and in_window(rules, 0)
    zeroed_ahead = is_on or zero.init_on_free
    nodes = machine.nr_nodes
    has_queues = policy.percpu.rules == "page-queues"
    buddy = make_buddy(
        [node_pages * nodes] if has_queues else [node_pages] * nodes,
        zeroed=zeroed_ahead,
    )
    pageq = make_queues(buddy, policy.percpu.colours) if has_queues else no_queues()
    idlezero = make_idlezero(zero.pagezero_low, zero.pagezero_high)
    scrub = make_scrub(nodes)
    if zero.scrub == "pagezero":
        zero_until_asleep(packed(idlezero), packed(pageq), packed(buddy))
        scrub.awake[0], scrub.wait_ns[0] = 1, SLEEP_NS
    threads = workload.threads
    nr_threads, nr_mms = len(threads.first), len(workload.mm_regions)
    recorded = workload.recorded_level != ""
    vmlocks, vmobject, pv = make_freebsd(workload, machine, policy, nr_slots, node_pages * machine.nr_nodes)
    ahead = policy.fault_ahead
    return World(
        buddy=buddy,
        percpu=make_percpu(
            buddy,
            machine.nr_cpus,
            batch_pages=policy.percpu.batch_pages,
            rules=LINUX_6_18 if has_queues else policy.percpu.rules,
            has_zeroed=zero.scrub != "none" or zero.init_on_free or zero.zero_hot_pages,
            strands=policy.percpu.rules == "linux-2.6.10" and not zero.zero_hot_pages,
            page_bytes=machine.page_bytes,
        ),
        pmap=make_pmap(workload.mm_regions, nr_slots, node_pages * machine.nr_nodes),
        locks=make_locks(
            machine.nr_nodes + 2 * nr_mms + nr_slots + (NR_USER_LOCKS if hooks.lock != 0 else 0),
            machine.nr_cpus,
            machine.nr_nodes,
            round(machine.cost.remote_handoff.ns),
        ),
        vma_locks=make_vma_locks(nr_mms, len(workload.vmas.start)),
        bus=make_bus(machine.nr_nodes),
        sched=make_sched(
            nr_threads,
            machine.nr_cpus,
            threads.first,
            IDLE_YIELDS.index(policy.sched.idle_yield),
            nodes if policy.sched.placement == "balance" else 0,
        ),
        balance=make_balance(machine.nr_cpus),
        scrub=scrub,
        events=workload.events,
        threads=threads,
        vmas=workload.vmas,
        vma_orders=fault_orders(policy.superpage, workload.vmas.flags),
        progress=Progress(
            stage=np.zeros(nr_threads, np.uint8),
            think_ns=np.zeros(nr_threads, np.int64),
            credit_ns=np.zeros(nr_threads, np.int64),
            step=np.zeros(nr_threads, np.int64),
            mm=threads.mm.copy(),
            service=np.zeros(nr_threads, np.uint8),
            order=np.zeros(nr_threads, np.int8),
            pfn=np.zeros(nr_threads, np.int32),
            zeroed=np.zeros(nr_threads, np.uint8),
            start_ns=np.zeros(nr_threads, np.int64),
            window=np.ones(nr_threads, np.int32),
            mapped=np.ones(nr_threads, np.int32),
        ),
        prefault=make_prefault(
            ahead.prefault, ahead.prefault_max_order, ahead.prefault_max_pages, ahead.prefault_min_run, nr_threads
        ),
        tablecache=make_tablecache(zero.table_pages, zero.table_cache_pages, nr_slots, machine.nr_cpus),
        around=make_around(
            ahead.neighbours,
            ahead.behind_pages,
            ahead.ahead_pages,
            ahead.sequential_ahead_pages,
            page_bytes=machine.page_bytes,
            scaling=ahead.scaling,
            fills_shared=ahead.fills_shared,
            after_copies=ahead.after_copies,
        ),
        hooks=hooks,
        answers=make_answers(),
        promotion=make_promotion(
            policy.superpage, workload.vmas.flags, nr_slots, node_pages * nodes, hooks.promote != 0
        ),
        mm_users=np.zeros(nr_mms, np.int32),
        scrub_rules=rules,
        load=make_load(),
        flying=np.full((nodes, 3), NO_PFN, np.int32),
        landing_ns=np.full(nodes, NEVER_NS, np.int64),
        scrubs_for=np.full(machine.nr_cpus, NOBODY, np.int32),
        owed_ns=np.zeros(nodes, np.int64),
        just_freed=np.full((machine.nr_cpus, 3), NO_PFN, np.int32),
        opening_ns=np.array([next_opening_ns(rules, 0)], np.int64),
        pageq=pageq,
        idlezero=idlezero,
        parts=NO_PARTS,
        cost=cost_table(machine, policy, workload.lines_touched, workload.recorded_level),
        rules=Rules(
            recorded=recorded,
            use_zero_page=policy.superpage.use_zero_page,
            zero_page=zero.zero_page,
            window_pages=max(1, ahead.fault_around_bytes // machine.page_bytes),
            recorded_window_pages=max(1, workload.recorded_fault_around_bytes // machine.page_bytes),
            populate=ahead.populate,
            per_vma=policy.locks.per_vma,
            page_table=PAGE_TABLE_MODES.index(policy.locks.page_table),
            scrub=zero.scrub != "none" or zero.zero_hot_pages,
            hot_zeroed=zero.zero_hot_pages and zero.scrub == "none",
            init_on_free=zero.init_on_free,
            quantum_ns=policy.sched.quantum_ns,
            placement=PLACEMENTS.index(policy.sched.placement),
            page_bytes=machine.page_bytes,
            line_bytes=machine.line_bytes,
        ),
        total=np.zeros(NR_TOTALS, np.int64),
        served=np.zeros(len(SERVICES), np.int64),
        latency=np.zeros(NR_BINS, np.int64),
        max_latency_ns=np.zeros(1, np.int64),
        supply=np.zeros((NR_SUPPLY_POINTS, 2), np.int64),
        vmlocks=vmlocks,
        vmobject=vmobject,
        pv=pv,
        reservation=make_reservation(
            policy.superpage.reservations, node_pages * nodes, int(workload.mm_regions.sum()), nodes
        ),
    )


__all__ = ["UNZEROED", "ZEROED", "Progress", "Rules", "World", "make_world"]
