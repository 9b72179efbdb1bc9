"""`firsttouch verify`: what the model says of a program, and what the running kernel counts."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firsttouch.cli import terminal

if TYPE_CHECKING:
    from firsttouch.verify.check import Verification


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("verify", cls=terminal.TakesCommand, short_help="Predicted against measured, on this kernel.")(verify)


def verify(
    ctx: typer.Context,
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="F... | -- COMMAND [ARGS]...", show_default=False)
    ] = None,
    knobs: Annotated[
        str | None,
        typer.Option(metavar="K,...", help="Settings to run under. Default: never,thp,mthp-16k,mthp-64k,mthp-512k."),
    ] = None,
    programs: Annotated[
        str | None, typer.Option(metavar="NAME,...|all", help="Programs of the manifest, instead of F or COMMAND.")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, metavar="N", help="Runs under each knob.")] = 3,
    recordings: Annotated[int, typer.Option(min=1, metavar="N", help="Recordings that a prediction rests on.")] = 1,
    extra: Annotated[
        float,
        typer.Option(
            "--extra-seconds", min=0, metavar="S", help="Time a program for executing it more than once a run."
        ),
    ] = 8.0,
    machine: Annotated[
        str | None, typer.Option(metavar="M", help="A machine's name or file. Default: this host, measured.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be run and changed; do nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Print ASCII of at most 78 columns, for a mail.")] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="F", help="Store everything measured, as JSON.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Run a program under several settings of this kernel and compare what the model predicted.

    The program is recorded once (or F are recordings of it). As root all settings can be had, and they are put
    back whatever happens; otherwise those that concern the program alone. Exits 1 when a prediction fails, 3 when
    nothing could be measured.
    """
    command = terminal.words_after_dashes(ctx)
    if (command is not None) + bool(files) + (programs is not None) != 1 or command == []:
        terminal.usage("it needs traces, or -- COMMAND, or --programs", "firsttouch verify -- python3 script.py")
    terminal.check_new(output, force)
    if output is not None and not output.absolute().parent.is_dir():
        terminal.usage(f"there is no folder {output.parent}", f"mkdir -p {output.parent}")
    from firsttouch import machine as machines
    from firsttouch.host import catalogue, probe
    from firsttouch.verify import check
    from firsttouch.verify import programs as manifest

    names = catalogue.DEFAULT if knobs is None else tuple(knobs.split(","))
    settings = check.settings_for(names, probe.facts())
    costs = None if machine is None else machines.load(machine)
    chosen = manifest.choose(programs.split(",")) if programs is not None else []
    subjects = [check.from_trace_file(path) for path in files or []]
    if command is not None:
        subjects = [check.from_command(command)]
    if dry_run:
        from firsttouch.report import verify_tables

        show = [manifest.listed(program) for program in chosen] or subjects
        typer.echo(verify_tables.dry_run_plain(show, settings, check.changes(settings), runs, recordings), nl=False)
        return
    with tempfile.TemporaryDirectory(prefix="firsttouch-") as folder:
        subjects = [manifest.ready(program, Path(folder)) for program in chosen] or subjects
        with terminal.StepProgress() as progress:
            result = check.verify(
                subjects,
                knob_names=names,
                nr_runs=runs,
                nr_recordings=recordings,
                extra_s=extra,
                machine=costs,
                progress=progress,
            )
    if output is not None:
        import msgspec

        from firsttouch.report.exports import write_text

        tree = msgspec.json.format(msgspec.json.encode(result.to_builtins()), indent=1)
        write_text(output, tree.decode() + "\n", force=force)
        terminal.note(f"everything measured is in {output}")
    print_result(result, as_json=as_json, plain=plain)
    raise typer.Exit(result.exit_code)


def print_result(result: Verification, *, as_json: bool = False, plain: bool = False) -> None:
    """A verification on stdout: tables, plain text, or JSON."""
    if as_json:
        terminal.print_json(result.to_builtins())
        return
    from firsttouch.report import verify_tables

    if plain:
        typer.echo(verify_tables.verify_plain(result), nl=False)
    else:
        verify_tables.print_verify(result, terminal.console())
