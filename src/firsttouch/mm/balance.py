"""CPUs with queues of their own, as the scheduler of Linux 2.6.9 to 2.6.11 has them, and idle ones that pull threads.

A new thread queues on its parent's CPU, one that wakes on its last. From there it comes to another CPU in three ways:

  newly idle  a CPU that has nothing left takes a queued thread of its node at once (`sched.next_queued`)
  near        an idle CPU looks at the CPUs of its node every NEAR_NS
  far         an idle CPU looks at other nodes after its interval: FAR_MAX_NS while it finds nothing, FAR_MIN_NS after
              it did, doubled by each look in vain

What it pulls evens the loads out: as many of the busiest queue as bring neither above, nor the other below, the
average; one if that makes another CPU busy. Loads count what runs and what is queued; a daemon that zeroes is a thread
like others, so a CPU that has one is not idle. What runs is not moved: two threads on a node of two CPUs stay there.

Invariants:
  B1  a pulled thread was queued on the CPU it is pulled from, and runs, or queues, on the one that pulled it
  B2  without queued threads nobody looks

Follows find_busiest_group(), load_balance() and rebalance_tick() of Linux 2.6.9 and the intervals that ia64 set; where
it does not: docs/deviations.md, "placement".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from firsttouch._jit import inlined, state_kernel
from firsttouch.mm.parts import part
from firsttouch.mm.sched import IDLE, NEVER_NS, NOBODY, NR_READY, READY_HEAD, Sched, node_of_cpu, run_on, take_queued

if TYPE_CHECKING:
    from firsttouch.mm.world import World

NEAR_NS = 4_000_000
FAR_MIN_NS, FAR_MAX_NS = 80_000_000, 320_000_000
TICK_NS = 1_000_000
STAGGER_NS = 2_000_000  # from CPU to CPU


class Balance(NamedTuple):
    """When each CPU looks for threads to pull, should it be idle then."""

    near_ns: NDArray[np.int64]  # [cpu] among the CPUs of its node
    far_ns: NDArray[np.int64]  # [cpu] among the nodes
    interval_ns: NDArray[np.int64]  # [cpu] from one far look to the next


def make_balance(nr_cpus: int) -> Balance:
    """Looks of a machine that has been idle.

    How long before a look the program begins is not known: half an interval, as it is in the mean.
    """
    stagger_ns = np.arange(nr_cpus, dtype=np.int64) * STAGGER_NS
    return Balance(
        NEAR_NS // 2 + stagger_ns % NEAR_NS, FAR_MAX_NS // 2 + stagger_ns, np.full(nr_cpus, FAR_MAX_NS, np.int64)
    )


@part
def look_for_threads(w: World, now_ns: int, _b: int, _c: int, _d: int) -> int:
    """All looks due by `now_ns`, up to the first that pulls: then 0, else when the next one is due."""
    s, b = w.sched, w.balance
    next_ns = NEVER_NS
    queued_ns = int(s.ready_ns[s.queue[s.counts[READY_HEAD]]])
    for cpu in range(len(s.activity)):
        if s.activity[cpu] != IDLE:
            continue
        pass_by(b, cpu, int(s.clock_ns[cpu]), queued_ns)
        near_ns, far_ns = int(b.near_ns[cpu]), int(b.far_ns[cpu])
        if near_ns <= now_ns:
            b.near_ns[cpu] = near_ns + NEAR_NS
            if pull_near(s, cpu, near_ns, w.rules.quantum_ns):
                return 0
        if far_ns <= now_ns:
            if pull_far(s, cpu, far_ns, w.rules.quantum_ns):
                b.interval_ns[cpu] = FAR_MIN_NS
                b.far_ns[cpu] = far_ns + FAR_MIN_NS
                return 0
            b.interval_ns[cpu] = min(FAR_MAX_NS, 2 * b.interval_ns[cpu])
            b.far_ns[cpu] = far_ns + b.interval_ns[cpu]
        next_ns = min(next_ns, b.near_ns[cpu], b.far_ns[cpu])
    return int(next_ns)


@state_kernel
def pass_by(b: Balance, cpu: int, idle_ns: int, queued_ns: int) -> None:
    """Skip looks of the past, which found no thread: those before `queued_ns`.

    One that was due before `idle_ns`, when the CPU was busy, is made a tick after it.
    """
    if b.near_ns[cpu] < idle_ns:
        b.near_ns[cpu] = idle_ns + TICK_NS
    if b.near_ns[cpu] < queued_ns:
        b.near_ns[cpu] += -(-(queued_ns - b.near_ns[cpu]) // NEAR_NS) * NEAR_NS
    if b.far_ns[cpu] < idle_ns:
        b.far_ns[cpu] = idle_ns + TICK_NS
    while b.far_ns[cpu] < queued_ns:
        b.interval_ns[cpu] = min(FAR_MAX_NS, 2 * b.interval_ns[cpu])
        b.far_ns[cpu] += b.interval_ns[cpu]


@state_kernel
def load_of(s: Sched, cpu: int) -> int:
    """Threads and daemons on a CPU: what runs, and what is queued."""
    nr = int(s.activity[cpu] != IDLE)
    for i in range(s.counts[NR_READY]):
        nr += s.last_cpu[s.queue[(s.counts[READY_HEAD] + i) % len(s.queue)]] == cpu
    return nr


@state_kernel
def pull_near(s: Sched, cpu: int, now_ns: int, quantum_ns: int) -> bool:
    """An idle CPU looks at those of its node; whether it pulled."""
    node, total, most, busiest, nr_cpus = node_of_cpu(s, cpu), 0, 0, NOBODY, 0
    for other in range(len(s.activity)):
        if node_of_cpu(s, other) == node:
            load = load_of(s, other)
            total += load
            nr_cpus += 1
            if load > most:
                most, busiest = load, other
    nr = evening(most, 0, total, nr_cpus, 1)
    return nr > 0 and pull(s, cpu, busiest, nr, now_ns, quantum_ns)


@state_kernel
def pull_far(s: Sched, cpu: int, now_ns: int, quantum_ns: int) -> bool:
    """An idle CPU looks at other nodes; whether it pulled."""
    own, total, most, busiest = node_of_cpu(s, cpu), 0, 0, NOBODY
    load, mine, most_of_cpu, candidate = 0, 0, 0, NOBODY
    for other in range(len(s.activity)):
        node, nr = node_of_cpu(s, other), load_of(s, other)
        load += nr
        if nr > most_of_cpu:
            most_of_cpu, candidate = nr, other
        if other + 1 == len(s.activity) or node_of_cpu(s, other + 1) != node:
            total += load
            if node == own:
                mine = load
            elif load > most:
                most, busiest = load, candidate
            load, most_of_cpu, candidate = 0, 0, NOBODY
    nr = evening(most, mine, total, s.own_queues, max(1, len(s.activity) // s.own_queues))
    return nr > 0 and pull(s, cpu, busiest, nr, now_ns, quantum_ns)


@inlined
def evening(most: int, mine: int, total: int, nr_groups: int, group_cpus: int) -> int:
    """How many threads a group of `group_cpus` with `mine` pulls from the busiest, with `most` of all the `total`."""
    if mine >= most or mine * nr_groups >= total or 4 * most <= 5 * mine:
        return 0
    nr = int(min(most * nr_groups - total, total - mine * nr_groups) // nr_groups)
    if nr > 0:
        return nr
    busy = min(group_cpus, most) + min(group_cpus, mine)
    gains = min(group_cpus, most - 1) + min(group_cpus, mine + 1) > busy
    return int(gains or most - mine >= 2 * group_cpus)


@state_kernel
def pull(s: Sched, cpu: int, busiest: int, nr: int, now_ns: int, quantum_ns: int) -> bool:
    """Move up to `nr` threads from the queue of CPU `busiest` to an idle CPU, which runs the first; whether any."""
    first = NOBODY
    i = 0
    while i < s.counts[NR_READY] and nr > 0:
        thread = int(s.queue[(s.counts[READY_HEAD] + i) % len(s.queue)])
        if s.last_cpu[thread] == busiest:
            nr -= 1
            if first == NOBODY:
                first = take_queued(s, i, max(now_ns, int(s.clock_ns[cpu])))
                continue
            s.last_cpu[thread] = cpu
        i += 1
    if first == NOBODY:
        return False
    run_on(s, cpu, first, max(now_ns, int(s.clock_ns[cpu])), quantum_ns)
    return True
