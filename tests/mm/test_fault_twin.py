"""The model's faults against the twin's: equal exactly, kind by kind, on random programs."""

import pytest
from hand_workload import PAGE_BYTES, linux, small_machine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import programs
from twin import Twin

from firsttouch.mm.simulate import simulate

POLICIES = {  # diffs -> what the twin is told
    "": {},
    "+thp": {"plain": [9], "advised": [9]},
    "+thp-madvise": {"advised": [9]},
    "+mthp-16k": {"plain": [2], "advised": [2]},
    "+mthp-64k+mthp-1024k": {"plain": [4, 8], "advised": [4, 8]},
    "+thp+mthp-64k": {"plain": [4, 9], "advised": [4, 9]},
    "+fault-around-4": {"window": 1},
    "+fault-around-256": {"window": 64},
    "+populate": {"populate": True},
    "+populate+thp+mthp-16k": {"populate": True, "plain": [2, 9], "advised": [2, 9]},
    "+prezero-4k": {},
    "+prezero-2m": {"plain": [9], "advised": [9]},
}
EXAMPLES = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def same(program, diffs, nr_cpus, recorded_window=16):
    twin = Twin(program.vmas, recorded_window=recorded_window, **POLICIES[diffs])
    faults = twin.run(program.steps)
    workload = program.hand.workload(recorded_fault_around_bytes=recorded_window * PAGE_BYTES)
    outcome = simulate(workload, small_machine(nr_cpus), linux(diffs))
    assert {kind: nr for kind, nr in outcome.faults_by_kind.items() if nr} == faults
    assert outcome.peak_bytes == twin.peak * PAGE_BYTES
    assert outcome.untouched_bytes == twin.untouched * PAGE_BYTES
    assert outcome.copied_bytes == twin.copied * PAGE_BYTES
    assert outcome.faults == sum(faults.values())
    assert twin.mapped == 0


@EXAMPLES
@given(programs(), st.sampled_from(list(POLICIES)), st.integers(1, 3))
def test_plain_touches(program, diffs, nr_cpus):
    same(program, diffs, nr_cpus)


@EXAMPLES
@given(programs(recorded=True), st.sampled_from(list(POLICIES)), st.integers(1, 2), st.sampled_from([1, 16, 64]))
def test_recorded_touches(program, diffs, nr_cpus, recorded_window):
    same(program, diffs, nr_cpus, recorded_window)


@pytest.mark.slow
@settings(EXAMPLES, max_examples=1500)
@given(programs(recorded=True, max_steps=40, nr_threads=4, nr_spaces=3), st.sampled_from(list(POLICIES)))
def test_longer_programs(program, diffs):
    same(program, diffs, 2)
