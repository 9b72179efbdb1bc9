"""`firsttouch whatif`: the main job. A trace, or a program to record now, replayed under every policy."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firsttouch.cli import terminal

if TYPE_CHECKING:
    from firsttouch.whatif import WhatIf


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("whatif", cls=terminal.TakesCommand, short_help="What each policy would save a program.")(whatif)


def whatif(
    ctx: typer.Context,
    file: Annotated[Path | None, typer.Argument(metavar="F | -- COMMAND [ARGS]...", show_default=False)] = None,
    machine: Annotated[
        str | None, typer.Option(metavar="M", help="A machine's name or file. Default: this host, measured.")
    ] = None,
    policies: Annotated[
        str | None, typer.Option(metavar="P,...", help="Policies; `+thp` is short for `linux-6.18+thp`.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Print ASCII of at most 78 columns, for a mail.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="F", help="Write a self-contained HTML file too.")] = None,
    level: Annotated[str, typer.Option(metavar="auto|basic|full", help="How to record COMMAND.")] = "auto",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="F", help="Keep the trace of COMMAND.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Say what each policy would save a program: one that was recorded (F), or COMMAND, recorded now.

    Everything after `--` is the program's. With --json its standard output goes to standard error.
    """
    command = terminal.words_after_dashes(ctx)
    if (command is None) == (file is None) or command == []:
        terminal.usage("it needs either a trace or -- COMMAND", "firsttouch whatif -- python3 script.py")
    if output is not None and command is None:
        terminal.usage("-o keeps the trace of a COMMAND, and there is none", "--html F writes a report of a trace")
    terminal.check_new(html, force)
    options = Options(machine, policies)  # a mistake in a name is told before the program runs
    if file is not None:
        show(file, options, as_json=as_json, plain=plain, html=html, force=force)
        return
    from firsttouch.cli.record import report, say_what_is_behind
    from firsttouch.record import recorder

    assert command is not None
    with tempfile.TemporaryDirectory(prefix="firsttouch-") as folder:
        path = output or Path(folder) / f"{Path(command[0]).name or 'program'}.ftt"
        with terminal.stdout_to_stderr(as_json):
            result = recorder.record(command, path, level=level, force=force, progress=say_what_is_behind)
        report(result, kept=output is not None)
        show(path, options, as_json=as_json, plain=plain, html=html, force=force)


class Options:
    """The machine and the policies that were named."""

    def __init__(self, machine: str | None, policies: str | None) -> None:
        from firsttouch import machine as machines
        from firsttouch.whatif.evaluate import load_policies

        self.machine = None if machine is None else machines.load(machine)
        self.policies = None if policies is None else policies.split(",")
        load_policies(self.policies)


def show(
    path: Path,
    options: Options,
    *,
    as_json: bool = False,
    plain: bool = False,
    html: Path | None = None,
    force: bool = False,
) -> None:
    """Evaluate a trace and print it in the form that was asked for."""
    from firsttouch.whatif import whatif as evaluate

    with terminal.open_trace(path) as trace:
        with terminal.StepProgress() as progress:
            result = evaluate(trace, policies=options.policies, machine=options.machine, progress=progress)
        if html is not None:
            from firsttouch.report.exports import write_text
            from firsttouch.report.html import render

            write_text(html, render(result, trace), force=force)
            terminal.note(f"the report is in {html}")
    print_result(result, as_json=as_json, plain=plain)


def print_result(result: WhatIf, *, as_json: bool = False, plain: bool = False) -> None:
    """A what-if on stdout: a table, plain text, or JSON."""
    if as_json:
        terminal.print_json(result.to_builtins())
        return
    from firsttouch.report import tables

    if plain:
        typer.echo(tables.whatif_plain(result), nl=False)
    else:
        tables.print_whatif(result, terminal.console())
