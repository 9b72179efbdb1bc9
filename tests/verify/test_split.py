"""Samples of the CPU clock: whose they are, in which mode, and what becomes of records that are no such thing."""

import struct
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttouch import policy as policies
from firsttouch.host.catalogue import THP_OFF, Setting
from firsttouch.record.ring import CannotPin
from firsttouch.verify import split as split_
from firsttouch.verify.runs import Job, Launcher, Run
from firsttouch.verify.split import Split, SplitClock, split_of

KERNEL, USER, HYPERVISOR = 1, 2, 3


def sample(pid: int, mode: int) -> bytes:
    return struct.pack("<IHHII", 9, mode | 1 << 14, 16, pid, pid)  # with a flag above the mode, as kernels set


def fork(parent: int, child: int, nr_threads: int = 0) -> bytes:
    made = struct.pack("<IHHIIIIQ", 7, 0, 32, child, parent, child, parent, 1)
    return made + struct.pack("<IHHIIIIQ", 7, 0, 32, child, child, child + 1, child, 2) * nr_threads


def end(pid: int) -> bytes:
    return struct.pack("<IHHIIIIQ", 4, 0, 32, pid, pid, pid, pid, 3)


def test_samples_are_those_of_descendants_in_either_mode() -> None:
    first = sample(5, USER) + fork(5, 6, nr_threads=2) + sample(6, USER) + sample(6, KERNEL) + end(6) + sample(9, USER)
    second = sample(7, KERNEL) * 3 + sample(7, HYPERVISOR)
    # 7's parent is known from the ring of another CPU, or from later in the same one; 5 itself is no child of its own
    assert split_of([first, second], 5) == Split(1, 1)
    assert split_of([first + fork(6, 7), second], 5) == Split(1, 4)
    assert split_of([second, first + fork(6, 7)], 5) == Split(1, 4)
    assert split_of([first, second + fork(6, 7)], 6) == Split(0, 3)
    assert split_of([first, second], 1) == Split(0, 0)
    assert split_of([], 5) == Split(0, 0)


def test_a_loop_of_parents_ends() -> None:
    """Process numbers are used again, so the records of forks need not be a tree."""
    assert split_of([fork(5, 6) + fork(6, 7) + fork(7, 6) + fork(7, 5) + sample(7, USER)], 5) == Split(1, 0)


def test_lost_records_and_others() -> None:
    other = struct.pack("<IHHQ", 3, 0, 16, 0)
    assert split_of([other + fork(1, 2) + other + sample(2, USER)], 1) == Split(1, 0)
    lost = struct.pack("<IHHQQ", 2, 0, 24, 1, 4)
    assert split_of([fork(1, 2) + lost + sample(2, USER)], 1) is None


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"1234", "4 bytes where a record begins"),
        (struct.pack("<IHH", 9, 2, 0), "a record of 0 bytes"),
        (struct.pack("<IHH", 9, 2, 24), "24 bytes where 8 are left"),
        (struct.pack("<IHH", 9, 2, 8), "kind 9 in 8 bytes"),
        (struct.pack("<IHHI", 7, 0, 12, 1), "kind 7 in 12 bytes"),
    ],
)
def test_what_is_no_record_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        split_of([data], 1)


@given(st.lists(st.binary(max_size=200), max_size=3), st.integers(0, 2**32 - 1))
def test_any_bytes_are_split_or_refused(rings: list[bytes], ancestor: int) -> None:
    try:
        found = split_of(rings, ancestor)
    except ValueError:
        return
    assert found is None or (found.user >= 0 and found.kernel >= 0)


class _FakeRing:
    """A ring that holds so many bytes of records that nobody reads."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def waiting(self) -> tuple[list[memoryview], int]:
        middle = len(self.data) // 32 * 16
        return [memoryview(self.data)[:middle], memoryview(self.data)[middle:]], len(self.data)

    def free(self, end: int) -> None:
        self.data = self.data[end:]


def test_a_ring_that_was_full_splits_nothing_and_is_emptied() -> None:
    clock = SplitClock.__new__(SplitClock)
    full = fork(1, 2) + sample(2, USER) * (split_.RING_BYTES // 16 - 2)
    clock._rings = [_FakeRing(full), _FakeRing(sample(2, USER))]  # type: ignore[list-item]
    assert clock.read(1) is None
    assert clock.read(1) == Split(0, 0)
    clock._rings = [_FakeRing(full[:4096]), _FakeRing(sample(2, KERNEL))]  # type: ignore[list-item]
    assert clock.read(1) == Split(4096 // 16 - 2, 1)


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    try:
        SplitClock().close()
    except (OSError, CannotPin) as error:
        pytest.skip(f"sampling every CPU needs CAP_PERFMON, or kernel.perf_event_paranoid of at most 0: {error!r}")
    with Launcher(tmp_path) as made:
        yield made


def ran(launcher: Launcher, *command: str) -> Run:
    made = Job(command=list(command), path=command[0], env={"PATH": "/usr/bin:/bin"}, cwd="/")
    return launcher.run(made, Setting("k", policies.load("linux-6.18"), thp_disable=THP_OFF), 0)


def accounted_ratio(run: Run) -> float:
    """Sampled time, of the time that the kernel counted."""
    return (run.user_samples + run.system_samples) * split_.PERIOD_NS / (run.user_ns + run.system_ns)


def test_short_processes_are_met_as_often_as_long_ones(launcher: Launcher) -> None:
    """Each of the many ends before a tick, and before a period of the clock."""
    long = ran(launcher, sys.executable, "-I", "-S", "-c", "for _ in range(3_000_000): pass")
    many = ran(launcher, "/bin/sh", "-c", "i=0; while [ $i -lt 300 ]; do /bin/true; i=$((i+1)); done")
    assert not long.failed and not many.failed
    assert 0.5 < accounted_ratio(long) < 1.5  # about 1; a hypervisor that takes the CPU away takes samples with it
    assert 0.5 < accounted_ratio(many) < 1.5
    assert 0.1 < many.system_ns / (many.user_ns + many.system_ns) < 0.9


def test_what_other_programs_do_is_not_the_programs(launcher: Launcher) -> None:
    """We run while it waits."""
    run = ran(launcher, "/bin/sh", "-c", "/bin/sleep 0.05")
    for _ in range(300_000):
        pass  # ours, on a CPU that is sampled
    assert run.user_samples + run.system_samples < 0.05 / (split_.PERIOD_NS / 1e9)
    again = ran(launcher, "/bin/true")
    assert again.user_samples + again.system_samples < 100
