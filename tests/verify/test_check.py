"""A verification from end to end: on a made-up kernel, then (as root) on this one."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import handmade
import pytest

from firsttouch import machine as machines
from firsttouch.errors import FirsttouchError
from firsttouch.host import knobs
from firsttouch.host.catalogue import Setting
from firsttouch.trace import Trace
from firsttouch.verify import check
from firsttouch.verify.check import Subject, Verification, verify
from firsttouch.verify.claims import Claim
from firsttouch.verify.predict import Recorded, read
from firsttouch.verify.runs import Job, Run

MIB = 1 << 20


class FakeKernel:
    """Stands for `Launcher`: counts what it is told to."""

    fixed_addresses = True
    own_bytes = 10 * MIB
    clock = None
    counts: ClassVar[dict[str, Any]] = {}
    ran: ClassVar[list[tuple[str, int]]] = []

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> "FakeKernel":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, job: Job, setting: Setting, number: int, host_cold: bool = False) -> Run:
        self.ran.append((setting.name, number))
        values = {
            "exit": 0, "minflt": 100, "majflt": 0, "user_ns": 1_000_000, "system_ns": 500_000, "wall_ns": 2_000_000,
            "maxrss_bytes": 20 * MIB, "preempted": 0, "collapsed": 0, "fallbacks": 0,
        }  # fmt: skip
        for knob, changes in self.counts.items():
            if knob in (setting.name, f"{setting.name}/{number}"):
                values |= changes
        return Run(knob=setting.name, round=number, host_cold=values.pop("host_cold", host_cold), **values)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeKernel]:
    monkeypatch.setattr(check, "Launcher", FakeKernel)
    monkeypatch.setattr(check.runs_, "warm", lambda nr_bytes, advised=False: False)
    monkeypatch.setattr(FakeKernel, "counts", {})
    monkeypatch.setattr(FakeKernel, "ran", [])
    return FakeKernel


@pytest.fixture
def faked(fake: type[FakeKernel], hand_trace: Path, round_machine: Path) -> Any:
    """Verify the hand-made trace on the fake kernel, under knobs that change no file."""

    def run(**options: Any) -> Verification:
        subject = Subject("hand", ["true"], trace=str(hand_trace), **options.pop("subject", {}))
        mine = {"knob_names": ["no-thp"], "nr_runs": 3, "extra_s": 0, "machine": machines.load(round_machine)}
        options = mine | options
        return verify([subject], **options)

    return run


def claim(result: Verification, observable: str, knob: str = "no-thp") -> Claim:
    (found,) = [c for c in result.claims if (c.knob, c.observable) == (knob, observable)]
    return found


def touches(trace: Path) -> int:
    with Trace(trace) as opened:
        return int(opened.sql("SELECT count(*) FROM touch")[0][0])


def test_a_right_count_passes_and_a_wrong_one_fails(faked: Any, fake: type[FakeKernel], hand_trace: Path) -> None:
    right = touches(hand_trace)
    fake.counts = {"no-thp": {"minflt": right - 1, "majflt": 1}}
    good = claim(faked(), "faults")
    assert (good.predicted, good.error_ratio, good.verdict) == (right, 0.0, "pass")
    assert good.measured is not None and good.measured.n == 3
    fake.counts = {"no-thp": {"minflt": 2 * right}}
    result = faked()
    assert claim(result, "faults").verdict == "fail" and result.exit_code == 1
    assert claim(result, "faults").error_ratio == -0.5


def test_the_number_of_runs_is_what_was_asked_for(faked: Any, fake: type[FakeKernel]) -> None:
    faked(nr_runs=4, nr_recordings=2)
    before, rounds = fake.ran[:2], fake.ran[2:]  # a short program runs twice before the first round
    assert before == [("base pages", 0), ("base pages", 1)]
    assert sorted(rounds) == [("base pages", 0), ("base pages", 2), *(("no-thp", number) for number in range(4))]


def test_a_program_that_is_not_short_runs_once_before_the_first_round(faked: Any, fake: type[FakeKernel]) -> None:
    fake.counts = {"base pages": {"wall_ns": 2 * check.SHORT_NS}}
    faked(nr_runs=1)
    assert sorted(fake.ran) == [("base pages", 0), ("base pages", 0), ("no-thp", 0)]


def test_a_short_program_is_executed_more_than_once_a_run(faked: Any, fake: type[FakeKernel]) -> None:
    fake.counts = {name: {"system_ns": 125_000_000} for name in ("base pages", "no-thp")}  # half of what ticks need
    result = faked(nr_runs=2, extra_s=1e6)
    assert [(run.knob, run.executions) for run in result.programs[0].runs] == [
        ("no-thp", 2), ("no-thp", 2), ("base pages", 2),
    ]  # fmt: skip
    assert sorted(name for name, _ in fake.ran) == ["base pages"] * (2 + 2) + ["no-thp"] * 2 * 2
    assert any("executions" in note for note in result.programs[0].notes)


def test_a_machine_that_drifts_is_no_error_of_the_model(faked: Any, fake: type[FakeKernel]) -> None:
    """Base pages took longer in the round than before it: so does what is predicted for the knobs."""
    before = claim(faked(nr_runs=1), "wall_ns").predicted
    fake.counts = {"base pages/0": {"wall_ns": 3_000_000}, "base pages/1": {"wall_ns": 2_000_000}}
    assert claim(faked(nr_runs=1), "wall_ns").predicted == before + 1_000_000


def test_what_is_predicted_for_base_pages_does_not_start_from_their_own_runs(
    faked: Any, fake: type[FakeKernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs of the knob `never` are base pages too, so the other knobs start from them as well, but not itself."""
    monkeypatch.setattr(check, "BASE_KNOB", "no-thp")
    names = ["no-thp", "thp-advised-only"]
    before = {knob: claim(faked(knob_names=names), "wall_ns", knob).predicted for knob in names}
    fake.counts = {"no-thp": {"wall_ns": 3_000_000}}  # 1 ms more, in three runs against two of base pages
    after = {knob: claim(faked(knob_names=names), "wall_ns", knob).predicted for knob in names}
    assert after["no-thp"] == before["no-thp"]
    assert after["thp-advised-only"] == before["thp-advised-only"] + 1_000_000


def test_base_runs_that_met_cold_memory_are_nothing_to_start_from(faked: Any, fake: type[FakeKernel]) -> None:
    before = claim(faked(nr_runs=3), "wall_ns").predicted
    fake.counts = {"base pages/2": {"wall_ns": 9_000_000, "host_cold": True}}
    assert claim(faked(nr_runs=3), "wall_ns").predicted == before
    fake.counts = {f"base pages/{number}": {"wall_ns": 9_000_000, "host_cold": True} for number in (0, 2)}
    fake.counts["base pages/1"] = {"wall_ns": 2_000_000}  # the run before the rounds
    assert claim(faked(nr_runs=3), "wall_ns").predicted == before


def test_a_knob_that_changes_what_a_program_calls_has_plain_runs_of_its_own(
    faked: Any, fake: type[FakeKernel], monkeypatch: pytest.MonkeyPatch, hand_trace: Path
) -> None:
    def record(_: object, own: Setting | None, number: int, nr_bytes: float) -> list[Recorded]:
        with Trace(hand_trace) as trace:
            return [read(trace)] * number

    monkeypatch.setattr(check._Study, "_record", record)
    result = faked(knob_names=["populate", "no-thp"], nr_runs=1, subject={"opts_in": ["FIRSTTOUCH_POPULATE"]})
    assert sorted(name for name, _ in fake.ran[2:]) == [
        "base pages", "base pages FIRSTTOUCH_POPULATE=1", "no-thp", "populate",
    ]  # fmt: skip
    # Nothing changes against runs with base pages in the same environment: the plain time is the prediction.
    assert claim(result, "wall_ns", "no-thp").predicted == 2_000_000


def test_a_program_that_fails_under_a_knob(faked: Any, fake: type[FakeKernel]) -> None:
    fake.counts = {"no-thp/1": {"exit": 3, "error": "no memory"}}
    result = faked()
    assert {c.why for c in result.claims} == {"exit 3: no memory"}
    assert result.summary["not_measurable"] == len(result.claims) and result.exit_code == 3


def test_a_program_that_fails_as_it_is(faked: Any, fake: type[FakeKernel]) -> None:
    fake.counts = {"base pages": {"exit": 1, "error": "not a tty"}}
    with pytest.raises(FirsttouchError, match="not a tty") as caught:
        faked()
    assert "terminal" in caught.value.hint
    assert [name for name, _ in fake.ran] == ["base pages"]


def test_host_cold_runs_are_left_out_and_said(faked: Any, fake: type[FakeKernel]) -> None:
    fake.counts = {"no-thp/0": {"host_cold": True, "wall_ns": 10**9}}
    result = faked()
    measured = claim(result, "wall_ns").measured
    assert measured is not None and (measured.n, measured.median) == (2, 2_000_000)
    assert any("1 runs met memory that the host" in note for note in result.programs[0].notes)
    fake.counts = {"no-thp": {"host_cold": True}}
    assert claim(faked(), "wall_ns").why.startswith("every run met memory")


def test_programs_that_differ_from_run_to_run_are_named_with_their_spread(faked: Any, fake: type[FakeKernel]) -> None:
    fake.counts = {"no-thp/0": {"minflt": 90}, "no-thp/2": {"minflt": 110}}
    (note,) = [note for note in faked().programs[0].notes if "differs" in note]
    assert "90 to 110 faults (20.0%)" in note


def test_a_peak_below_that_of_the_launcher_is_not_seen(faked: Any, fake: type[FakeKernel]) -> None:
    fake.counts = {"base pages": {"maxrss_bytes": 10 * MIB}}
    assert claim(faked(), "peak_rss_bytes").why == "its peak is below the 10 MiB of the process that starts it"


def test_knobs_that_a_program_must_honour_are_refused_for_others(faked: Any, fake: type[FakeKernel]) -> None:
    result = faked(knob_names=["populate"])
    assert {c.verdict for c in result.claims} == {"not measurable"}
    assert "FIRSTTOUCH_POPULATE" in result.claims[0].why


def test_a_skipped_program_is_listed_with_its_reason(fake: type[FakeKernel], round_machine: Path) -> None:
    subject = Subject("redis", ["redis-server"], skipped="there is no redis-server: apt-get install redis-server")
    result = verify([subject], knob_names=["no-thp"], machine=machines.load(round_machine))
    assert result.programs[0].skipped == subject.skipped
    assert (result.claims, fake.ran, result.exit_code) == ([], [], 3)


def test_a_stored_verification_is_read_back(faked: Any, tmp_path: Path) -> None:
    result = faked()
    path = tmp_path / "stored.json"
    path.write_text(json.dumps(result.to_builtins()))
    assert check.load(path) == result
    path.write_text('{"claims": []}')
    with pytest.raises(FirsttouchError, match="no stored verification"):
        check.load(path)


def test_a_trace_says_what_to_run(tmp_path: Path) -> None:
    good = handmade.write_trace(tmp_path / "good.ftt", command=["true", "--of", "4MiB"])
    assert check.from_trace_file(good) == Subject("good", ["true", "--of", "4MiB"], trace=str(good))
    attached = handmade.write_trace(tmp_path / "attached.ftt", command=["true"], attached=7)
    gone = handmade.write_trace(tmp_path / "gone.ftt", command=["./no-longer-there"])
    for path in (attached, gone):
        with pytest.raises(FirsttouchError):
            check.from_trace_file(path)


# On this kernel


def needs_root_and_huge_pages() -> None:
    if os.geteuid() != 0:
        pytest.skip("switching huge page sizes needs root")
    if not os.access("/sys/kernel/mm/transparent_hugepage/enabled", os.W_OK):
        pytest.skip("this kernel has no transparent huge pages, or does not let them be set")
    try:
        with knobs.guard_knobs(["/sys/kernel/mm/transparent_hugepage/enabled"]):
            pass
    except knobs.Busy:
        pytest.skip("another firsttouch has settings of this kernel changed")


def thp_files() -> dict[str, str]:
    folder = Path("/sys/kernel/mm/transparent_hugepage")
    return {str(path): path.read_text() for path in (*folder.glob("*/enabled"), folder / "enabled", folder / "defrag")}


@pytest.mark.root
@pytest.mark.kernel
def test_the_model_counts_a_programs_faults_as_this_kernel_does() -> None:
    needs_root_and_huge_pages()
    before = thp_files()
    script = "import mmap\nm = mmap.mmap(-1, 24 << 20, flags=34)\nfor k in range(0, 24 << 20, 4096): m[k] = 1"
    subject = Subject("fill", [sys.executable, "-I", "-S", "-c", script])
    result = verify([subject], knob_names=["never", "thp", "mthp-64k"], nr_runs=2)
    assert thp_files() == before
    errors = {c.knob: (c.predicted, c.measured) for c in result.claims if c.observable == "faults"}
    assert [c.verdict for c in result.claims if c.observable == "faults"] == ["pass"] * 3, errors


@pytest.mark.root
def test_a_verifier_that_is_killed_leaves_every_setting_as_it_was(tmp_path: Path) -> None:
    needs_root_and_huge_pages()
    before = thp_files()
    said = tmp_path / "said"
    os.mkfifo(said)
    script = "cat /sys/kernel/mm/transparent_hugepage/enabled > said"  # every run tells what it sees
    reader = os.open(said, os.O_RDWR)  # a writer never waits, and a reader never sees the end
    verifier = subprocess.Popen(
        [sys.executable, "-m", "firsttouch", "verify", "--knobs", "thp,mthp-16k", "--runs", "500", "--",
         "/bin/sh", "-c", script],
        cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    ended = os.pidfd_open(verifier.pid)
    out = b""
    try:
        seen = b""
        while b"[always]" not in seen:
            ready, _, _ = select.select([reader, ended], [], [], 200)
            assert ready == [reader], "the verifier has ended, or says nothing"
            seen = os.read(reader, 4096)
        (guard,) = [pid for pid in children(verifier.pid) if b"os.ftruncate" in command_line(pid)]
        handle = os.pidfd_open(guard)
        assert thp_files() != before
    finally:
        verifier.send_signal(signal.SIGKILL)
        out, _ = verifier.communicate()
        os.close(reader)
        os.close(ended)
        if b"another firsttouch has settings" in out:
            pytest.skip("another firsttouch is at work")
    ready, _, _ = select.select([handle], [], [], 30)
    os.close(handle)
    assert ready, "the guard is still there after 30 s"
    assert thp_files() == before
    assert knobs.recover() == []


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
