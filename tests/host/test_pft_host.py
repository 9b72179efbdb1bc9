"""The page-fault test for real: the kernel's own count of faults is the check."""

import os

import pytest

from firsttouch._jit import JIT
from firsttouch.errors import FirsttouchError, NotHere
from firsttouch.workload.generators import PftTest

MIB = 1 << 20
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

pytestmark = pytest.mark.skipif(not JIT, reason="memory is touched by compiled code only")


@pytest.fixture(scope="module")
def run():
    from firsttouch.host.pft import PftRun

    return PftRun()


@pytest.mark.parametrize(
    ("nr_bytes", "reps", "threads", "lines", "stride"),
    [(16 * MIB, 1, 1, 1, 16384), (16 * MIB, 3, 1, 1, PAGE_BYTES), (16 * MIB, 2, 3, 16, PAGE_BYTES)],
)
def test_the_kernel_counts_the_touched_pages_and_few_more(run, nr_bytes, reps, threads, lines, stride) -> None:
    test = PftTest(nr_bytes, reps, threads, lines, stride)
    row = run.row(test)
    assert row.touched_pages == test.touched_pages(PAGE_BYTES)
    # A child has faults of its own: stacks, and what it shares with its parent until it writes there. How many depends
    # on the parent, and not on the memory that is touched.
    least = run.row(PftTest(stride * threads, reps, threads, lines, stride))
    own = row.faults - row.touched_pages
    assert own == pytest.approx(least.faults - least.touched_pages, abs=4 * reps * threads)
    assert 0 <= own < row.touched_pages
    assert row.wall_s > 0 and row.user_s + row.system_s > 0
    assert row.faults_per_wall_s == pytest.approx(test.pages(PAGE_BYTES) / row.wall_s)
    assert (row.machine, row.policy, row.out_of_memory) == ("host", "", False)
    assert run.empty_s > 0


def test_children_are_waited_for(run) -> None:
    run.row(PftTest(MIB, 2, 2))
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_more_than_the_memory_is_refused_before_it_runs(run) -> None:
    with pytest.raises(NotHere, match=r"has .* free"):
        run.row(PftTest(1 << 43, 1, 1, 1, PAGE_BYTES))


def test_a_child_that_cannot_map_says_so(run, monkeypatch: pytest.MonkeyPatch) -> None:
    from firsttouch.host import pft

    monkeypatch.setattr(pft, "available_bytes", lambda: 1 << 62)
    test = PftTest(1 << 44, 1, 1, 1, 1 << 43)  # two pages, 8 TiB apart
    with pytest.raises(NotHere, match="cannot map"):
        run.row(test)


def test_a_child_that_dies_is_told(run, monkeypatch: pytest.MonkeyPatch) -> None:
    from firsttouch.host import pft

    monkeypatch.setattr(pft._Plan, "start", lambda self, threads: _dying_child())
    with pytest.raises(FirsttouchError, match="signal 9"):
        run.row(PftTest(MIB))


def _dying_child() -> int:
    """A child that is killed at once."""
    import signal
    import subprocess
    import sys

    child = subprocess.Popen([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    child.returncode = -signal.SIGKILL  # it is waited for by the code under test
    return child.pid


def test_available_memory_is_read(tmp_path) -> None:
    from firsttouch.host.pft import available_bytes

    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 2048 kB\nMemAvailable: 1024 kB\n")
    assert available_bytes(tmp_path) == MIB
