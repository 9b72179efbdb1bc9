"""Results of the page-fault test as text for a mail, in the columns its readers know.

Times are seconds to the millisecond. What the columns mean: docs/howto/pft.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from firsttouch.report.tables import plain
from firsttouch.units import format_bytes, format_ns
from firsttouch.whatif.pft import PftError, PftResult
from firsttouch.workload.generators.pft import PftRow


def text(result: PftResult) -> str:
    """The whole result: what it is of, its rows, and the comparison where there is one."""
    out = heading(result.rows, result.empty_s) + classic(result.rows)
    if result.errors:
        model = result.modelled[0]
        out += f"# against the model, {plain(model.machine)} under {plain(model.policy)}: error is model / real - 1\n"
        out += compared(result.measured, result.modelled, result.errors)
    return out


def classic(rows: Sequence[PftRow]) -> str:
    """One line a row: Gb Rep Threads (CLine) User System Wall flt/cpu/s fault/wsec."""
    lines = _shows_lines(rows)
    out = [_test_head(lines) + f"{'User':>9}{'System':>10}{'Wall':>10}{'flt/cpu/s':>12}{'fault/wsec':>12}"]
    for row in rows:
        if row.out_of_memory:
            out.append(f"{_test_cells(row, lines)}  out of memory")
            continue
        times = f"{_seconds(row.user_s):>9}{_seconds(row.system_s):>10}{_seconds(row.wall_s):>10}"
        out.append(
            f"{_test_cells(row, lines)}{times}{_rate(row.faults_per_cpu_s):>12}{_rate(row.faults_per_wall_s):>12}"
        )
    return "\n".join(out) + "\n"


def compared(measured: Sequence[PftRow], modelled: Sequence[PftRow], errors: Sequence[PftError]) -> str:
    """One line a test: each rate measured, modelled, and the model's error."""
    lines = _shows_lines(measured)
    head = f"{'flt/cpu/s':>10}{'model':>8}{'error':>8}{'fault/wsec':>11}{'model':>8}{'error':>8}"
    out = [_test_head(lines) + head]
    for real, model, error in zip(measured, modelled, errors, strict=True):
        if model.out_of_memory:
            out.append(f"{_test_cells(real, lines)}  the model runs out of memory")
            continue
        cpu = f"{_whole(real.faults_per_cpu_s):>10}{_whole(model.faults_per_cpu_s):>8}"
        wall = f"{_whole(real.faults_per_wall_s):>11}{_whole(model.faults_per_wall_s):>8}"
        out.append(
            f"{_test_cells(real, lines)}{cpu}{_percent(error.faults_per_cpu_s):>8}"
            f"{wall}{_percent(error.faults_per_wall_s):>8}"
        )
    return "\n".join(out) + "\n"


def heading(rows: Sequence[PftRow], empty_s: float | None = None) -> str:
    """What the rows are of, and what to know before reading them; each line begins with #."""
    row = rows[0]
    where = f"{row.machine} under {row.policy}, in the model" if row.policy else "this host, for real"
    out = [f"# page-fault test: {plain(where)}"]
    out.append(f"# {format_bytes(row.page_bytes)} pages, a touch every {format_bytes(row.stride_bytes)}")
    if row.stride_bytes > row.page_bytes:
        step = row.stride_bytes // row.page_bytes
        out[-1] += f": one page in {step}, but the rates count all"
    if empty_s is not None:
        out.append(f"# an empty child takes {format_ns(empty_s * 1e9)} of wall time a repetition, included")
    return "\n".join(out) + "\n"


def _shows_lines(rows: Sequence[PftRow]) -> bool:
    return any(row.lines != 1 for row in rows)


def _test_head(lines: bool) -> str:
    return f"{'Gb':>6} {'Rep':>4}{'Threads':>8}" + (f"{'CLine':>6}" if lines else "")


def _test_cells(row: PftRow, lines: bool) -> str:
    return f"{row.gb:>6.3g} {row.rep:>4}{row.threads:>8}" + (f"{row.lines:>6}" if lines else "")


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}s"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if value < 1e6 else f"{value:.1f}"


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1%}"
