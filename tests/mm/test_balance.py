"""CPUs with queues of their own: what idle ones pull, by hand on the scheduler alone, and what programs see of it."""

import msgspec
import pytest
from handmade import PAGE_BYTES
from test_bus import of_nodes
from test_sched import assert_clocks_add_up

from firsttouch import policy
from firsttouch.errors import FirsttouchError
from firsttouch.machine import check
from firsttouch.mm.balance import (
    FAR_MAX_NS,
    FAR_MIN_NS,
    NEAR_NS,
    TICK_NS,
    evening,
    load_of,
    make_balance,
    pass_by,
    pull_far,
    pull_near,
)
from firsttouch.mm.sched import (
    BUSY,
    IDLE,
    NOBODY,
    NR_READY,
    QUEUED_NS,
    SCRUBBING,
    give_way,
    leave_cpu,
    make_sched,
    next_queued,
    occupy,
    queue_up,
    run_on,
    take_queued,
    wake,
)
from firsttouch.mm.simulate import replay, simulate
from firsttouch.workload.generators import pft

import numpy as np  # isort: skip

QUANTUM_NS = 100_000_000
MS = 1_000_000


def of_cpus(queued, nr_cpus=8, nr_nodes=4, running=(0,)):
    """CPUs in `running` run one thread each; `queued` names the CPU on which each further one waits."""
    s = make_sched(len(running) + len(queued), nr_cpus, np.zeros(len(running) + len(queued), np.int64), 0, nr_nodes)
    for thread, cpu in enumerate(running):
        run_on(s, cpu, thread, 0, QUANTUM_NS)
    for thread, cpu in enumerate(queued, len(running)):
        s.last_cpu[thread] = cpu
        queue_up(s, thread, 10)
    return s


def ready_on(s, cpu):
    """The threads that wait on a CPU, in the order they would run."""
    head = int(s.counts[1])
    ring = [int(s.queue[(head + i) % len(s.queue)]) for i in range(s.counts[NR_READY])]
    return [thread for thread in ring if s.last_cpu[thread] == cpu]


@pytest.mark.parametrize(
    ("most", "mine", "total", "groups", "cpus", "nr"),
    [
        (8, 0, 8, 4, 2, 2),  # the average is 2
        (4, 0, 4, 4, 2, 1),
        (9, 1, 12, 4, 2, 2),  # a daemon on each node, eight threads on the first
        (2, 0, 2, 4, 2, 0),  # both run: nothing is gained
        (3, 0, 3, 4, 2, 1),  # a third CPU would be busy
        (2, 1, 4, 4, 2, 0),  # it has the average already
        (5, 4, 12, 4, 2, 0),  # within a quarter
        (2, 0, 2, 2, 1, 1),  # the CPUs of one node
        (2, 1, 3, 2, 1, 0),  # two threads and a daemon
    ],
)
def test_how_many_even_the_loads_out(most, mine, total, groups, cpus, nr):
    assert evening(most, mine, total, groups, cpus) == nr


def test_an_idle_cpu_takes_half_of_its_neighbours_queue():
    s = of_cpus([0, 0, 0])
    assert pull_near(s, 1, 50, QUANTUM_NS)
    assert (int(s.thread[1]), ready_on(s, 0), ready_on(s, 1)) == (1, [3], [2])
    assert s.clock_ns[1] == 50 and s.counts[QUEUED_NS] == 40


def test_no_cpu_of_another_node_is_near():
    s = of_cpus([0, 0, 0])
    assert not pull_near(s, 2, 50, QUANTUM_NS)
    assert s.activity[2] == IDLE


def test_a_far_cpu_takes_from_the_longest_queue_of_the_busiest_node():
    s = of_cpus([4, 5, 5, 5], running=(0, 4, 5))
    assert pull_far(s, 2, 50, QUANTUM_NS)  # 6 on node 2, 7 in all: the average is 1.75
    assert (int(s.thread[2]), ready_on(s, 5), ready_on(s, 4)) == (4, [5, 6], [3])


def test_what_runs_is_not_moved():
    s = of_cpus([], running=(0, 1))
    assert not pull_far(s, 2, 50, QUANTUM_NS)
    s = of_cpus([], running=(0, 1, 4), nr_cpus=6, nr_nodes=2)
    assert not pull_near(s, 2, 50, QUANTUM_NS)


def test_a_daemon_counts_as_a_thread():
    s = of_cpus([0], nr_cpus=2, nr_nodes=1)
    occupy(s, 1, SCRUBBING, 0, QUANTUM_NS)
    s.clock_ns[1] = 2 * QUANTUM_NS
    assert [load_of(s, cpu) for cpu in range(2)] == [2, 1]
    assert not give_way(s, 1, QUANTUM_NS)  # the thread waits for the other CPU
    assert s.activity[1] == SCRUBBING
    s.last_cpu[1] = 1
    s.slice_end_ns[1] = 0
    assert give_way(s, 1, QUANTUM_NS)
    assert (s.activity[1], s.thread[1]) == (BUSY, 1)


def test_a_cpu_that_goes_idle_takes_its_own_then_its_nodes():
    s = of_cpus([2, 1, 0])
    assert [next_queued(s, 0, True), next_queued(s, 1, False), next_queued(s, 7, True)] == [2, 1, NOBODY]
    for cpu, threads in ((0, [3, 2]), (2, [1])):
        for thread in threads:
            leave_cpu(s, cpu, QUANTUM_NS)
            assert s.thread[cpu] == thread
    leave_cpu(s, 0, QUANTUM_NS)
    assert s.activity[0] == IDLE and s.counts[NR_READY] == 0


def test_a_thread_in_the_middle_leaves_the_others_in_order():
    s = of_cpus([0, 1, 2, 3])
    assert take_queued(s, 2, 15) == 3
    assert [take_queued(s, 0, 15) for _ in range(3)] == [1, 2, 4]


def test_one_that_wakes_queues_on_its_last_cpu():
    s = of_cpus([])
    s.last_cpu[0] = NOBODY
    s = of_cpus([0])
    take_queued(s, 0, 10)
    wake(s, 1, 20, QUANTUM_NS)  # CPU 0 is busy; seven others are idle
    assert ready_on(s, 0) == [1]
    leave_cpu(s, 0, QUANTUM_NS)
    s.state[0] = 0
    wake(s, 0, 30, QUANTUM_NS)
    assert ready_on(s, 0) == [0]


def test_looks_of_the_past_are_passed_by():
    b = make_balance(2)
    assert list(b.far_ns - FAR_MAX_NS // 2) == [0, 2 * MS]
    pass_by(b, 0, 0, 1_000 * MS)
    assert (b.far_ns[0], b.near_ns[0]) == (FAR_MAX_NS // 2 + 3 * FAR_MAX_NS, 1_002 * MS)
    pass_by(b, 1, 900 * MS, 900 * MS)  # busy over its looks: they are made a tick later
    assert b.far_ns[1] == b.near_ns[1] == 900 * MS + TICK_NS
    b.interval_ns[1] = FAR_MIN_NS
    pass_by(b, 1, 900 * MS, 1_400 * MS)  # 901, 1061, 1381, 1701
    assert (b.far_ns[1], b.interval_ns[1]) == (1_701 * MS, FAR_MAX_NS)
    assert (b.near_ns[1] - 901 * MS) % NEAR_NS == 0 and 0 <= b.near_ns[1] - 1_400 * MS < NEAR_NS


def run(threads, ms_per_page, nr_cpus=8, nr_nodes=4, name="linux-2.6.10+balance", pages=64):
    """A page-fault test whose pages take so long to zero, and the world after it."""
    on = of_nodes(nr_nodes, nr_cpus=nr_cpus)
    zero = {"temporal": msgspec.structs.replace(on.zero["temporal"], bytes=[PAGE_BYTES], hot_ns=[ms_per_page * MS],
            cold_ns=[ms_per_page * MS])}  # fmt: skip
    on = msgspec.structs.replace(on, zero={**on.zero, **zero})
    workload = pft(pages * PAGE_BYTES, threads=threads, stride_bytes=PAGE_BYTES)
    world = replay(workload, on, policy.load(name))
    assert_clocks_add_up(world)
    return workload, world


def test_two_threads_stay_on_their_parents_node():
    workload, world = run(2, 20)
    workers = [t for t, parent in enumerate(workload.threads.parent) if parent > 0]
    assert {int(world.sched.last_cpu[t]) for t in workers} == {0, 1}
    assert world.sched.clock_ns[0] / (32 * 20 * MS) == pytest.approx(1, abs=0.02)


def test_four_threads_come_to_other_nodes_after_their_looks():
    workload, world = run(4, 20)
    workers = [t for t, parent in enumerate(workload.threads.parent) if parent > 0]
    assert len({int(world.sched.last_cpu[t]) // 2 for t in workers}) == 3
    idle_ns = [int(world.sched.idle_ns[cpu]) for cpu in range(2, 8) if world.sched.clock_ns[cpu] > 0]
    assert len(idle_ns) == 2
    assert FAR_MAX_NS // 2 <= min(idle_ns) <= FAR_MAX_NS // 2 + 16 * MS  # the second runs the parent as well, later


def test_on_one_cpu_it_makes_no_difference():
    workload = pft(64 * PAGE_BYTES, threads=3, stride_bytes=PAGE_BYTES)
    ways = [simulate(workload, of_nodes(1, nr_cpus=1), policy.load(f"linux-2.6.10{name}")) for name in ("", "+balance")]
    assert len({(way.wall_ns, way.system_ns, way.faults) for way in ways}) == 1


def test_what_others_hold_is_not_free():
    on = of_nodes(2)
    held = msgspec.structs.replace(on, held_bytes=on.memory_bytes // 2)
    worlds = [replay(pft(8 * PAGE_BYTES), at, policy.load("linux-2.6.10")) for at in (on, held)]
    pages = [int(world.buddy.free_pages.sum() + world.percpu.state[:, :, 0].sum()) for world in worlds]
    assert pages[1] == pages[0] // 2 == held.free_bytes // PAGE_BYTES


@pytest.mark.parametrize("nr_bytes", [-1, 1 << 60])
def test_memory_that_cannot_be_held(nr_bytes):
    with pytest.raises(FirsttouchError, match="held_bytes"):
        check(msgspec.structs.replace(of_nodes(1), held_bytes=nr_bytes), "here")
