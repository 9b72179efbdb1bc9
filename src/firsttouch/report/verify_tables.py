"""A verification as text of at most 78 columns: for each program its claims, then what they come to.

The same text serves a terminal, where verdicts are coloured, and a mail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from firsttouch.report.tables import counted, pairs_plain, plain, safe
from firsttouch.units import format_bytes, format_ns

if TYPE_CHECKING:
    from rich.console import Console

    from firsttouch.host.catalogue import Setting
    from firsttouch.verify.check import ProgramResult, Subject, Verification
    from firsttouch.verify.claims import Claim

LABELS = {
    "faults": "faults", "system_ns": "system", "cpu_ns": "CPU", "wall_ns": "wall", "peak_rss_bytes": "peak",
    "untouched_bytes": "untouched",
}  # fmt: skip
KNOB_COLUMNS = 14
_HEAD = (
    f"{'knob':<{KNOB_COLUMNS}} {'':<9} {'predicted':>9}  {'measured':>9} {'[95 % interval]':<21} {'error':>6} verdict"
)


def value(observable: str, amount: float) -> str:
    """A predicted or measured value, without blanks."""
    if observable.endswith("_ns"):
        return format_ns(amount).replace(" ", "")
    if observable.endswith("_bytes"):
        return format_bytes(amount).replace(" ", "")
    return f"{round(amount):,}"


def claim_lines(claims: Sequence[Claim]) -> list[str]:
    """The claims of one program: a line each, reasons below; a knob that cannot be had here takes one line."""
    out = [_HEAD]
    for knob, group in groupby(claims, key=lambda claim: claim.knob):
        mine = list(group)
        shown = knob
        if len({claim.why for claim in mine}) == 1 and all(claim.measured is None for claim in mine):
            out.append(f"{plain(knob):<{KNOB_COLUMNS}} not measurable: {plain(mine[0].why)}")
            continue
        if len(knob) > KNOB_COLUMNS:
            out.append(plain(knob))
            shown = ""
        for claim in mine:
            out += _lines(shown, claim)
            shown = ""
    return out


def _lines(knob: str, claim: Claim) -> list[str]:
    head = f"{plain(knob):<{KNOB_COLUMNS}} {LABELS[claim.observable]:<9} "
    predicted = "-" if claim.predicted is None else value(claim.observable, claim.predicted)
    if claim.measured is None:
        return [f"{head}{predicted:>9}  not measurable: {plain(claim.why)}"]
    found = claim.measured
    low, high = value(claim.observable, found.low), value(claim.observable, found.high)
    error = "-" if claim.error_ratio is None else f"{claim.error_ratio:+.1%}"
    line = f"{head}{predicted:>9}  {value(claim.observable, found.median):>9} {f'[{low}, {high}]':<21} {error:>6} "
    if claim.verdict == "not measurable":
        return [line + "-", f"{'':<{KNOB_COLUMNS}} {'':<9} {plain(claim.why)}"]
    return [line + ("pass" if claim.verdict == "pass" else "FAIL")]


def program_header(program: ProgramResult) -> list[tuple[str, str]]:
    """What stands above a program's claims."""
    rows = [("program", f"{program.name}: {' '.join(program.command)}" if program.command else program.name)]
    if program.skipped:
        return [*rows, ("skipped", program.skipped)]
    for one in program.recordings[:1]:
        more = f", {len(program.recordings)} recordings" if len(program.recordings) > 1 else ""
        rows.append(("recorded", f"{one['touches']:,} touches, level {one['level']}{more}"))
    rows += [("note", note) for note in program.notes]
    return [(label, safe(text)) for label, text in rows]


def summary_lines(result: Verification) -> list[str]:
    """What all claims come to."""
    total = result.summary
    out = [
        f"{counted(total['claims'], 'claim', 'claims')}: {total['passed']} passed, {total['failed']} failed, "
        f"{total['not_measurable']} not measurable."
    ]
    for observable, error in total["errors"].items():
        out.append(
            f"  {LABELS[observable]:<9} median error {error['median']:.1%}, worst {error['worst']:.1%} "
            f"({counted(error['n'], 'claim', 'claims')})"
        )
    return out


def verify_plain(result: Verification) -> str:
    """The whole verification as plain ASCII."""
    out = []
    for program in result.programs:
        out.append(pairs_plain(program_header(program)).rstrip())
        claims = [claim for claim in result.claims if claim.program == program.name]
        if claims:
            out += ["", *claim_lines(claims)]
        out.append("")
    out += [f"note: {plain(text)}" for text in result.warnings]
    out += summary_lines(result)
    return "\n".join(line.rstrip() for line in out) + "\n"


def print_verify(result: Verification, console: Console) -> None:
    """The same on a terminal, with verdicts coloured."""
    if not console.is_terminal:
        console.file.write(verify_plain(result))
        return
    from rich.text import Text

    for line in verify_plain(result).splitlines():
        style = "red" if line.endswith(" FAIL") else "green" if line.endswith(" pass") else ""
        console.print(Text(line, style=style), soft_wrap=True)


def dry_run_plain(
    subjects: Sequence[Subject],
    settings: Sequence[Setting],
    changes: Mapping[str, Mapping[str, str]],
    nr_runs: int,
    nr_recordings: int,
) -> str:
    """What would be run and changed."""
    able = [setting for setting in settings if not setting.refused]
    runs = f"once plain, {nr_recordings} recorded, then {nr_runs} rounds over {len(able)} knobs"
    rows = [("run", f"{subject.name}: {' '.join(subject.command)}") for subject in subjects]
    rows.append(("runs", f"each program: {runs}"))
    for setting in settings:
        if setting.refused:
            rows.append((setting.name, f"not measurable: {setting.refused}"))
            continue
        what = [f"{path} = {text}" for path, text in changes[setting.name].items()]
        what += [f"prctl(PR_SET_THP_DISABLE, {setting.thp_disable[0]}, {setting.thp_disable[1]})"] * any(
            setting.thp_disable
        )
        what += [f"{name}={text}" for name, text in setting.env.items()]
        rows.append((setting.name, f"as {setting.policy.name}: {', '.join(what) or 'nothing to change'}"))
    text = pairs_plain([(label, safe(body)) for label, body in rows])
    return text + "Nothing was run or changed; files that are set would be restored, whatever happens.\n"
