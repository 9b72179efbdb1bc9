"""`firsttouch report`: one HTML file that can be mailed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from firsttouch.cli import terminal


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("report", short_help="Write one self-contained HTML file about a trace.")(report)


def report(
    file: Annotated[Path, typer.Argument(metavar="F", help="A trace.", show_default=False)],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="OUT.html", help="Default: beside the trace.")
    ] = None,
    machine: Annotated[
        str | None, typer.Option(metavar="M", help="A machine's name or file. Default: this host.")
    ] = None,
    policies: Annotated[str | None, typer.Option(metavar="P,...", help="As for whatif.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a self-contained HTML report of a trace: what-if, where the touches are, and when."""
    from firsttouch.cli.whatif import Options
    from firsttouch.report.exports import write_text
    from firsttouch.report.html import render
    from firsttouch.whatif import whatif as evaluate

    target = output or file.with_suffix(".html")
    terminal.check_new(target, force)
    options = Options(machine, policies)
    with terminal.open_trace(file) as trace:
        with terminal.StepProgress() as progress:
            result = evaluate(trace, policies=options.policies, machine=options.machine, progress=progress)
        write_text(target, render(result, trace), force=force)
    terminal.note(f"the report is in {target}")
