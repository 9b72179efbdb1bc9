"""Runs of a program under one setting of the kernel after another, counted by the kernel.

Rounds are interleaved (A B C, B C A, ..., drawn), so that a machine that drifts drifts for all; how many there are is
fixed before the first. A run that fails ends its setting's runs; nothing is repeated because its number was unwelcome.

A short program runs several times for one run: CPU time is split into user and system by samples (split.py), or by the
kernel's ticks where those may not be had, and a single execution of some tens of ms meets too few of either.

Before each run as much memory as it will need is touched, twice: a hypervisor must back pages that it took away, which
costs ten times a fault. If the second time still meets such pages, the run is marked `host_cold` and reported apart.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np

from firsttouch.errors import FirsttouchError, NotHere
from firsttouch.host import touch
from firsttouch.host.catalogue import Setting
from firsttouch.host.knobs import KnobGuard
from firsttouch.host.touch import Region
from firsttouch.record.ring import CannotPin
from firsttouch.units import BASE_PAGE_BYTES, PMD_PAGES
from firsttouch.verify.split import PERIOD_NS, Split, SplitClock

COLD_FACTOR = 3.0  # a chunk that takes this many times the usual one had pages to be backed
COLD_CHUNKS_RATIO = 0.05
WARM_MARGIN = 1.2
LAUNCHER = Path(__file__).with_name("launcher.py")
STDERR_TAIL_BYTES = 2000
# For a split that is off by some 10 %, so that a few runs' median is right:
ENOUGH_TICKS_NS = 250_000_000  # some 60 of 4 ms
ENOUGH_SAMPLES_NS = 200 * PERIOD_NS


class Job(msgspec.Struct, frozen=True):
    """What is run."""

    command: list[str]
    path: str  # of the program
    env: dict[str, str]
    cwd: str
    before: list[str] = []  # a command that puts its files back as they were, or none

    def environment(self, setting: Setting) -> dict[str, str]:
        """The program's environment under a setting."""
        env = {**self.env, **setting.env}
        if "GLIBC_TUNABLES" in setting.env and self.env.get("GLIBC_TUNABLES"):
            env["GLIBC_TUNABLES"] = f"{self.env['GLIBC_TUNABLES']}:{setting.env['GLIBC_TUNABLES']}"
        return env


class Run(msgspec.Struct, frozen=True):
    """One run, as the kernel counted it: wait4 of the program and the descendants that it waited for."""

    knob: str
    round: int
    exit: int  # below 0: the signal that ended it
    minflt: int
    majflt: int
    user_ns: int
    system_ns: int
    wall_ns: int
    maxrss_bytes: int  # of the largest process
    preempted: int
    collapsed: int  # huge pages that khugepaged made meanwhile, in all programs (vmstat)
    fallbacks: int  # faults that wanted a huge page and found none (vmstat)
    host_cold: bool
    left_behind: bool = False  # something of it outlived it
    executions: int = 1  # of the program: counts, wall and memory are their median, CPU times their mean
    user_samples: int = 0  # of all executions; CPU time is split by these
    system_samples: int = 0  # neither: it is split by the kernel's ticks
    error: str = ""  # the last line it wrote to stderr, if it failed

    @property
    def faults(self) -> int:
        """Minor and major."""
        return self.minflt + self.majflt

    @property
    def failed(self) -> str:
        """Why the run says nothing, or ""."""
        if self.exit == 0:
            return ""
        ended = f"exit {self.exit}" if self.exit > 0 else f"signal {-self.exit}"
        return f"{ended}: {self.error}" if self.error else ended


Runner = Callable[[Job, Setting, int], Run]


class Launcher:
    """The process that starts programs; see launcher.py. Killed with whatever it runs if we are."""

    def __init__(self, folder: Path) -> None:
        self.stderr = folder / "stderr"
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(LAUNCHER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # no terminal, and Ctrl-C reaches us alone
        )
        hello = self._answer()
        self.fixed_addresses = bool(hello["fixed_addresses"])
        self.own_bytes = int(hello["own_bytes"])  # below this, a program's peak memory is not seen
        self.clock: SplitClock | None = None  # where it may not be had, CPU time is split by ticks
        with contextlib.suppress(OSError, CannotPin):
            self.clock = SplitClock()

    def run(self, job: Job, setting: Setting, number: int, host_cold: bool = False) -> Run:
        """Run a job once. Raises FirsttouchError when it cannot be started."""
        before = vmstat()
        ask = {
            "command": job.command, "path": job.path, "env": job.environment(setting), "cwd": job.cwd,
            "thp_disable": list(setting.thp_disable), "stderr": str(self.stderr),
        }  # fmt: skip
        self._samples()  # what came before is none of this run
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(ask).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._answer()
        if "error" in answer:
            raise FirsttouchError(answer["error"], "check the program and its arguments")
        samples = self._samples()
        after = vmstat()
        run = Run(
            knob=setting.name,
            round=number,
            collapsed=after.get("thp_collapse_alloc", 0) - before.get("thp_collapse_alloc", 0),
            fallbacks=after.get("thp_fault_fallback", 0) - before.get("thp_fault_fallback", 0),
            host_cold=host_cold,
            error=last_line(self.stderr) if answer["exit"] else "",
            user_samples=samples.user,
            system_samples=samples.kernel,
            **answer,
        )
        return divided(run)

    def _samples(self) -> Split:
        """Of what we started since the last call; none where they cannot be had, or some are missing."""
        split = self.clock.read(self._process.pid) if self.clock else None
        return split or Split(0, 0)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise NotHere("the process that starts programs has died", "see whether the machine is out of memory")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End it, with whatever it runs."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        if self.clock:
            self.clock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Kernel:
    """The files of the settings, under a guard; without one there is nothing to set."""

    def __init__(self, guard: KnobGuard | None) -> None:
        self._guard = guard
        self._now = dict(guard.old) if guard else {}

    def set(self, setting: Setting) -> None:
        """Bring the kernel into the state of a setting: what it does not name is as it was before us."""
        if self._guard is None:
            return
        wanted = {**self._guard.old, **setting.files}
        changes: dict[Path | str, str] = {path: value for path, value in wanted.items() if self._now[path] != value}
        self._guard.set(changes)
        self._now = wanted


def interleaved(
    job: Job,
    rounds: Sequence[Sequence[Setting]],
    kernel: Kernel,
    run: Runner,
    progress: Callable[[str, int, int], None],
) -> dict[str, list[Run]]:
    """One round over its settings after another. A setting under which the program fails is left out from then on.

    The order within a round is drawn (the same one each time), so that none always follows the same other.
    """
    found: dict[str, list[Run]] = {setting.name: [] for settings in rounds for setting in settings}
    draw = random.Random(0)
    done, total = 0, sum(map(len, rounds))
    for number, settings in enumerate(rounds):
        for setting in draw.sample(settings, len(settings)):
            progress(f"round {number + 1} of {len(rounds)}: {setting.name}", done, total)
            done += 1
            mine = found[setting.name]
            if mine and mine[-1].failed:
                continue
            prepare(job)
            kernel.set(setting)
            mine.append(run(job, setting, number))
    return found


def executions_for(system_ns: float, execution_ns: float, nr_runs: int, extra_ns: float, sampled: bool) -> int:
    """How often a program is executed for each run, if all runs together may take `extra_ns` more than once each.

    `execution_ns`: what one takes, all around it included, which for a short program is most of it. `sampled`: its CPU
    time is split by samples, which are closer together than ticks.
    """
    enough_ns = ENOUGH_SAMPLES_NS if sampled else ENOUGH_TICKS_NS
    wanted = -(-enough_ns // max(1, int(system_ns)))
    affordable = 1 + int(extra_ns / max(1.0, execution_ns * nr_runs))
    return max(1, min(wanted, affordable))


def divided(run: Run) -> Run:
    """A run whose CPU time is split as its samples say, if it has any."""
    samples = run.user_samples + run.system_samples
    if not samples:
        return run
    total_ns = run.user_ns + run.system_ns
    system_ns = round(total_ns * run.system_samples / samples)
    return msgspec.structs.replace(run, user_ns=total_ns - system_ns, system_ns=system_ns)


def executed(execute: Callable[[], Run], times: int, job: Job) -> Run:
    """One run of several executions, the program's files put back between them; one that fails is the run."""
    found = [execute()]
    while len(found) < times and not found[-1].failed:
        prepare(job)
        found.append(execute())
    if len(found) == 1 or found[-1].failed:
        return found[-1]
    used = [one for one in found if not one.host_cold] or found  # one that met cold memory is not the others' fault

    def median(field: str) -> int:
        return int(statistics.median_low([getattr(one, field) for one in used]))

    def mean(field: str) -> int:
        return round(statistics.fmean(getattr(one, field) for one in used))

    run = msgspec.structs.replace(
        found[0],
        **{field: median(field) for field in ("minflt", "majflt", "wall_ns", "maxrss_bytes")},
        **{field: mean(field) for field in ("user_ns", "system_ns")},
        **{field: sum(getattr(one, field) for one in found) for field in ("preempted", "collapsed", "fallbacks")},
        **{field: sum(getattr(one, field) for one in used) for field in ("user_samples", "system_samples")},
        host_cold=used[0].host_cold,
        left_behind=any(one.left_behind for one in found),
        executions=len(used),
    )
    return divided(run)


def prepare(job: Job) -> None:
    """Put the program's files back as they were. Raises FirsttouchError when that fails."""
    if not job.before:
        return
    done = subprocess.run(
        job.before, cwd=job.cwd, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        words = " ".join(job.before)
        raise FirsttouchError(f"{words!r} failed: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")


def warm(nr_bytes: float, advised: bool = False) -> bool:
    """Touch as much memory on each CPU, twice; whether the second time still met pages that the host had to back.

    The kernel is in the program's setting already, so this takes blocks of the sizes that the program will take; where
    it gets larger ones for memory that it asks them for (`advised`), those too. On each CPU, since a CPU keeps what is
    freed on it for itself (Linux lets its lists grow to 1/8 of memory): the program may run on another.
    """
    cpus = sorted(os.sched_getaffinity(0))
    chunk_bytes = PMD_PAGES * BASE_PAGE_BYTES
    nr_bytes = min(int(nr_bytes * WARM_MARGIN), available_bytes() // 2 // len(cpus)) // chunk_bytes * chunk_bytes
    if nr_bytes <= 0:
        return False
    touched = threading.Barrier(len(cpus))

    def on(cpu: int) -> bool:
        os.sched_setaffinity(0, {cpu})  # of this thread
        kinds = [True, False] if advised else [False]
        return any([_is_cold(nr_bytes, chunk_bytes, kind, touched) for kind in kinds])

    with ThreadPoolExecutor(len(cpus)) as pool:
        return any(list(pool.map(on, cpus)))


def _is_cold(nr_bytes: int, chunk_bytes: int, advised: bool, touched: threading.Barrier) -> bool:
    wall_ns = np.zeros(1, np.int64)
    for _ in range(2):
        spent_ns = np.zeros(nr_bytes // chunk_bytes, np.int64)  # CPU time: another program's turn is none of ours
        with Region(nr_bytes) as region:
            if advised:
                region.advise(touch.MADV_HUGEPAGE)
            for chunk in range(len(spent_ns)):
                before = time.thread_time_ns()
                touch.time_touch(region.address + chunk * chunk_bytes, PMD_PAGES, BASE_PAGE_BYTES, True, wall_ns)
                spent_ns[chunk] = time.thread_time_ns() - before
            touched.wait()  # all hold theirs at once
    usual_ns = float(np.percentile(spent_ns, 25))
    return bool(np.mean(spent_ns > COLD_FACTOR * usual_ns) > COLD_CHUNKS_RATIO)


def available_bytes() -> int:
    """Memory that can be had without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 30


def vmstat() -> Mapping[str, int]:
    """The kernel's counters of /proc/vmstat; empty where it cannot be read."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return {}
    return {name: int(value) for name, _, value in (line.partition(" ") for line in lines)}


def last_line(path: Path) -> str:
    """The last line of a file that is not empty, cut to a line's length."""
    try:
        text = path.read_bytes()[-STDERR_TAIL_BYTES:].decode("utf-8", "replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:120] if lines else ""
