"""`firsttouch trace`: look into a trace, check it, and hand it to other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from firsttouch.cli import terminal

TraceFile = Annotated[Path, typer.Argument(metavar="F", help="A trace.", show_default=False)]


def add_to(app: typer.Typer) -> None:
    """Register the verbs."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look into a trace, check it, export it.")
    group.command("info")(info)
    group.command("check")(check)
    group.command("export")(export)
    app.add_typer(group, name="trace")


def info(
    file: TraceFile,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what is in a trace: how it was made, what was touched, where, and by whom."""
    from firsttouch.report import summary, tables

    with terminal.open_trace(file) as trace:
        facts, mappings = summary.facts(trace), summary.mappings(trace)
        if as_json:
            terminal.print_json({"meta": trace.meta, "facts": dict(facts), "mappings": dict(mappings)})
            return
    console = terminal.console()
    tables.print_pairs(facts, console)
    console.print("\nmost touched mappings:")
    tables.print_pairs([(f"{number:>10,}", name) for name, number in mappings], console)


def check(
    file: TraceFile,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check that a trace is whole and that its rows make sense; exit 1 when not."""
    from firsttouch.report import tables
    from firsttouch.trace.check import check as checks

    with terminal.open_trace(file) as trace:
        results = checks(trace)
    good = all(result.ok for result in results)
    if as_json:
        terminal.print_json({"ok": good, "checks": results})
    else:
        rows = [(f"{'ok ' if result.ok else 'BAD'} {result.name}", result.text) for result in results]
        tables.print_pairs(rows, terminal.console())
    raise typer.Exit(0 if good else 1)


def export(
    file: TraceFile,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="OUT", help="File (or folder, for parquet) to write.")
    ],
    form: Annotated[
        str, typer.Option("--format", metavar="parquet|speedscope|perfetto", help="For which tool.")
    ] = "parquet",
    force: Annotated[bool, typer.Option("--force", help="Replace what exists.")] = False,
) -> None:
    """Write a trace for another tool: Parquet (a folder), speedscope (needs --stacks), or Perfetto."""
    from firsttouch.report.exports import export as write

    with terminal.open_trace(file) as trace:
        write(trace, form, output, force=force)
    terminal.note(f"{form} is in {output}")
