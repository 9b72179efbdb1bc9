"""`firsttouch run`: run a Python program with the pool beneath NumPy."""

from __future__ import annotations

from typing import Annotated

import typer

from firsttouch.cli import terminal


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command(
        "run",
        short_help="Run a Python program with a pool of prezeroed memory beneath NumPy.",
        cls=terminal.TakesCommand,
        options_metavar="[OPTIONS] -- SCRIPT|-m MODULE [ARGS]...",
    )(run)


def run(
    ctx: typer.Context,
    pool_limit: Annotated[
        str,
        typer.Option(metavar="S", help="The most memory the pool may take; else 25 % of what there is."),
    ] = "",
    populate: Annotated[str, typer.Option(metavar="S", help="Memory to have mapped and zeroed ahead; else none.")] = "",
    report: Annotated[bool, typer.Option("--report", help="Say at the end, on stderr, what the pool did.")] = False,
) -> None:
    """Run a Python program with the pool beneath NumPy, unchanged, and exit with its exit status.

    Everything after `--` is the program's. Its Python children have the pool as well.
    """
    words = terminal.words_after_dashes(ctx)
    if not words:
        terminal.usage("it needs -- SCRIPT", "firsttouch run -- script.py its arguments")
    from firsttouch.pool import launch

    machine = ""
    if report:
        from firsttouch.host import probe, store

        path = store.machine_path(probe.facts().fingerprint)
        machine = str(path) if path.exists() else ""
    launch.execute(words, launch.environment(pool_limit, populate, report, machine))
