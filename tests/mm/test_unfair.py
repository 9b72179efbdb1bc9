"""Test-and-set locks: who comes back while the line is on its way to another has the lock at once."""

import msgspec
import pytest

from firsttouch import machine, policy
from firsttouch.mm.locks import PAGE_TABLE, acquire, acquire_unfair, make_locks
from firsttouch.mm.simulate import replay
from firsttouch.workload.generators import pft

HOLD_NS, HANDOFF_NS = 100, 1000


def two_cpus(take):
    """CPU 0 has the lock from 0 to 100; CPU 1 asks at 50, and has it from 1100 to 1200."""
    locks = make_locks(1, nr_cpus=2)
    assert take(locks, PAGE_TABLE, 0, 0, 0, HOLD_NS, HANDOFF_NS, 0) == HOLD_NS
    assert take(locks, PAGE_TABLE, 0, 1, 50, HOLD_NS, HANDOFF_NS, 0) == 50 + HANDOFF_NS + HOLD_NS
    return locks


@pytest.mark.parametrize(
    ("take", "back_ns", "kept_ns"),
    [
        (acquire_unfair, 400, HOLD_NS),
        (acquire_unfair, 1099, HOLD_NS),
        (acquire_unfair, 1100, 100 + HANDOFF_NS + HOLD_NS),  # the line has left
        (acquire, 400, 800 + HANDOFF_NS + HOLD_NS),
    ],
)
def test_one_that_comes_back_in_time_does_not_wait(take, back_ns, kept_ns):
    locks = two_cpus(take)
    assert take(locks, PAGE_TABLE, 0, 0, back_ns, HOLD_NS, HANDOFF_NS, 0) == kept_ns
    assert locks.nr_acquired[PAGE_TABLE] == 3


def test_nobody_is_later_for_it():
    locks = two_cpus(acquire_unfair)
    free_ns, cpu = int(locks.free_at_ns[0]), int(locks.last_cpu[0])
    acquire_unfair(locks, PAGE_TABLE, 0, 0, 400, HOLD_NS, HANDOFF_NS, 0)
    assert (locks.free_at_ns[0], locks.last_cpu[0]) == (free_ns, cpu)


def test_the_line_of_a_free_lock_leaves_when_it_is_asked_for():
    locks = make_locks(1, nr_cpus=2)
    acquire_unfair(locks, PAGE_TABLE, 0, 0, 0, HOLD_NS, HANDOFF_NS, 0)
    assert acquire_unfair(locks, PAGE_TABLE, 0, 1, 5000, HOLD_NS, HANDOFF_NS, 0) == HANDOFF_NS + HOLD_NS
    assert acquire_unfair(locks, PAGE_TABLE, 0, 0, 5999, HOLD_NS, HANDOFF_NS, 0) == HOLD_NS


def test_where_two_wait_the_line_is_gone():
    locks = two_cpus(acquire_unfair)
    kept_ns = acquire_unfair(locks, PAGE_TABLE, 0, 2, 60, HOLD_NS, HANDOFF_NS, 0)
    assert kept_ns == 1200 - 60 + HANDOFF_NS + HOLD_NS
    assert acquire_unfair(locks, PAGE_TABLE, 0, 0, 400, HOLD_NS, HANDOFF_NS, 0) > HANDOFF_NS


def test_of_a_fault_that_need_not_zero_only_one_of_two_holds_waits_for_the_other_cpu():
    on = machine.load("altix8")
    on = msgspec.structs.replace(on, memory_bytes=on.memory_bytes // 64)
    workload = pft(512 * on.page_bytes, threads=2, page_bytes=on.page_bytes, line_bytes=on.line_bytes)
    world = replay(workload, on, policy.load("linux-2.6.10+pack+scrubd-v3"))
    assert world.locks.nr_acquired[PAGE_TABLE] == 2 * 512
    assert world.locks.wait_ns[PAGE_TABLE] < 512 * 1.1 * on.cost.lock_handoff.ns  # 2.8 with locks that are fair
