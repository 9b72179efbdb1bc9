"""Verify: a program recorded once, what the model makes of it under each knob, and what the kernel counts.

    plain runs (does it work, how long) -> recording -> replays -> interleaved runs -> predictions -> claims

All runs and the recording share one environment, one folder and fixed addresses (address-space randomisation is
off for the program): where an array begins decides how many huge pages fit in it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from firsttouch import policy as policies
from firsttouch.errors import FirsttouchError
from firsttouch.host import catalogue, knobs, probe
from firsttouch.host.catalogue import THP_OFF, Setting
from firsttouch.host.present import BASE, host_machine
from firsttouch.host.probe import HostFacts
from firsttouch.machine import Machine
from firsttouch.mm.outcome import Outcome
from firsttouch.record.child import Conditions, find_program
from firsttouch.record.recorder import record
from firsttouch.trace.store import Trace
from firsttouch.units import format_bytes, format_ns
from firsttouch.verify import claims as claims_
from firsttouch.verify import runs as runs_
from firsttouch.verify.claims import Claim, Predicted
from firsttouch.verify.predict import Plain, Recorded, outcomes, predict, read
from firsttouch.verify.runs import Job, Kernel, Launcher, Run
from firsttouch.verify.statistics import error_ratio, median_interval, spread_ratio

SCHEMA = 1
RECORDING_RATIO = 1.5  # what a recorded run takes, in plain ones: an estimate
DIFFERS_RATIO = 0.01  # faults of like runs that differ by more than this are worth a word
OBSERVABLES = tuple(claims_.TOLERANCE_RATIO)
BASE_KNOB = "never"
BASE_ROUNDS = 2  # every so many rounds have a run with base pages that is no knob's: predictions start from these
SHORT_NS = 1_000_000_000  # a program as short runs again before it is timed: the first run fills the page cache
EXTRA_S = 8.0  # for executing short programs more than once a run
_DISTURBANCES = (("collapsed", "huge pages made by khugepaged"), ("fallbacks", "faults without a free huge page"))


Environment = tuple[tuple[str, str], ...]  # variables added to ours, by name


class Progress(Protocol):
    """Told what goes on: a line worth keeping when `total` is 0, else step `done` of `total`."""

    def __call__(self, text: str, done: int = 0, total: int = 0) -> None:
        """`text` has no newline."""


class Subject(msgspec.Struct, frozen=True):
    """A program to verify."""

    name: str
    command: list[str]
    cwd: str = ""  # "" is where we are
    env: dict[str, str] = {}  # added to ours
    before: list[str] = []  # puts its files back before each run
    opts_in: list[str] = []  # variables that it honours, of `catalogue`
    trace: str = ""  # a recording of it, or "": it is recorded now
    skipped: str = ""  # why it is not run at all


class KnobUsed(msgspec.Struct, frozen=True):
    """What a knob's name stood for here."""

    knob: str
    policy: str
    changes: dict[str, str]  # files that were set, to what
    refused: str


class ProgramResult(msgspec.Struct, frozen=True):
    """What is known of a program besides its claims."""

    name: str
    command: list[str]
    skipped: str
    notes: list[str]
    recordings: list[dict[str, Any]]
    runs: list[Run]


class Verification(msgspec.Struct, frozen=True):
    """Everything that `firsttouch verify` found; `claims` is the contract of its JSON."""

    schema: int
    claims: list[Claim]
    summary: dict[str, Any]
    programs: list[ProgramResult]
    knobs: list[KnobUsed]
    host: HostFacts
    machine: str
    nr_runs: int
    nr_recordings: int
    warnings: list[str]

    @property
    def exit_code(self) -> int:
        """0: every claim that could be measured holds; 1: one does not; 3: none could be measured here."""
        return 1 if self.summary["failed"] else 0 if self.summary["passed"] else 3

    def to_builtins(self) -> dict[str, Any]:
        """The JSON of `firsttouch verify --json`: docs/reference/json.md."""
        tree: dict[str, Any] = msgspec.to_builtins(self)
        return tree


def load(path: Path) -> Verification:
    """A verification that was stored with `-o`. Raises FirsttouchError for what is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Verification)
    except OSError as error:
        raise FirsttouchError(f"cannot read {path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise FirsttouchError(
            f"{path} is no stored verification: {error}", "make one: firsttouch verify -o F"
        ) from None


def from_command(command: Sequence[str]) -> Subject:
    """A command as a user typed it. Raises FirsttouchError when there is no such program."""
    find_program(command[0])
    return Subject(name=Path(command[0]).name, command=list(command))


def from_trace_file(path: Path) -> Subject:
    """The program that a trace recorded, with its command. Raises FirsttouchError for a trace that names none."""
    with Trace(path) as trace:
        command = [str(word) for word in trace.meta["command"] or []]
        if trace.meta.get("attached") or not command:
            raise FirsttouchError(f"{path} does not say how to run its program", "firsttouch verify -- COMMAND")
    find_program(command[0])
    return Subject(name=path.stem, command=command, trace=str(path))


def settings_for(names: Sequence[str], facts: HostFacts) -> list[Setting]:
    """What each knob means here, each once. Raises FirsttouchError for unknown names, and for none."""
    found: dict[str, Setting] = {}
    for name in names:
        if name.strip():
            setting = catalogue.resolve(name, facts)
            found.setdefault(setting.name, setting)
    if not found:
        raise FirsttouchError("no knob is named", f"name some, e.g. {','.join(catalogue.DEFAULT)}")
    return list(found.values())


def changes(settings: Sequence[Setting]) -> dict[str, dict[str, str]]:
    """For each setting the files that would change, and to what, from how they are now."""
    return {
        setting.name: {path: value for path, value in setting.files.items() if knobs.read_knob(path) != value}
        for setting in settings
        if not setting.refused
    }


def verify(
    subjects: Sequence[Subject],
    *,
    knob_names: Sequence[str] = catalogue.DEFAULT,
    nr_runs: int = 3,
    nr_recordings: int = 1,
    extra_s: float = EXTRA_S,
    machine: Machine | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Check what the model says of some programs against the running kernel.

    Parameters
    ----------
    subjects
        The programs.
    knob_names
        As `catalogue.KNOBS` names them.
    nr_runs
        Rounds over the knobs; fixed now.
    nr_recordings
        Recordings that a prediction is the median of.
    extra_s
        Seconds for each program that may be spent on executing it more than once a run: see `runs`.
    machine
        What things cost. Default: the calibration of this host, measured quickly now if there is none.
    progress
        Told what goes on.

    Raises
    ------
    FirsttouchError
        For an unknown knob, a program that fails as it is, or one that cannot be recorded (NotHere).
    Busy
        Another process has settings of this kernel changed.
    """
    say = progress or (lambda text, done=0, total=0: None)
    if nr_runs < 1 or nr_recordings < 1:
        raise FirsttouchError("there must be at least one run and one recording", "--runs 3")
    facts = probe.facts()
    settings = settings_for(knob_names, facts)
    warnings = []
    if machine is None:
        machine, warning = host_machine(say)
        warnings += [warning] if warning else []
    all_claims: list[Claim] = []
    results = []
    change = changes(settings)
    with tempfile.TemporaryDirectory(prefix="firsttouch-") as folder, _guard(settings) as kernel:
        for subject in subjects:
            if subject.skipped:
                say(f"{subject.name}: skipped: {subject.skipped}")
                results.append(ProgramResult(subject.name, subject.command, subject.skipped, [], [], []))
                continue
            study = _Study(subject, Path(folder), kernel, say, machine)
            with Launcher(Path(folder)) as launcher:
                result, claims = study.run(launcher, settings, nr_runs, nr_recordings, extra_s)
            results.append(result)
            all_claims += claims
    return Verification(
        schema=SCHEMA,
        claims=all_claims,
        summary=claims_.summary(all_claims),
        programs=results,
        knobs=[KnobUsed(s.name, s.policy.name, change.get(s.name, {}), s.refused) for s in settings],
        host=facts,
        machine=machine.name,
        nr_runs=nr_runs,
        nr_recordings=nr_recordings,
        warnings=warnings,
    )


@contextlib.contextmanager
def _guard(settings: Sequence[Setting]) -> Iterator[Kernel]:
    """The right to set what the settings name. Nothing to guard where nothing is to be changed."""
    change = changes(settings)
    paths = sorted({path for setting in settings for path in setting.files if not setting.refused})
    if not any(change.values()):
        yield Kernel(None)
        return
    with knobs.guard_knobs(paths) as guard:
        yield Kernel(guard)


class _Study:
    """One program."""

    def __init__(self, subject: Subject, folder: Path, kernel: Kernel, say: Progress, machine: Machine) -> None:
        self.subject, self.folder, self.kernel, self.say, self.machine = subject, folder, kernel, say, machine
        self.base = policies.load(BASE)
        self.notes: list[str] = []
        self.cwd = subject.cwd or str(Path.cwd())
        self.execution_ns = 0  # that the last one took, with warming memory and starting it
        self.job = Job(
            command=list(subject.command),
            path=find_program(subject.command[0]),
            env={**os.environ, "PYTHONHASHSEED": "0", **subject.env, **dict.fromkeys(subject.opts_in, "0")},
            cwd=self.cwd,
            before=subject.before,
        )

    def run(
        self, launcher: Launcher, settings: Sequence[Setting], nr_runs: int, nr_recordings: int, extra_s: float
    ) -> tuple[ProgramResult, list[Claim]]:
        """All of it, from the plain run to the claims."""
        settings = [self._opted(setting) for setting in settings]
        able = [setting for setting in settings if not setting.refused]
        plain = self._plain(launcher)
        sampled = launcher.clock is not None
        keys = {setting.name: _key(setting) for setting in able}
        bases = {key: self._base(key) for key in dict.fromkeys(keys.values())}
        nr_base = -(-nr_runs // BASE_ROUNDS) * len(bases)
        nr_all = nr_runs * len(able) + nr_base
        times = runs_.executions_for(plain.system_ns, self.execution_ns, nr_all, extra_s * 1e9, sampled)
        total_ns = plain.wall_ns * (RECORDING_RATIO * nr_recordings * len(bases) + nr_all * times)
        text = f"{self.subject.name}: {nr_runs} runs under each of {len(able)} knobs take about {format_ns(total_ns)}"
        if times > 1:
            self.notes.append(f"each run is {times} executions, which its split into user and system takes")
        self.say(text + ("; fewer: --runs, --knobs" if total_ns > 600e9 else ""))
        if not launcher.fixed_addresses:
            self.notes.append("addresses stay randomised here, which moves what huge pages fit by some percent")
        recorded: dict[Environment, list[Recorded]] = {}
        replayed: dict[Environment, list[list[Outcome]]] = {}
        under: dict[str, list[list[Outcome]]] = {}
        for setting in able:
            key = keys[setting.name]
            if key not in recorded:
                recorded[key] = self._record(setting if key else None, nr_recordings, plain.maxrss_bytes)
                self.say(f"{self.subject.name}: replaying", 0, len(able))
                replayed[key] = outcomes(recorded[key], self.machine, self.base)
            same = setting.policy.name == self.base.name
            under[setting.name] = replayed[key] if same else outcomes(recorded[key], self.machine, setting.policy)
        peaks = [one[0].peak_bytes for each in under.values() for one in each]
        peak_bytes = int(max([*peaks, plain.maxrss_bytes]))

        def run(job: Job, setting: Setting, number: int) -> Run:
            return self._execute(launcher, job, setting, number, times, peak_bytes)

        rounds = [[*able, *(bases.values() if number % BASE_ROUNDS == 0 else ())] for number in range(nr_runs)]
        found = runs_.interleaved(self.job, rounds, self.kernel, run, self.say)
        predictions = {}
        for setting in able:
            key = keys[setting.name]
            anchors = [bases[key].name] + ([BASE_KNOB] if not key and setting.name != BASE_KNOB else [])
            good = [one for name in anchors for one in found.get(name, []) if not (one.failed or one.host_cold)]
            anchor = _plain_of(good) if good else plain
            predictions[setting.name] = predict(recorded[key], under[setting.name], replayed[key], anchor)
        every = [one for recordings in recorded.values() for one in recordings]
        single = all(one.nr_processes == 1 for one in every)
        claims = []
        for setting in settings:
            if setting.refused:
                claims += [self._no(setting.name, observable, setting.refused) for observable in OBSERVABLES]
            else:
                claims += self._claims(
                    setting.name, predictions[setting.name], found, single, plain, launcher.own_bytes
                )
        self._remark(every, found)
        if () in bases:
            good = [one for one in found[bases[()].name] if not (one.failed or one.host_cold)]
            self._remark_recording([each[0] for each in replayed[()]], _plain_of(good) if good else plain)
        result = ProgramResult(
            name=self.subject.name,
            command=self.job.command,
            skipped="",
            notes=self.notes,
            recordings=[_facts(one) for one in every],
            runs=[run for runs in found.values() for run in runs],
        )
        return result, claims

    def _opted(self, setting: Setting) -> Setting:
        """A setting that needs a program to opt in is refused for one that does not."""
        if setting.opt_in and setting.opt_in not in self.subject.opts_in:
            return msgspec.structs.replace(
                setting, refused=f"the program does not say that it honours {setting.opt_in}"
            )
        return setting

    def _base(self, key: Environment) -> Setting:
        """Base pages in an environment: what predictions start from."""
        name = " ".join(["base pages", *(f"{variable}={value}" for variable, value in key)])
        return Setting(name=name, policy=self.base, thp_disable=THP_OFF, env=dict(key))

    def _plain(self, launcher: Launcher) -> Plain:
        """Once, or twice if it is short, with base pages: that it works, how long it takes, and how much memory."""
        self.say(f"{self.subject.name}: running it to see how long it takes")
        setting = self._base(())
        peak_bytes = 0
        for number in range(2):
            runs_.prepare(self.job)
            run = self._execute(launcher, self.job, setting, number, 1, peak_bytes)
            peak_bytes = run.maxrss_bytes
            if run.failed:
                raise FirsttouchError(
                    f"{' '.join(self.subject.command)!r} fails as it is: {run.failed}",
                    "it runs without a terminal, with nothing on stdin; see that it can",
                )
            if run.wall_ns > SHORT_NS:
                break
        return _plain_of([run])

    def _execute(
        self, launcher: Launcher, job: Job, setting: Setting, number: int, times: int, peak_bytes: float
    ) -> Run:
        """One run, of so many executions, in memory that the host has backed."""
        advised = setting.policy.superpage.thp != "never" or bool(setting.policy.superpage.mthp_madvise)

        def execute() -> Run:
            begin_ns = time.monotonic_ns()
            one = launcher.run(job, setting, number, host_cold=runs_.warm(peak_bytes, advised))
            self.execution_ns = time.monotonic_ns() - begin_ns
            return one

        return runs_.executed(execute, times, job)

    def _record(self, setting: Setting | None, nr_recordings: int, nr_bytes: float) -> list[Recorded]:
        if self.subject.trace and setting is None:
            with Trace(self.subject.trace) as trace:
                return [read(trace)]
        found = []
        path = self.folder / f"{self.subject.name}.ftt"
        conditions = Conditions(
            env=self.job.environment(setting) if setting else self.job.env,
            cwd=Path(self.cwd),
            fixed_addresses=True,
            stderr=self.folder / "stderr",
        )
        for number in range(nr_recordings):
            self.say(f"{self.subject.name}: recording {number + 1} of {nr_recordings}", number, nr_recordings)
            runs_.prepare(self.job)
            runs_.warm(nr_bytes)
            with _same_limits():
                recording = record(self.job.command, path, conditions=conditions, force=True)
            if recording.exit_status:
                raise FirsttouchError(f"{self.subject.name} exits {recording.exit_status} when it is recorded")
            with Trace(path) as trace:
                found.append(read(trace))
        return found

    def _claims(
        self,
        knob: str,
        predicted: Mapping[str, Predicted],
        found: Mapping[str, list[Run]],
        single: bool,
        plain: Plain,
        launcher_bytes: int,
    ) -> list[Claim]:
        """The rows of one knob."""
        name = self.subject.name
        failed = next((run.failed for run in found[knob] if run.failed), "")
        warm = [run for run in found[knob] if not run.host_cold]
        values = {
            "faults": [run.faults for run in warm],
            "system_ns": [run.system_ns for run in warm],
            "cpu_ns": [run.user_ns + run.system_ns for run in warm],
            "wall_ns": [run.wall_ns for run in warm],
            "peak_rss_bytes": [run.maxrss_bytes for run in warm],
        }
        base = {run.round: run.maxrss_bytes for run in found.get(BASE_KNOB, []) if not run.failed}
        values["untouched_bytes"] = [run.maxrss_bytes - base[run.round] for run in warm if run.round in base]
        claims = []
        for observable in OBSERVABLES:
            why = failed
            scale = None
            if not why and not warm:
                why = "every run met memory that the host had to back first"
            if observable in ("peak_rss_bytes", "untouched_bytes"):
                if not why and not single:
                    why = "the kernel keeps the peak of the largest process only"
                elif not why and plain.maxrss_bytes <= launcher_bytes:
                    why = f"its peak is below the {format_bytes(launcher_bytes)} of the process that starts it"
            if observable == "untouched_bytes":
                if knob == BASE_KNOB:
                    continue  # it is what the others are measured against
                if not why and not values[observable]:
                    why = f"it is measured against `{BASE_KNOB}`, which is not among the knobs"
                scale = float(plain.maxrss_bytes)
            if why:
                claims.append(self._no(knob, observable, why, predicted[observable]))
            else:
                interval = median_interval(values[observable])
                claims.append(claims_.judge(name, knob, observable, predicted[observable], interval, scale))
        return claims

    def _no(self, knob: str, observable: str, why: str, predicted: Predicted | None = None) -> Claim:
        return claims_.not_measurable(self.subject.name, knob, observable, why, predicted)

    def _remark(self, recordings: Sequence[Recorded], found: Mapping[str, list[Run]]) -> None:
        """What a reader of the claims must know."""
        for one in recordings:
            if not one.fixed_addresses:
                self.notes.append(
                    "the recording was made with randomised addresses: what huge pages fit may differ by some percent"
                )
            if one.lost:
                self.notes.append(f"{one.lost:,} records were lost while recording")
            if one.level == "basic" and one.unseen:
                self.notes.append(
                    f"{one.unseen:,} faults inside system calls were not seen; every policy is given them"
                )
        for knob, runs in found.items():
            good = [run for run in runs if not run.failed]
            spread = spread_ratio([run.faults for run in good])
            if spread > DIFFERS_RATIO:
                low, high = min(run.faults for run in good), max(run.faults for run in good)
                self.notes.append(
                    f"{knob}: the program differs from run to run: {low:,} to {high:,} faults ({spread:.1%})"
                )
            cold = sum(run.host_cold for run in good)
            if cold:
                self.notes.append(f"{knob}: {cold} runs met memory that the host had to back; they are left out")
            for field, text in (
                ("collapsed", "huge pages made by khugepaged"),
                ("fallbacks", "faults without a free huge page"),
            ):
                number = sum(getattr(run, field) for run in good)
                if number:
                    self.notes.append(f"{knob}: {number:,} {text} during {len(good)} runs")
            if any(run.left_behind for run in good):
                self.notes.append(f"{knob}: something of the program outlived it; that is not counted")
        self.notes = list(dict.fromkeys(self.notes))

    def _remark_recording(self, bases: Sequence[Outcome], plain: Plain) -> None:
        """How the recording, with what it cost taken off, compares with runs without a recorder: nobody's claim."""
        if not bases:
            return
        parts = []
        for text, mine, theirs in (
            ("system", [one.system_ns for one in bases], plain.system_ns),
            ("CPU", [one.user_ns + one.system_ns for one in bases], plain.cpu_ns),
            ("wall", [one.wall_ns for one in bases], plain.wall_ns),
        ):
            modelled = statistics.median(mine)
            parts.append(f"{text} {format_ns(modelled)} ({error_ratio(modelled, theirs, theirs):+.0%})")
        self.notes.append(f"the recording less its own cost, against runs without a recorder: {', '.join(parts)}")


def _key(setting: Setting) -> Environment:
    """What tells recordings apart: the variables that change what a program calls."""
    return tuple(sorted(setting.env.items())) if setting.own_recording else ()


def _plain_of(runs: Sequence[Run]) -> Plain:
    return Plain(
        system_ns=statistics.median(run.system_ns for run in runs),
        cpu_ns=statistics.median(run.user_ns + run.system_ns for run in runs),
        wall_ns=statistics.median(run.wall_ns for run in runs),
        maxrss_bytes=statistics.median(run.maxrss_bytes for run in runs),
    )


def _facts(one: Recorded) -> dict[str, Any]:
    tree = one._asdict()
    workload = tree.pop("workload")
    return {**tree, "touches": workload.nr_touches}


@contextlib.contextmanager
def _same_limits() -> Iterator[None]:
    """The recorder raises our limit of open files after it has forked; put it back, so that the next fork is alike."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
