"""The page-fault test in the model, for real on this host, or both side by side.

The model's user and system time are those of the children, as `wait4` gives them; its wall time begins with the first
fork. It has no cost for a fork or for making a thread, which on a real machine are in the wall time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from firsttouch import machine as machines
from firsttouch import policy as policies
from firsttouch.errors import FirsttouchError
from firsttouch.host.present import BASE, host_machine
from firsttouch.machine import Machine
from firsttouch.policy import Policy
from firsttouch.units import parse_bytes
from firsttouch.whatif.evaluate import Progress, full_name
from firsttouch.workload.generators.pft import PftRow, PftTest, pft, pft_row


class PftError(msgspec.Struct, frozen=True):
    """The model's rates against the measured ones: model / measured - 1; None where either is missing."""

    faults_per_cpu_s: float | None
    faults_per_wall_s: float | None


@dataclass(frozen=True)
class PftResult:
    """Rows of one kind or of both; with both, they are of the same tests in the same order."""

    measured: list[PftRow]  # on this host
    modelled: list[PftRow]
    empty_s: float | None = None  # wall time of a real child that does nothing

    @property
    def rows(self) -> list[PftRow]:
        """The measured rows, or the modelled ones where nothing was measured."""
        return self.measured or self.modelled

    @property
    def errors(self) -> list[PftError]:
        """The model's error of each row that was measured, too."""
        pairs = zip(self.measured, self.modelled, strict=True) if self.measured and self.modelled else ()
        return [
            PftError(
                _error(real.faults_per_cpu_s, model.faults_per_cpu_s),
                _error(real.faults_per_wall_s, model.faults_per_wall_s),
            )
            for real, model in pairs
        ]

    @property
    def out_of_memory(self) -> bool:
        """Whether memory ran out in any row."""
        return any(row.out_of_memory for row in (*self.measured, *self.modelled))

    def to_builtins(self) -> dict[str, Any]:
        """The JSON of `firsttouch pft --json`: docs/howto/pft.md."""
        tree: dict[str, Any] = {"rows": msgspec.to_builtins(self.rows)}
        if self.empty_s is not None:
            tree["empty_s"] = self.empty_s
        if self.measured and self.modelled:
            tree |= {"model_rows": msgspec.to_builtins(self.modelled), "errors": msgspec.to_builtins(self.errors)}
        return tree


def tests_of(gib: float, reps: int, threads: Sequence[int], lines: Sequence[int], stride_bytes: int) -> list[PftTest]:
    """A test for each number of threads, and for each of those each number of lines. Raises FirsttouchError."""
    if not (math.isfinite(gib) and gib > 0):
        raise FirsttouchError(f"the page-fault test cannot touch {gib} GiB", "--gib 0.25 is 256 MiB")
    return [PftTest(round(gib * (1 << 30)), reps, t, n, stride_bytes) for t in threads for n in lines]


def stride_of(text: str, page_bytes: int) -> int:
    """Bytes of a stride: a size, or `page`. Raises FirsttouchError."""
    return page_bytes if text.strip() == "page" else parse_bytes(text)


def load_model(
    machine: str | None, policy: str | None, progress: Progress | None = None
) -> tuple[Machine, Policy, str]:
    """The machine and policy of these names (None: this host, measured; base pages), and a warning or ""."""
    chosen = policies.load(full_name(policy or BASE))
    if machine is not None:
        return machines.load(machine), chosen, ""
    here, warning = host_machine(progress or (lambda text: None))
    return here, chosen, warning


def run_model(
    tests: Sequence[PftTest], machine: Machine, policy: Policy, progress: Progress | None = None
) -> list[PftRow]:
    """`model_row` of each test; a mistake in any of them is told before the first runs."""
    from firsttouch import _jit

    for test in tests:
        test.check(machine.page_bytes, machine.line_bytes)
    if progress and not _jit.is_compiled("simulate.run"):
        progress("compiling the model to machine code (once after an installation, about half a minute)")
    rows = []
    for i, test in enumerate(tests):
        if progress:
            progress(f"modelling {test.threads} threads, {test.lines} lines", i, len(tests))
        rows.append(model_row(test, machine, policy))
    return rows


def model_row(test: PftTest, machine: Machine, policy: Policy) -> PftRow:
    """What `test` comes to on `machine` under `policy`. Raises FirsttouchError for a test that cannot be."""
    from firsttouch.mm.simulate import simulate

    test.check(machine.page_bytes, machine.line_bytes)
    fits = test.touched_pages(machine.page_bytes) // test.reps * machine.page_bytes <= machine.free_bytes
    workload = pft(
        test.nr_bytes,
        reps=test.reps if fits else 1,  # the first one ends where memory does
        threads=test.threads,
        lines=test.lines,
        stride_bytes=test.stride_bytes,
        page_bytes=machine.page_bytes,
        line_bytes=machine.line_bytes,
    )
    outcome = simulate(workload, machine, policy)
    return pft_row(
        test,
        page_bytes=machine.page_bytes,
        user_s=outcome.user_ns / 1e9,
        system_s=outcome.system_ns / 1e9,
        wall_s=outcome.wall_ns / 1e9,
        faults=outcome.faults,
        out_of_memory=outcome.out_of_memory,
        machine=machine.name,
        policy=policy.name,
    )


def run_host(
    tests: Sequence[PftTest], *, huge: bool = False, progress: Progress | None = None
) -> tuple[list[PftRow], float]:
    """The tests for real, and the wall seconds of a child that does nothing. Raises NotHere without the memory."""
    from firsttouch.host.pft import PftRun

    run = PftRun()
    for test in tests:
        run.check(test, huge=huge)
    rows = []
    for i, test in enumerate(tests):
        if progress:
            progress(f"running {test.threads} threads, {test.lines} lines", i, len(tests))
        rows.append(run.row(test, huge=huge))
    return rows, run.empty_s


def _error(measured: float | None, modelled: float | None) -> float | None:
    return None if not measured or modelled is None else modelled / measured - 1
