"""Runs: their order, what ends them, the files of the settings, and the process that starts programs."""

import os
import resource
import select
import sys
import threading
from pathlib import Path

import pytest

from firsttouch import policy as policies
from firsttouch.errors import FirsttouchError
from firsttouch.host import knobs
from firsttouch.host.catalogue import THP_OFF, Setting
from firsttouch.verify import runs
from firsttouch.verify.runs import Job, Kernel, Launcher, Run

BASE = policies.load("linux-6.18")


def setting(name: str, **more: object) -> Setting:
    return Setting(name=name, policy=BASE, **more)  # type: ignore[arg-type]


def job(*command: str, cwd: str = "/", **more: object) -> Job:
    return Job(command=list(command), path=command[0], env={"LC_ALL": "C"}, cwd=cwd, **more)  # type: ignore[arg-type]


def ran(knob: str, number: int, code: int = 0) -> Run:
    return Run(
        knob=knob, round=number, exit=code, minflt=1, majflt=0, user_ns=1, system_ns=1, wall_ns=1, maxrss_bytes=1,
        preempted=0, collapsed=0, fallbacks=0, host_cold=False, error="out of cheese" if code else "",
    )  # fmt: skip


def quiet(text: str, done: int, total: int) -> None:
    pass


def test_rounds_are_interleaved_and_their_number_is_fixed() -> None:
    order = []

    def run(_: Job, under: Setting, number: int) -> Run:
        order.append((number, under.name))
        return ran(under.name, number)

    a, b, c = (setting(name) for name in "abc")
    rounds = [[a, b, c], [a, b], *[[a, b, c]] * 8]
    found = runs.interleaved(job("x"), rounds, Kernel(None), run, quiet)
    assert [number for number, _ in order] == [0] * 3 + [1] * 2 + [number for number in range(2, 10) for _ in "abc"]
    for number, settings in enumerate(rounds):
        assert sorted(name for at, name in order if at == number) == [one.name for one in settings]
    assert {name: len(mine) for name, mine in found.items()} == {"a": 10, "b": 10, "c": 9}
    first, order[:] = list(order), []
    runs.interleaved(job("x"), rounds, Kernel(None), run, quiet)
    assert order == first  # drawn, but the same each time


def test_no_setting_always_follows_the_same_other() -> None:
    order: list[str] = []

    def run(_: Job, under: Setting, number: int) -> Run:
        order.append(under.name)
        return ran(under.name, number)

    runs.interleaved(job("x"), [[setting(name) for name in "abc"]] * 12, Kernel(None), run, quiet)
    followed = {name: {order[at - 1] for at in range(1, len(order)) if order[at] == name} for name in "abc"}
    assert all(len(others) > 1 for others in followed.values()), followed


def test_a_failure_ends_the_runs_of_its_setting_alone() -> None:
    def run(_: Job, under: Setting, number: int) -> Run:
        return ran(under.name, number, code=3 if (under.name, number) == ("b", 1) else 0)

    found = runs.interleaved(job("x"), [[setting("a"), setting("b")]] * 4, Kernel(None), run, quiet)
    assert [len(found["a"]), len(found["b"])] == [4, 2]
    assert found["b"][-1].failed == "exit 3: out of cheese"
    assert ran("k", 0, code=-9).failed.startswith("signal 9")


def test_each_run_has_the_files_of_its_setting_and_the_old_values_of_the_others(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("one")
    second.write_text("two")
    seen = []

    def run(_: Job, under: Setting, number: int) -> Run:
        seen.append((under.name, first.read_text(), second.read_text()))
        return ran(under.name, number)

    settings = [
        setting("a", files={str(first): "A"}),
        setting("b", files={str(second): "B"}),
        setting("none"),
    ]
    with knobs.guard_knobs([first, second], tmp_path / "state") as guard:
        runs.interleaved(job("x"), [settings] * 6, Kernel(guard), run, quiet)
    assert len(seen) == 18
    assert set(seen) == {("a", "A", "two"), ("b", "one", "B"), ("none", "one", "two")}
    assert (first.read_text(), second.read_text()) == ("one", "two")


def test_files_are_put_back_before_each_run(tmp_path: Path) -> None:
    made = job("x", cwd=str(tmp_path), before=["sh", "-c", "echo again >> log"])
    runs.interleaved(made, [[setting("a")]] * 3, Kernel(None), lambda *_: ran("a", 0), quiet)
    assert (tmp_path / "log").read_text() == "again\n" * 3
    with pytest.raises(FirsttouchError, match="no luck"):
        runs.prepare(job("x", before=["sh", "-c", "echo no luck >&2; exit 1"]))


def test_tunables_of_the_user_are_kept() -> None:
    made = Job(command=["x"], path="x", env={"GLIBC_TUNABLES": "glibc.malloc.check=1"}, cwd="/")
    both = made.environment(setting("malloc-thp", env={"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}))
    assert both["GLIBC_TUNABLES"] == "glibc.malloc.check=1:glibc.malloc.hugetlb=1"


def test_the_launcher_reports_how_a_program_ended(tmp_path: Path) -> None:
    with Launcher(tmp_path) as launcher:
        good = launcher.run(job("/bin/sh", "-c", "exit 0"), setting("k"), 1)
        bad = launcher.run(job("/bin/sh", "-c", "echo first >&2; echo last >&2; exit 3"), setting("k"), 2)
        killed = launcher.run(job("/bin/sh", "-c", "kill -9 $$"), setting("k"), 3)
        left = launcher.run(job("/bin/sh", "-c", "exec 2>&-; (read x < /proc/self/fd/9 || exec tail -f /dev/null) & "
                                "echo $! > pid", cwd=str(tmp_path)), setting("k"), 4)  # fmt: skip
        os.kill(int((tmp_path / "pid").read_text()), 9)
        with pytest.raises(FirsttouchError, match="No such file"):
            launcher.run(job("/nonexistent"), setting("k"), 5)
    assert (good.failed, good.round, good.knob, good.left_behind) == ("", 1, "k", False)
    assert bad.failed == "exit 3: last"
    assert killed.failed == "signal 9"
    assert left.left_behind


def test_the_launcher_gives_a_program_its_folder_environment_and_no_terminal(tmp_path: Path) -> None:
    script = 'test "$PWD" = "$WANT" && test "$LC_ALL" = C && ! test -t 0 && ! test -t 1 && ! test -t 2'
    made = job("/bin/sh", "-c", script, cwd=str(tmp_path))
    with Launcher(tmp_path) as launcher:
        assert launcher.run(made, setting("k", env={"WANT": str(tmp_path)}), 0).exit == 0


def test_the_kernel_counts_every_page_a_program_touches_and_no_other(tmp_path: Path) -> None:
    script = (
        "import mmap, sys\nm = mmap.mmap(-1, 64 << 20, flags=34)\nfor k in range(int(sys.argv[1])): m[k * 4096] = 1"
    )
    counts = []
    with Launcher(tmp_path) as launcher:
        for number in ("1000", "9000", "1000"):
            made = job(sys.executable, "-I", "-S", "-c", script, number)
            counts.append(launcher.run(made, setting("k", thp_disable=THP_OFF), 0).faults)
    # 8,000 data pages; a page-table page is no fault. Interpreters may differ by a few pages in their own business.
    assert 8000 - 40 <= counts[1] - counts[0] <= 8000 + 40
    assert abs(counts[2] - counts[0]) <= 40


def test_whatever_runs_ends_when_the_verifier_does(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    os.mkfifo(hold)
    launcher = Launcher(tmp_path)
    ask = job("/bin/sh", "-c", "echo $$ > hold; exec tail -f /dev/null", cwd=str(tmp_path))
    import json

    words = {"command": ask.command, "path": ask.path, "env": ask.env, "cwd": ask.cwd}
    launcher._process.stdin.write(json.dumps({**words, "thp_disable": [0, 0], "stderr": os.devnull}).encode() + b"\n")
    launcher._process.stdin.flush()
    handle = os.pidfd_open(int(hold.read_text()))
    launcher._process.stdin.close()  # as the kernel does when we are killed
    ready, _, _ = select.select([handle], [], [], 30)
    os.close(handle)
    assert ready, "the program outlives its verifier"
    launcher._process.wait()
    launcher._process.stdout.close()


def test_memory_is_warmed_on_each_cpu_by_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.sched_getaffinity(0)
    seen = []

    def is_cold(nr_bytes: int, chunk_bytes: int, advised: bool, touched: threading.Barrier) -> bool:
        touched.wait(30)  # breaks unless a thread on every other CPU comes here too
        seen.append((os.sched_getaffinity(0), nr_bytes, advised))
        return advised and min(os.sched_getaffinity(0)) == max(before)

    monkeypatch.setattr(runs, "_is_cold", is_cold)
    assert runs.warm(10 << 20) is False
    assert sorted(min(cpus) for cpus, _, _ in seen) == sorted(before)
    assert {(len(cpus), nr_bytes, advised) for cpus, nr_bytes, advised in seen} == {(1, 12 << 20, False)}
    assert os.sched_getaffinity(0) == before  # only the threads were pinned
    seen.clear()
    assert runs.warm(10 << 20, advised=True) is True  # cold on one CPU, for one size, is cold
    assert sorted((min(cpus), advised) for cpus, _, advised in seen) == sorted(
        (cpu, advised) for cpu in before for advised in (False, True)
    )


def test_warming_touches_the_memory_twice_on_each_cpu() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    runs.warm(100 << 20)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    huge_pages = 120 // 2  # the fewest faults that so much memory takes
    assert faults >= 2 * huge_pages * len(os.sched_getaffinity(0))


def test_warming_nothing_is_not_cold() -> None:
    assert runs.warm(0) is False


def test_what_the_launcher_has_is_what_a_small_program_shows(tmp_path: Path) -> None:
    """Its own peak, not that of the process that started it: below it a program's peak is not seen."""
    with Launcher(tmp_path) as launcher:
        shown = launcher.run(job("/bin/sh", "-c", "exit 0"), setting("k"), 0).maxrss_bytes
        assert 0.8 < shown / launcher.own_bytes < 1.25


def test_a_short_program_is_executed_as_often_as_its_split_needs_and_time_allows() -> None:
    def times(system_ns: float, execution_ns: float, extra_ns: float, sampled: bool = False) -> int:
        return runs.executions_for(system_ns, execution_ns, nr_runs=15, extra_ns=extra_ns, sampled=sampled)

    assert times(300e6, 1e9, 1e12) == 1
    assert times(25e6, 0.1e9, 1e12) == 10
    assert times(25e6, 0.1e9, 6e9) == 5
    assert times(25e6, 0.1e9, 0) == 1
    assert times(0, 0, 0) == 1
    assert times(25e6, 0.1e9, 1e12, sampled=True) == 4  # 200 samples, 0.5 ms apart


def test_cpu_time_is_split_by_samples_where_there_are_some() -> None:
    from msgspec.structs import replace

    ticks = replace(ran("a", 0), user_ns=12_000_000, system_ns=0)
    assert runs.divided(ticks) == ticks
    by_samples = runs.divided(replace(ticks, user_samples=16, system_samples=8))
    assert (by_samples.user_ns, by_samples.system_ns) == (8_000_000, 4_000_000)
    each = iter([by_samples, runs.divided(replace(ticks, system_ns=12_000_000, user_samples=0, system_samples=24))])
    both = runs.executed(lambda: next(each), 2, job("x"))
    assert (both.user_samples, both.system_samples) == (16, 32)
    assert (both.user_ns, both.system_ns) == (6_000_000, 12_000_000)  # of 18 ms on average, a third


def test_a_run_of_several_executions() -> None:
    from msgspec.structs import replace

    one = ran("a", 0)
    each = [
        replace(one, minflt=100, system_ns=4_000, wall_ns=10, collapsed=1),
        replace(one, minflt=100, system_ns=0, wall_ns=30),
        replace(one, minflt=999, system_ns=99_000, wall_ns=99, host_cold=True),  # is left out
        replace(one, minflt=107, system_ns=9_500, wall_ns=20, collapsed=2),
    ]
    left = iter(each)
    run = runs.executed(lambda: next(left), 4, job("x"))
    assert (run.minflt, run.system_ns, run.wall_ns, run.collapsed, run.executions) == (100, 4_500, 20, 3, 3)
    assert not run.host_cold
    left = iter([each[2]] * 3)
    assert runs.executed(lambda: next(left), 3, job("x")).host_cold
    left = iter([each[0], ran("a", 0, code=3), each[2]])
    assert runs.executed(lambda: next(left), 3, job("x")).failed
    assert next(left) is each[2]  # nothing is executed after a failure
