"""The event loop: who runs when, by hand; and laws that hold for any program."""

from dataclasses import replace

import numpy as np
import pytest
from hand_workload import FAULT_NS, REFILL_NS, Hand, linux, recorded, small_machine
from handmade import machine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import programs

from firsttouch import policy
from firsttouch.errors import FirsttouchError
from firsttouch.machine import Cost, ZeroCost
from firsttouch.mm import percpu, pmap, simulate
from firsttouch.mm.buddy import NO_PFN
from firsttouch.mm.fault import latency_bin
from firsttouch.mm.pmap import ANON_RO, ANON_RW, STATE
from firsttouch.mm.simulate import latency_of, replay
from firsttouch.workload import MAP, SHARED, TOUCH, WRITABLE

EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
MS = 1_000_000


def run(h, diffs="", nr_cpus=1, **changes):
    return simulate.simulate(h.workload(), small_machine(nr_cpus, **changes), linux(diffs))


# -- threads: wall times by hand


def test_thinking_and_sleeping():
    h = Hand()
    t = h.thread()
    h.sleep(t, 1000, think_ns=100)
    h.exit(t, think_ns=50)
    outcome = run(h)
    assert (outcome.wall_ns, outcome.user_ns, outcome.system_ns) == (1150, 150, 0)


def test_a_thread_begins_at_its_time():
    h = Hand()
    h.exit(h.thread(start_ns=700), think_ns=50)
    assert run(h).wall_ns == 750


@pytest.mark.parametrize(("nr_cpus", "wall_ns"), [(1, 530), (2, 530)])
def test_join(nr_cpus, wall_ns):
    h = Hand()
    t = h.thread()
    child = h.fork(t)
    h.exit(child, think_ns=500)
    h.join(t, child)
    h.exit(t, think_ns=30)
    assert run(h, nr_cpus=nr_cpus).wall_ns == wall_ns


def test_join_of_one_that_has_ended_and_of_oneself():
    h = Hand()
    t = h.thread()
    child = h.fork(t)
    h.sleep(t, 900)
    h.join(t, child)
    h.join(t, t)
    h.exit(t, think_ns=5)
    h.exit(child, think_ns=100)
    assert run(h, nr_cpus=2).wall_ns == 905


def test_several_join_one():
    h = Hand()
    t = h.thread()
    slow = h.fork(t)
    h.exit(slow, think_ns=1000)
    for think_ns in (10, 20, 30):
        other = h.fork(t)
        h.join(other, slow)
        h.exit(other, think_ns=think_ns)
    assert run(h, nr_cpus=5).wall_ns == 1030
    assert run(h, nr_cpus=1).wall_ns == 1060  # one after another


@pytest.mark.parametrize(
    ("wake_at", "wall_ns"),
    [
        (700, 740),  # the thread waits from 100 on, and thinks 40 after being woken
        (10, 140),  # woken beforehand: it does not wait at all
        (100, 140),
    ],
)
def test_wait_and_wake(wake_at, wall_ns):
    h = Hand()
    t = h.thread()
    child = h.fork(t)
    h.wait(child, think_ns=100)
    h.exit(child, think_ns=40)
    h.wake(t, child, think_ns=wake_at)
    assert run(h, nr_cpus=2).wall_ns == wall_ns


def test_who_was_woken_beforehand_does_not_wait_for_others_to_end():
    h = Hand()
    t = h.thread()
    child = h.fork(t)
    h.wake(t, child, think_ns=10)
    h.exit(t, think_ns=1000)
    h.wait(child, think_ns=100)
    h.exit(child, think_ns=40)
    assert run(h, nr_cpus=2).wall_ns == 1010  # the child ends at 140, not 40 after everybody else


def test_each_wake_ends_one_wait():
    h = Hand()
    t = h.thread()
    child = h.fork(t)
    h.wake(t, child)
    h.wake(t, child)
    h.wake(t, child, think_ns=500)
    for _ in range(3):
        h.wait(child)
    assert run(h, nr_cpus=2).wall_ns == 500


def threads_that_think(*think_ns):
    h = Hand()
    for ns in think_ns:
        h.exit(h.thread(), think_ns=ns)
    return h


CROWDS = [  # CPUs, thinking of each thread in quanta of 3 ms -> wall in ms
    (1, (3, 3), 6),
    (2, (3, 3), 3),
    (2, (3, 3, 3), 6),
    (2, (6, 6, 6), 9),  # AB CA BC: turns of one quantum
    (3, (3,) * 7, 9),
    (4, (9, 3, 3), 9),
    (1, (1, 1, 1), 3),  # they end before the quantum does
]


@pytest.mark.parametrize(("nr_cpus", "think_ms", "wall_ms"), CROWDS)
def test_more_threads_than_cpus_take_turns(nr_cpus, think_ms, wall_ms):
    outcome = run(threads_that_think(*(ms * MS for ms in think_ms)), nr_cpus=nr_cpus)
    assert outcome.wall_ns == wall_ms * MS
    assert outcome.user_ns == sum(think_ms) * MS


def test_a_thread_that_becomes_ready_gets_the_cpu_when_a_quantum_is_over():
    h = Hand()
    h.exit(h.thread(), think_ns=10 * MS)
    late = h.thread(start_ns=4 * MS)
    h.exit(late, think_ns=MS)
    world = replay(h.workload(), small_machine(1), linux())
    # A thinks from 0; at 6 ms (the end of its second quantum at the latest) B runs for 1 ms; A ends at 11
    assert world.total[simulate.WALL_NS] == 11 * MS
    assert world.sched.clock_ns[0] == 11 * MS


# -- waits that cannot end


def test_a_circle_of_joins_is_broken():
    h = Hand()
    t = h.thread()
    child = h.fork(t)
    h.join(t, child)
    h.join(child, t)
    h.exit(t, think_ns=10)
    h.exit(child, think_ns=10)
    assert run(h, nr_cpus=2).wall_ns == 20


def test_nobody_wakes():
    h = Hand()
    t, other = h.thread(), h.thread()
    h.wait(t)
    h.wait(other)
    h.exit(t, think_ns=10)
    assert run(h, nr_cpus=2).wall_ns == 10


@pytest.mark.parametrize("nr_cpus", [1, 2])
def test_a_join_that_was_given_up_is_not_ended_again(nr_cpus):
    """The parent joins a child that waits for the parent. It is let go, wakes the child, and thinks while that ends."""
    h = Hand([1])
    t, v = h.thread(), h.vma(0, 8)
    child, third = h.fork(t), None
    h.wait(child)
    h.join(t, child)
    h.wake(t, child)
    h.sleep(t, 100)
    h.write(t, v, 0)
    h.exit(t, think_ns=1000)
    third = h.thread()  # its events come after those of the others: nobody may run into them
    h.write(third, v, 1)
    outcome = run(h, nr_cpus=nr_cpus)
    assert outcome.faults == 2
    world = replay(h.workload(), small_machine(nr_cpus), linux())
    assert world.mm_users.tolist() == [0]
    assert pmap.check(world.pmap) == []


# -- two CPUs (step rule)


def test_a_lock_is_not_taken_in_the_future_of_another_cpu():
    """A write fault that begins first, and a read fault at 1 ns, on two CPUs.

      A 0 trap 500 | allocation 180 + 288 | zeroing 300 | at 1268: page table lock, last held by the other: + 100
      B 1 trap 500, shared line of the address space + 100 | at 601: page table lock, free

    Were A's fault one step, it would hold the lock from 1268 on, and B would wait at 601 for 687 ns.
    """
    h = Hand()
    v = h.vma(0, 512)
    a, b = h.thread(), h.thread(start_ns=1)
    h.write(a, v, 0)
    h.read(b, v, 1)
    outcome = run(h, nr_cpus=2)
    assert outcome.lock_wait_ns == {"zone": 0, "mmap": 100, "page_table": 100}
    assert outcome.latency.max_ns == 1368
    assert outcome.fault_ns == 1368 + 600
    assert outcome.wall_ns == 1368 + 2 * 100  # A is the last to leave


def test_two_faults_hand_the_locks_to_each_other():
    """
    A  0: trap -> 500 | zone lock until 680, list -> 968 | zero -> 1268 | page table -> 1268
    B 50: trap + 100 -> 650 | zone: 30 wait + 100 hand-off + 180 + 288 -> 1248 | zero -> 1548 | + 100 -> 1648
    """
    h = Hand()
    v = h.vma(0, 512)
    a, b = h.thread(), h.thread(start_ns=50)
    h.write(a, v, 0)
    h.write(b, v, 1)
    outcome = run(h, nr_cpus=2)
    assert outcome.lock_wait_ns == {"zone": 130, "mmap": 100, "page_table": 100}
    assert outcome.fault_ns == 1268 + 1598
    assert outcome.wall_ns == 1648 + 200


def test_the_second_at_a_page_finds_it_mapped():
    h = Hand()
    v = h.vma(0, 512)
    a, b = h.thread(), h.thread(start_ns=50)
    h.write(a, v, 0)
    h.write(b, v, 0)
    outcome = run(h, nr_cpus=2)
    assert outcome.faults_by_kind | {"zero_fill": 1, "spurious": 1} == outcome.faults_by_kind
    assert outcome.peak_bytes == 4096


def test_a_page_that_is_unmapped_while_its_fault_is_under_way():
    """A's second fault traps at 1101 and installs at 1601 or later; B unmaps the page at 1200."""
    h = Hand()
    v = h.vma(0, 512, WRITABLE | SHARED)
    a, b = h.thread(), h.thread(start_ns=1200)
    h.read(a, v, 5)  # 500 + 300 + 300 for the pages around
    h.write(a, v, 5, think_ns=1)
    h.unmap(b, 5, 6)
    h.sleep(b, MS)
    world = replay(h.workload(), small_machine(2), linux())
    assert world.served.sum() == 2
    assert world.pmap.touched.tolist() == [0]
    assert not world.pmap.state.any()


def test_mmap_lock_costs_two_hand_offs_and_waits_for_an_unmap():
    h = Hand()
    v = h.vma(0, 512)
    a, b = h.thread(), h.thread(start_ns=50)
    h.read(a, v, 0)
    h.read(b, v, 1)
    assert run(h, "", 2).lock_wait_ns["mmap"] == 100
    assert run(h, "-per-vma-lock", 2).lock_wait_ns["mmap"] == 200
    h = Hand()
    v, w = h.vma(0, 256), h.vma(256, 512)
    a = h.thread()
    h.read(a, v, *range(256))
    h.unmap(a, 0, 256)
    b = h.thread(start_ns=256 * 500 + 1)
    h.read(b, w, 300)
    # the unmap runs from 128000 to 153600; B asks at 128001 and goes on at 153600, with two hand-offs
    assert run(h, "", 2).lock_wait_ns["mmap"] == 100
    assert run(h, "-per-vma-lock", 2).lock_wait_ns["mmap"] == 153_600 - 128_001 + 200


# -- laws


POLICIES = st.sampled_from(["", "+thp", "+mthp-64k", "+populate", "+prezero-4k", "+prezero-2m", "-per-vma-lock"])


@EXAMPLES
@given(programs(), POLICIES, st.integers(1, 3))
def test_the_same_twice_and_accounts_that_add_up(program, diffs, nr_cpus):
    workload = program.hand.workload(lines_touched=64)
    outcome = simulate.simulate(workload, small_machine(nr_cpus), linux(diffs))
    assert outcome == simulate.simulate(workload, small_machine(nr_cpus), linux(diffs))
    assert outcome.user_ns + outcome.system_ns <= outcome.wall_ns * nr_cpus
    assert outcome.fault_ns <= outcome.system_ns
    assert outcome.latency.p50_ns <= outcome.latency.p90_ns <= outcome.latency.p99_ns <= outcome.latency.max_ns
    assert outcome.faults == sum(outcome.faults_by_kind.values())
    if "prezero" not in diffs:
        assert (outcome.zeroed_hits, outcome.background_ns, outcome.supply) == (0, 0, [])
    if nr_cpus == 1:
        assert outcome.lock_wait_ns == {"zone": 0, "mmap": 0, "page_table": 0}
        assert outcome.user_ns + outcome.system_ns == outcome.wall_ns  # the baton leaves nobody idle


@EXAMPLES
@given(programs(nr_threads=1, nr_spaces=1), POLICIES)
def test_twice_the_costs_take_twice_the_time(program, diffs):
    workload = program.hand.workload(lines_touched=64)
    once = small_machine(1)
    fields = {}
    for name in once.cost.__struct_fields__:
        value = getattr(once.cost, name)
        if isinstance(value, Cost):
            fields[name] = Cost(ns=2 * value.ns)
        else:
            fields[name] = value and [2 * ns for ns in value]
    zero = {
        name: ZeroCost(z.bytes, [2 * ns for ns in z.hot_ns], [2 * ns for ns in z.cold_ns])
        for name, z in once.zero.items()
    }
    twice = small_machine(1, cost=type(once.cost)(**fields), zero=zero)
    one, two = (simulate.simulate(workload, m, linux(diffs)) for m in (once, twice))
    assert two.wall_ns == 2 * one.wall_ns
    assert two.fault_ns == 2 * one.fault_ns
    assert two.faults_by_kind == one.faults_by_kind


@EXAMPLES
@given(programs(), st.integers(1, 3))
def test_populated_memory_has_no_anonymous_faults(program, nr_cpus):
    """Every mapping is announced before it is touched; pages come and go only by unmap, which is left out."""
    h = program.hand
    has_unmap = any(step[0] in ("unmap", "move") for step in program.steps)
    has_fork = any(step[0] == "fork" for step in program.steps)
    for vma in range(len(h.vmas)):
        h.events[0].insert(0, (MAP, 0, vma, h.vmas[vma][0], h.vmas[vma][1], 0, 0))
    ordinary = [flags & (1 | 2 | 4 | 8 | 64 | 128) == 3 for _, _, flags in h.vmas]
    for events in h.events:
        events[:] = [event for event in events if event[0] != TOUCH or ordinary[event[2]]]
    outcome = simulate.simulate(h.workload(), small_machine(nr_cpus), linux("+populate"))
    if not has_unmap:
        assert outcome.faults_by_kind["zero_fill"] == outcome.faults_by_kind["zero_page"] == 0
        assert has_fork or outcome.faults == 0
    assert outcome.faults_by_kind["file"] == 0


@given(st.lists(st.tuples(st.integers(0, 1535), st.booleans()), max_size=40))
@EXAMPLES
def test_a_window_of_one_page_leaves_as_many_faults_as_pages_touched(touches):
    h = Hand([3])
    t, v = h.thread(), h.vma(0, 1536, 0)
    h.read(t, v, *(page for page, _ in touches))
    assert run(h, "+fault-around-4").faults == len({page for page, _ in touches})


@pytest.mark.parametrize("diffs", ["", "+thp", "+mthp-1024k", "+prezero-4k", "+populate"])
def test_more_memory_never_fails_more(diffs):
    h = Hand([4])
    t, v = h.thread(), h.vma(0, 2048)
    h.map(t, v)
    h.write(t, v, *range(2048))
    results = []
    for mib in (1, 2, 4, 7, 8, 9, 16, 64):
        m = machine(nr_cpus=1, memory_bytes=mib << 20)
        outcome = simulate.simulate(h.workload(), m, linux(diffs))
        results.append((outcome.out_of_memory, outcome.peak_bytes))
        assert outcome.peak_bytes <= mib << 20
    assert [failed for failed, _ in results] == [True] * 4 + [False] * 4  # it needs 8 MiB to the page
    assert [peak for _, peak in results] == sorted(peak for _, peak in results)


def test_when_no_large_block_is_left_lower_orders_are_taken():
    """5 MiB: two superpages, then blocks of 64 KiB; the 6th MiB is not there."""
    h = Hand([4])
    t, v = h.thread(), h.vma(0, 2048)
    h.write(t, v, *range(5 * 256))
    m = machine(nr_cpus=1, memory_bytes=5 << 20)
    outcome = simulate.simulate(h.workload(), m, linux("+thp+mthp-64k"))
    assert not outcome.out_of_memory
    assert outcome.faults_by_kind["huge"] == 2
    assert outcome.faults_by_kind["zero_fill"] == 256 // 16
    outcome = simulate.simulate(h.workload(), m, linux("+thp"))
    assert outcome.faults_by_kind["zero_fill"] == 256


# -- what is left behind


def conservation(world):
    """Every page is free, on a CPU's list, being scrubbed, or in a folio that is mapped: exactly once."""
    nr_pages = len(world.pmap.refs)
    flying = [(int(pfn), int(k)) for pfn, k, _ in world.flying if pfn != NO_PFN]
    listed = percpu.pages_on_lists(world.percpu)
    used = set()
    states = world.pmap.state & STATE
    for entry in np.flatnonzero((states == ANON_RO) | (states == ANON_RW)):
        pfn = int(world.pmap.pfn[entry])
        k = int(world.pmap.folio_order[pfn])
        head = pfn >> k << k
        used.update(range(head, head + (1 << k)))
    assert pmap.check(world.pmap) == []
    assert percpu.check(world.percpu, world.buddy) == []
    assert int(world.buddy.free_pages.sum()) + listed + len(used) == nr_pages
    assert len(used) == world.pmap.counts[pmap.MAPPED_PAGES]
    free = set()
    for head in np.flatnonzero(world.buddy.order):
        free.update(range(head, head + (1 << (int(world.buddy.order[head]) - 1))))
    for head, k in flying:
        free.update(range(head, head + (1 << k)))
    assert not used & free


@EXAMPLES
@given(programs(), POLICIES, st.integers(1, 3))
def test_all_memory_is_free_at_the_end(program, diffs, nr_cpus):
    world = replay(program.hand.workload(), small_machine(nr_cpus), linux(diffs))
    conservation(world)
    assert world.pmap.counts[pmap.MAPPED_PAGES] == 0
    assert not world.pmap.state.any()
    assert not world.mm_users.any()
    assert (world.sched.state == 6).all()  # DONE


@EXAMPLES
@given(programs(max_steps=30), st.sampled_from(["", "+thp", "+mthp-64k", "+populate"]), st.integers(3, 12))
def test_no_page_is_lost_or_used_twice_when_memory_runs_out(program, diffs, mib):
    h = program.hand
    spare = len(h.vmas)
    h.vma(0, 1536)
    h.populate(0, spare, 0, 1536)  # the last of all threads fills what is left
    world = replay(h.workload(), machine(nr_cpus=2, memory_bytes=mib << 20), linux(diffs))
    conservation(world)


@EXAMPLES
@given(programs(nr_threads=6, nr_spaces=4, max_steps=25), POLICIES)
def test_page_tables_that_were_too_small_are_made_anew(program, diffs):
    """Four address spaces of three regions: the first try has room for six regions, unless told to have 1024."""
    workload = program.hand.workload()
    ample = simulate.simulate(workload, small_machine(2), linux(diffs))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulate, "MIN_SLOTS", 1)
        assert simulate.simulate(workload, small_machine(2), linux(diffs)) == ample


def test_more_address_spaces_than_the_first_page_tables_hold(monkeypatch):
    """Six address spaces alive at once, one region each: the first try has two slots."""
    monkeypatch.setattr(simulate, "MIN_SLOTS", 1)
    h = Hand([1] * 6)
    t, v = h.thread(), h.vma(0, 512)
    h.write(t, v, 0, 1)
    for mm in range(1, 6):
        child = h.fork(t, mm=mm)
        h.write(child, v, 0)
        h.sleep(child, 10 * MS)
    outcome = run(h, nr_cpus=2)
    assert outcome.faults_by_kind | {"zero_fill": 2, "cow": 5} == outcome.faults_by_kind


def test_exec_leaves_an_address_space_and_the_last_one_takes_it_down():
    h = Hand([1, 1])
    t, v = h.thread(), h.vma(0, 512)
    h.write(t, v, 0, 1, 2)
    h.exec(t, 1)
    h.write(t, v, 0)
    outcome = run(h)
    assert (outcome.faults, outcome.peak_bytes) == (4, 3 * 4096)
    assert outcome.wall_ns == 4 * FAULT_NS + REFILL_NS + 4 * 100


# -- the scrubber


def test_memory_begins_zeroed_where_there_is_a_scrubber_and_idle_cpus_keep_it_so():
    h = Hand([2])
    t, v = h.thread(), h.vma(0, 1024)
    for _ in range(5):
        h.write(t, v, *range(1024))
        h.unmap(t, 0, 1024)
        h.sleep(t, 10 * MS)
    scrubbed = run(h, "+prezero-2m", 2)
    assert (scrubbed.zeroed_hits, scrubbed.zeroed_misses) == (10, 0)
    assert scrubbed.zeroed_in_fault_bytes == 0
    # what was used is scrubbed: 10 superpages, at 153,600 ns each, some still on the CPU's list at the end
    assert 0 < scrubbed.background_ns <= 10 * 153_600
    assert scrubbed.background_ns % 153_600 == 0
    assert scrubbed.zeroed_ahead_bytes == scrubbed.background_ns // 153_600 * (2 << 20)
    assert scrubbed.disturbances.wakeups > 0
    assert scrubbed.supply[0] == (0, 256 << 20)


def test_without_an_idle_cpu_nothing_is_scrubbed_in_time():
    """One CPU that is always busy, and half of memory in use: the zeroed half is used up."""
    h = Hand([32])
    t, v = h.thread(), h.vma(0, 32 * 512)
    h.write(t, v, *range(0, 32 * 512, 512))
    h.unmap(t, 0, 32 * 512)
    h.write(t, v, *range(0, 32 * 512, 512))
    m = machine(nr_cpus=1, memory_bytes=64 << 20)
    outcome = simulate.simulate(h.workload(), m, linux("+prezero-2m"))
    assert outcome.faults == 64
    assert outcome.zeroed_hits + outcome.zeroed_misses == 64
    assert outcome.zeroed_hits == 32  # each block once
    assert outcome.zeroed_in_fault_bytes == 32 * (2 << 20)


# -- latency


@pytest.mark.parametrize(
    ("ns", "edge"),
    [(0, 1), (7, 8), (8, 9), (15, 16), (16, 18), (17, 18), (18, 20), (1000, 1024), (1023, 1024), (1024, 1152)],
)
def test_a_latency_falls_below_the_upper_edge_of_its_bin(ns, edge):
    """Eight bins an octave: [16, 18), [18, 20) ... [960, 1024), [1024, 1152)."""
    world = replay(threads_that_think(1).workload(), small_machine(), linux())
    world.latency[latency_bin(ns)] += 1
    world.max_latency_ns[0] = 1 << 60
    assert latency_of(world).p50_ns == edge


def test_percentiles_of_a_hand_made_histogram():
    world = replay(threads_that_think(1).workload(), small_machine(), linux())
    assert (latency_of(world).p50_ns, latency_of(world).max_ns) == (0, 0)
    for ns, nr in ((500, 50), (1000, 40), (5000, 9), (70_000, 1)):
        world.latency[latency_bin(ns)] += nr
    world.max_latency_ns[0] = 70_000
    # [480, 512) holds the 50th of 100, [960, 1024) the 90th, [4608, 5120) the 99th
    assert latency_of(world).p50_ns == 512
    assert latency_of(world).p90_ns == 1024
    assert latency_of(world).p99_ns == 5120
    assert latency_of(world).max_ns == 70_000
    world.latency[latency_bin(500)] -= 1  # 49 of 99: the 49.5th is the next
    assert latency_of(world).p50_ns == 1024
    world.max_latency_ns[0] = 1001
    assert latency_of(world).p99_ns == 1001  # no percentile is above the longest


# -- what cannot be simulated


def test_pages_of_another_size_are_refused():
    h = Hand()
    h.thread()
    with pytest.raises(FirsttouchError, match="has pages of 16384 bytes"):
        simulate.simulate(replace(h.workload(), page_bytes=16384), small_machine(), linux())


def test_a_zeroing_method_that_the_machine_lacks_is_named():
    h = Hand()
    h.thread()
    m = small_machine(zero={"temporal": ZeroCost([4096], [100.0], [200.0])})
    with pytest.raises(FirsttouchError, match="no cost for zeroing method 'nontemporal'"):
        simulate.simulate(h.workload(), m, policy.load("linux-6.18"))


def test_user_and_system_time_of_a_recording_are_what_was_measured_less_what_is_charged_anew():
    h = Hand()
    t, v = h.thread(), h.vma(0, 64)
    h.write(t, v, 0)
    h.exit(t, think_ns=10_000)
    workload = replace(recorded(h.workload()), user_ns=7000, system_ns=5000)
    outcome = simulate.simulate(workload, small_machine(), linux())
    assert outcome.user_ns == 7000
    # the recorded fault cost 2000 (recording included) and the end 100: both are charged anew, without recording
    assert outcome.system_ns == 5000 - 2100 + FAULT_NS + REFILL_NS + 100
    assert outcome.wall_ns == FAULT_NS + REFILL_NS + 10_000 - 2100 + 100
