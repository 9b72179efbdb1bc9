"""The scheduler's idle class, waits for I/O, and that every CPU's clock is accounted for.

A thread frees 4,096 pages of 4 KiB under scrubd-v6 and sleeps. Its daemon zeroes blocks meanwhile, on the one CPU.
"""

from itertools import pairwise

import msgspec
import pytest
from hand_workload import Hand
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import programs
from test_effects import frees_then_sleeps, round_machine

from firsttouch import policy
from firsttouch.errors import FirsttouchError
from firsttouch.mm.sched import (
    AT_CHECK,
    AT_ONCE,
    AT_SLICE_END,
    BUSY,
    IDLE,
    IDLE_YIELDS,
    NOBODY,
    NR_IN_IO,
    NR_READY,
    QUEUED_NS,
    READY,
    SCRUBBING,
    give_way,
    make_sched,
    occupy,
    pop_timer,
    sleep_for_io,
    wake,
)
from firsttouch.mm.simulate import outcome_of, replay
from firsttouch.mm.world import COLD_NS, SCRUB_NS, SYSTEM_NS, THINK_NS

import numpy as np  # isort: skip

SLEEP_NS = 100_000
QUANTUM_NS = 3_000_000


def scrubbed(idle_yield, workload=None, nr_cpus=1, quantum_ns=QUANTUM_NS, name="linux-2.6.10+scrubd-v6"):
    """World and outcome with a daemon that gives way so."""
    rules = policy.load(name)
    rules = msgspec.structs.replace(rules, sched=policy.Sched(quantum_ns=quantum_ns, idle_yield=idle_yield))
    workload = workload or frees_then_sleeps(4096, SLEEP_NS)
    world = replay(workload, round_machine(nr_cpus), rules)
    return world, outcome_of(world, workload, rules)


def assert_clocks_add_up(world):
    """S3."""
    charged = sum(int(world.total[i]) for i in (THINK_NS, COLD_NS, SYSTEM_NS, SCRUB_NS))
    in_flight = int(world.owed_ns.sum() + world.sched.owed_ns.sum())
    assert int(world.sched.clock_ns.sum()) == int(world.sched.idle_ns.sum()) + charged - in_flight


# -- by hand, on the scheduler alone


def one_daemon(idle_yield):
    """One CPU, whose daemon began a block at 100 that it will have done at 400, and threads that have not begun."""
    s = make_sched(3, 1, np.zeros(3, np.int64), idle_yield)
    occupy(s, 0, SCRUBBING, 100, 1000)
    s.clock_ns[0] = 400
    return s


@pytest.mark.parametrize(
    ("idle_yield", "clock_ns", "owed_ns", "late_ns"), [(AT_CHECK, 400, 0, 250), (AT_ONCE, 150, 250, 0)]
)
def test_a_thread_takes_the_cpu_of_a_daemon(idle_yield, clock_ns, owed_ns, late_ns):
    s = one_daemon(idle_yield)
    wake(s, 0, 150, 1000)
    assert (s.activity[0], s.thread[0]) == (BUSY, 0)
    assert (s.clock_ns[0], s.owed_ns[0], s.counts[3]) == (clock_ns, owed_ns, late_ns)
    assert s.idle_ns[0] == 100  # before the daemon


def test_a_block_that_has_not_begun_is_not_owed():
    s = one_daemon(AT_ONCE)
    s.begun_ns[0] = 400
    wake(s, 0, 150, 1000)
    assert (s.clock_ns[0], s.owed_ns[0]) == (400, 0)


def test_a_daemon_that_keeps_its_cpu_does_so_to_the_end_of_its_slice():
    s = one_daemon(AT_SLICE_END)
    wake(s, 0, 150, 1000)
    assert (s.activity[0], s.state[0], s.counts[NR_READY]) == (SCRUBBING, READY, 1)
    assert not give_way(s, 0, 1000)  # 400, and its slice ends at 1100
    s.clock_ns[0] = 1100
    assert give_way(s, 0, 1000)
    assert (s.activity[0], s.thread[0], s.counts[QUEUED_NS], s.counts[3]) == (BUSY, 0, 950, 950)


def test_a_daemon_whose_slice_is_over_gets_another_when_nobody_waits():
    s = one_daemon(AT_SLICE_END)
    s.clock_ns[0] = 1100
    assert not give_way(s, 0, 1000)
    assert (s.activity[0], s.thread[0], s.slice_end_ns[0]) == (SCRUBBING, NOBODY, 2100)


def test_an_idle_cpu_is_taken_before_a_daemons():
    s = make_sched(1, 2, np.zeros(1, np.int64), AT_ONCE)
    occupy(s, 0, SCRUBBING, 0, 1000)
    wake(s, 0, 50, 1000)
    assert (s.activity[0], s.activity[1]) == (SCRUBBING, BUSY)


def test_sleepers_for_io_are_counted_until_they_wake():
    s = make_sched(2, 1, np.zeros(2, np.int64))
    sleep_for_io(s, 0, 100)
    sleep_for_io(s, 1, 50)
    assert s.counts[NR_IN_IO] == 2
    assert (pop_timer(s), s.counts[NR_IN_IO]) == (1, 1)
    assert (pop_timer(s), s.counts[NR_IN_IO]) == (0, 0)
    assert s.activity[0] == IDLE


# -- in the model


@pytest.mark.parametrize("idle_yield", IDLE_YIELDS)
@pytest.mark.parametrize("nr_cpus", [1, 2])
def test_all_are_accounted_for_under_each_rule(idle_yield, nr_cpus):
    world, outcome = scrubbed(idle_yield, nr_cpus=nr_cpus)
    assert_clocks_add_up(world)
    assert outcome.background_ns > 0
    assert outcome.zeroed_ahead_bytes == outcome.background_ns // 300 * 4096  # 300 ns a page: each block came back
    late_ns = outcome.disturbances.sched_latency_ns
    assert outcome.wall_ns == outcome.user_ns + outcome.system_ns + SLEEP_NS + late_ns


def test_preemption_leaves_nobody_waiting_and_checks_cost_less_than_slices():
    late = {rule: scrubbed(rule)[1].disturbances.sched_latency_ns for rule in IDLE_YIELDS}
    assert late["at-once"] == 0 < late["check"] < late["slice-end"]


def test_a_shorter_slice_makes_the_wait_for_it_shorter():
    late = [scrubbed("slice-end", quantum_ns=ns)[1].disturbances.sched_latency_ns for ns in (200_000, 3_000_000)]
    assert 0 < late[0] < late[1]


def test_what_a_daemon_zeroes_in_all_does_not_depend_on_how_it_gives_way():
    assert len({scrubbed(rule)[1].zeroed_ahead_bytes for rule in IDLE_YIELDS}) == 1


def busy_then_frees(io):
    """Four threads sleep for a minute; then another frees 4,096 pages."""
    h = Hand([8])
    v = h.vma(0, 4096)
    for _ in range(4):
        t = h.thread()
        h.add(t, 7, page=70 * 10**9, arg=int(io))
    t = h.thread()
    h.write(t, v, *range(4096))
    h.sleep(t, 60 * 10**9)
    h.unmap(t, 0, 4096)
    h.sleep(t, 10**9)
    return h.workload()


@pytest.mark.parametrize(("io", "is_scrubbed"), [(False, True), (True, False)])
def test_waits_for_io_hold_a_daemon_back_that_looks_at_the_load(io, is_scrubbed):
    workload = busy_then_frees(io)
    rules = policy.load("linux-2.6.10+scrubd-v6")
    rules = msgspec.structs.replace(rules, zero=msgspec.structs.replace(rules.zero, scrub_load=2))
    outcome = outcome_of(replay(workload, round_machine(2), rules), workload, rules)
    assert (outcome.zeroed_ahead_bytes > 0) == is_scrubbed


@settings(max_examples=25, deadline=None)
@given(program=programs(), rule=st.sampled_from(IDLE_YIELDS), nr_cpus=st.integers(1, 3))
def test_clocks_add_up_on_any_program(program, rule, nr_cpus):
    world, _ = scrubbed(rule, program.hand.workload(), nr_cpus, name="linux-6.18+prezero-4k")
    assert_clocks_add_up(world)


def test_queued_threads_wait_for_what_runs_before_them():
    h = Hand([1])
    for _ in range(3):
        h.exit(h.thread(), think_ns=1000)
    world, _ = scrubbed("check", h.workload())
    waits = [i * 1000 for i in range(3)]
    assert world.sched.counts[QUEUED_NS] == sum(waits)
    assert all(a < b for a, b in pairwise(waits))


def test_zeroing_just_freed_pages_at_once_is_a_contradiction(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('extends = "linux-2.6.10+zero-hot-pages"\n[sched]\nidle_yield = "at-once"\n')
    with pytest.raises(FirsttouchError, match="idle_yield is at-once"):
        policy.load(file)
