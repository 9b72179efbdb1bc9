"""`firsttouch doctor`: what this machine lets you record, model and verify, and what would change that."""

from __future__ import annotations

from typing import Annotated

import typer

from firsttouch.cli import terminal


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("doctor", short_help="What this machine allows, and what would change that.")(doctor)


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Say what this machine allows; each "no" comes with the command that would change it."""
    from firsttouch.record.doctor import examine

    findings = examine()
    if as_json:
        terminal.print_json({"findings": findings})
        return
    from firsttouch.report import tables

    rows = []
    for finding in findings:
        rows.append((f"{'ok' if finding.ok else 'no'}  {finding.name}", finding.value))
        if not finding.ok:
            rows += [("", text) for text in (finding.why, f"Try: {finding.fix}" if finding.fix else "") if text]
    tables.print_pairs(rows, terminal.console())
