"""Where and when scrubbers run: idle CPUs, one daemon a node, and offload engines that work beside the CPUs.

What a daemon takes next and when it sleeps is in `scrub.py`; here it gets a CPU that nobody wants, is charged, and its
blocks come back. A CPU that zeroes by itself lands the block at its own next step. An engine that is polled leaves the
CPU idle meanwhile, and the block lands by itself at `landing_ns`. Idle CPUs may also zero the single page that they
freed last (`just_freed`).

Invariants:
  D1  a node has at most one block in flight, and it is on no list
  D2  a CPU scrubs for at most one node; `scrubs_for` names it while the CPU is SCRUBBING, or its block in flight
  D3  scrub CPU time is charged to background time, never to a thread
  D4  a daemon that was preempted (sched.AT_ONCE) owes the rest of its block, which stays in flight until an idle CPU
      has done it
"""

from firsttouch._jit import state_kernel
from firsttouch.mm.buddy import NO_PFN
from firsttouch.mm.bus import sweep
from firsttouch.mm.hotcold import give_just_zeroed, take_just_freed
from firsttouch.mm.load import advance_load
from firsttouch.mm.parts import call_part
from firsttouch.mm.sched import IDLE, NEVER_NS, NOBODY, NR_IN_IO, NR_READY, SCRUBBING, give_way, occupy, stop_daemon
from firsttouch.mm.scrub import done, is_ready, next_block, next_opening_ns, write_start
from firsttouch.mm.world import HOT_ZEROED_BYTES, SCRUB_NS, World

PFN, ORDER, ZONE = range(3)  # columns of flying and just_freed


@state_kernel
def scrub_in_idle_time(w: World, now_ns: int) -> None:
    """Bring daemons up to `now_ns`: load average, window, landings, and idle CPUs for those that would run."""
    s = w.sched
    if w.load.next_ns[0] <= now_ns:
        nr_active = int(s.counts[NR_READY] + s.counts[NR_IN_IO])
        for cpu in range(len(s.activity)):
            nr_active += s.activity[cpu] != IDLE
        advance_load(w.load, now_ns, nr_active)
    if w.opening_ns[0] <= now_ns:
        write_start(w.scrub, w.scrub_rules, w.buddy, int(w.load.avenrun[0]), now_ns)
        w.opening_ns[0] = next_opening_ns(w.scrub_rules, now_ns)
    for node in range(len(w.landing_ns)):
        if w.landing_ns[node] <= now_ns:
            land_block(w, node)
        if w.owed_ns[node] > 0 or is_ready(w.scrub, node, now_ns):
            give_cpu(w, node, now_ns)
    if w.scrub_rules.just_freed:
        for cpu in range(len(s.activity)):
            if s.activity[cpu] == IDLE:
                zero_just_freed(w, cpu, now_ns)


@state_kernel
def give_cpu(w: World, node: int, now_ns: int) -> None:
    """Let an idle CPU, one of the node if it can be, run the node's daemon; with own queues, one of the node only."""
    s = w.sched
    nr_cpus, nr_nodes = len(s.activity), len(w.landing_ns)
    first = node * nr_cpus // nr_nodes
    for i in range(nr_cpus if s.own_queues == 0 else max(1, nr_cpus // nr_nodes)):
        cpu = (first + i) % nr_cpus
        if s.activity[cpu] == IDLE:
            occupy(s, cpu, SCRUBBING, now_ns, w.rules.quantum_ns)
            s.clock_ns[cpu] += w.owed_ns[node]
            w.owed_ns[node] = 0
            w.scrubs_for[cpu] = node
            w.scrub.busy[node] = 1
            return


@state_kernel
def zero_just_freed(w: World, cpu: int, now_ns: int) -> None:
    """An idle CPU zeroes the page that it freed last, if there is one."""
    for zone in range(len(w.buddy.free_pages)):
        pfn = take_just_freed(w.percpu, w.buddy, cpu, zone)
        if pfn != NO_PFN:
            w.just_freed[cpu, PFN], w.just_freed[cpu, ZONE] = pfn, zone
            occupy(w.sched, cpu, SCRUBBING, now_ns, w.rules.quantum_ns)
            w.sched.clock_ns[cpu] += w.cost.zero_hot_page
            w.total[SCRUB_NS] += w.cost.zero_hot_page
            return


@state_kernel
def land(w: World, cpu: int) -> None:
    """What `cpu` was zeroing is done: put it on its list. Called at the CPU's next step, whoever that is for."""
    if w.just_freed[cpu, PFN] != NO_PFN:
        give_just_zeroed(w.percpu, w.buddy, cpu, int(w.just_freed[cpu, ZONE]), int(w.just_freed[cpu, PFN]))
        w.just_freed[cpu, PFN] = NO_PFN
        w.total[HOT_ZEROED_BYTES] += w.rules.page_bytes
    node = int(w.scrubs_for[cpu])
    if node == NOBODY:
        return
    w.owed_ns[node] = w.sched.owed_ns[cpu]
    w.sched.owed_ns[cpu] = 0
    if w.owed_ns[node] > 0:
        w.scrubs_for[cpu] = NOBODY
        return
    if w.flying[node, PFN] == NO_PFN:
        w.scrub.busy[node] = 0  # it had the CPU, and no block yet
    elif w.landing_ns[node] == NEVER_NS:
        land_block(w, node)
    w.scrubs_for[cpu] = NOBODY


@state_kernel
def land_block(w: World, node: int) -> None:
    """The node's block is zeroed."""
    pfn, k, zone = int(w.flying[node, PFN]), int(w.flying[node, ORDER]), int(w.flying[node, ZONE])
    w.flying[node, PFN] = NO_PFN
    w.landing_ns[node] = NEVER_NS
    if w.parts.block_done != 0:
        call_part(w.parts.block_done, w, pfn, 0, 0, 0)
        return
    done(w.scrub, w.buddy, zone, pfn, k, w.rules.page_bytes)


@state_kernel
def scrub_step(w: World, cpu: int) -> None:
    """A scrubbing CPU: finish a block and begin the next; go idle when none is left or an engine has it."""
    s = w.sched
    node = int(w.scrubs_for[cpu])
    land(w, cpu)
    if node == NOBODY or w.landing_ns[node] != NEVER_NS or w.scrub.awake[node] == 0:
        stop_daemon(s, cpu, w.rules.quantum_ns)
        return
    if give_way(s, cpu, w.rules.quantum_ns):
        return
    now_ns = int(s.clock_ns[cpu])
    if w.parts.next_block != 0:
        taken = call_part(w.parts.next_block, w, cpu, node, 0, 0)
        pfn, k, zone = (NO_PFN, 0, 0) if taken < 0 else (taken & 0xFFFFFFFF, taken >> 32, node)
    else:
        pfn, k, zone = next_block(w.scrub, w.scrub_rules, w.buddy, node, int(w.load.avenrun[0]), now_ns)
    if pfn == NO_PFN:
        stop_daemon(s, cpu, w.rules.quantum_ns)
        return
    w.scrubs_for[cpu] = node
    w.flying[node, PFN], w.flying[node, ORDER], w.flying[node, ZONE] = pfn, k, zone
    if w.cost.scrub_elapsed[k] > w.cost.scrub[k]:
        w.landing_ns[node] = now_ns + w.cost.scrub_elapsed[k]
    ns = int(w.cost.scrub[k])
    if w.cost.bus_page > 0 and w.landing_ns[node] == NEVER_NS:
        ns = sweep(w.bus, cpu * len(w.bus.free_at_ns) // len(s.clock_ns), now_ns, ns, w.cost.bus_page << k)
    s.begun_ns[cpu] = now_ns
    s.clock_ns[cpu] += ns
    w.total[SCRUB_NS] += ns


@state_kernel
def next_daemon_ns(w: World) -> int:
    """When a daemon has something to do by itself: a landing, the end of a wait, the opening of its window."""
    ns = int(w.opening_ns[0])
    for node in range(len(w.landing_ns)):
        ns = min(ns, int(w.landing_ns[node]))
        if w.scrub.awake[node] and not w.scrub.busy[node] and w.scrub.wait_ns[node] > 0 and has_idle_cpu(w):
            ns = min(ns, int(w.scrub.wait_ns[node]))
    return ns


@state_kernel
def has_idle_cpu(w: World) -> bool:
    """Whether a daemon would get a CPU."""
    for cpu in range(len(w.sched.activity)):  # noqa: SIM110 (plain loops compile)
        if w.sched.activity[cpu] == IDLE:
            return True
    return False
