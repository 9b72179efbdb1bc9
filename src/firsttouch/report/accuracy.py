"""The parts of docs/accuracy.md that stored runs fill: `python -m firsttouch.report.accuracy STORED PAGE`.

STORED is what `verify -o` or `study --json` wrote. What stands between the two marks of a part is replaced; a page
without them gets them at its end, and a missing page is made.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from firsttouch.errors import FirsttouchError
from firsttouch.report.tables import safe
from firsttouch.report.verify_tables import LABELS, value
from firsttouch.units import format_bytes

if TYPE_CHECKING:
    from firsttouch.study.compare import Studies
    from firsttouch.verify.check import Verification
    from firsttouch.verify.claims import Claim

BEGIN, END = "<!-- live kernel: begin (made by `make verify-all`) -->", "<!-- live kernel: end -->"
BEGIN_STUDIES, END_STUDIES = "<!-- studies: begin (made by `make studies`) -->", "<!-- studies: end -->"
TRUSTED, DOUBTED = 0.10, 0.25  # median errors up to which a table is trusted, and from which it is not
TITLE = "# Accuracy\n\n"
SHOWN = ("faults", "system_ns", "wall_ns", "peak_rss_bytes")


def page(text: str, result: Verification) -> str:
    """The page with its live-kernel part made of `result`."""
    return _put(text, BEGIN, live_kernel(result), END)


def page_of_studies(text: str, result: Studies) -> str:
    """The page with its part on published tables made of `result`."""
    return _put(text, BEGIN_STUDIES, published(result), END_STUDIES)


def _put(text: str, begin: str, body: str, end: str) -> str:
    """The page with what stands between two marks replaced."""
    part = f"{begin}\n\n{body}\n{end}"
    before, mark, rest = (text or TITLE).partition(begin)
    if not mark:
        return f"{before.rstrip()}\n\n{part}\n"
    _, found, after = rest.partition(end)
    if not found:
        raise FirsttouchError(f"the page has {begin!r} without {end!r}", "put the second mark back")
    return before + part + after


def published(result: Studies) -> str:
    """Markdown: what published tables come to, which of them to trust the model for, and which not."""
    out = [
        "## Against published tables",
        "",
        "[Every table, cell by cell](studies/index.md). Constants of a machine were",
    ]
    out += ["fitted to the cells that are called fitted; the others are predictions.", ""]
    out += ["| cells | tables | cells | median error | worst |", "|---|---|---|---|---|"]
    for total in result.summary:
        if total.median_error is not None and total.worst_error is not None:
            role = {"fit": "fitted", "predict": "predicted"}[total.role]
            row = f"| {role} | {total.tables} | {total.cells} | {total.median_error:.1%} | {total.worst_error:.1%} |"
            out.append(row)
    parts = (
        (f"Trust it: median error up to {TRUSTED:.0%}", 0.0, TRUSTED),
        (f"With care: {TRUSTED:.0%} to {DOUBTED:.0%}", TRUSTED, DOUBTED),
        (f"Do not trust it: above {DOUBTED:.0%}", DOUBTED, float("inf")),
    )
    for title, low, high in parts:
        mine = [s for s in result.studies if low < s.median_error <= high or low == s.median_error == 0]
        if mine:
            out += ["", f"**{title}**", ""]
            out += [
                f"- [{s.table}](studies/{s.table}.md): {_tell(s.role)}, median {s.median_error:.1%}, worst "
                f"{s.worst_error:.1%}"
                for s in mine
            ]
    if result.not_covered:
        out += ["", f"{len(result.not_covered)} tables are not covered; [the reasons](studies/index.md)."]
    return "\n".join(out) + "\n"


def _tell(role: str) -> str:
    return {"fit": "fitted", "predict": "predicted", "mixed": "partly fitted"}[role]


def live_kernel(result: Verification) -> str:
    """Markdown: the host, what all claims come to, every claim, and every one that failed with its reason."""
    host = result.host
    total = result.summary
    out = [
        "## Against a running kernel",
        "",
        f"Linux {host.kernel} on {host.cpu}, {host.nr_cpus} CPUs, {format_bytes(host.memory_bytes)} "
        f"({'bare metal' if host.virtual == 'none' else f'virtual machine: {host.virtual}'}); machine file "
        f"`{result.machine}`. {result.nr_runs} interleaved runs under each knob, {result.nr_recordings} "
        "recordings of each program, medians with bootstrap 95 % intervals; the number of runs was fixed beforehand.",
        "",
        f"{total['claims']} claims: {total['passed']} passed, {total['failed']} failed, "
        f"{total['not_measurable']} not measurable.",
        "",
        "| observable | median error | worst error | claims |",
        "|---|---|---|---|",
    ]
    for observable, error in total["errors"].items():
        out.append(f"| {LABELS[observable]} | {error['median']:.1%} | {error['worst']:.1%} | {error['n']} |")
    for program in result.programs:
        out += ["", f"### {program.name}", ""]
        if program.skipped:
            out.append(f"Skipped: {_cell(program.skipped)}.")
            continue
        out += [f"- {_cell(note)}" for note in program.notes] + [""] * bool(program.notes)
        out += _table([claim for claim in result.claims if claim.program == program.name])
    failed = [claim for claim in result.claims if claim.verdict == "fail"]
    if failed:
        out += ["", "### Claims that failed", ""]
        out += [f"- {c.program}, {c.knob}, {LABELS[c.observable]}: {_cell(c.why)}" for c in failed]
    return "\n".join(out) + "\n"


def _table(claims: list[Claim]) -> list[str]:
    """A row a knob: predicted against measured, an asterisk where the claim fails."""
    head = " | ".join(LABELS[observable] for observable in SHOWN)
    out = [f"| knob | {head} |", "|---" * (len(SHOWN) + 1) + "|"]
    for knob in dict.fromkeys(claim.knob for claim in claims):
        mine = {claim.observable: claim for claim in claims if claim.knob == knob}
        out.append(f"| `{knob}` | " + " | ".join(_claim(mine[name]) for name in SHOWN) + " |")
    return out


def _claim(claim: Claim) -> str:
    if claim.measured is None or claim.predicted is None or claim.error_ratio is None:
        return "-"
    name = claim.observable
    mark = {"fail": " \\*", "not measurable": " (varies)"}.get(claim.verdict, "")
    measured = value(name, claim.measured.median)
    return f"{value(name, claim.predicted)} : {measured}, {claim.error_ratio:+.1%}{mark}"


def _cell(text: str) -> str:
    return safe(text).replace("|", "\\|")


def main(words: list[str]) -> None:
    """Write the page."""
    from firsttouch.verify.check import load

    stored, target = Path(words[0]), Path(words[1])
    text = target.read_text() if target.exists() else ""
    data = stored.read_bytes()
    if "studies" in msgspec.json.decode(data):
        from firsttouch.study.compare import Studies

        target.write_text(page_of_studies(text, msgspec.json.decode(data, type=Studies)))
    else:
        target.write_text(page(text, load(stored)))


if __name__ == "__main__":
    main(sys.argv[1:])
