"""`firsttouch machines`: the machines that ship, and this host's if it was measured."""

from __future__ import annotations

from typing import Annotated

import typer

from firsttouch.cli import terminal


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("machines", short_help="List the machines, and what they cost.")(machines)


def machines(
    show: Annotated[
        str | None, typer.Option(metavar="NAME", help="Print one as TOML: a name, a file, or `host`.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the machines: what things cost, and how big they are."""
    from firsttouch import machine
    from firsttouch.errors import FirsttouchError
    from firsttouch.host import store

    if show is not None:
        found = store.find() if show == "host" else machine.load(show)
        if found is None:
            raise FirsttouchError("this host was not measured yet", "firsttouch calibrate")
        if as_json:
            terminal.print_json(found)
        else:
            typer.echo(machine.encode(found).decode(), nl=False)
        return
    known = [(name, machine.load(name)) for name in machine.presets()]
    here = store.find()
    if here is not None:
        known.insert(0, ("host", here))
    if as_json:
        terminal.print_json({"machines": [found for _, found in known]})
        return
    from firsttouch.report import tables

    rows = [(name, f"{found.summary or found.name}, {found.nr_cpus} CPUs") for name, found in known]
    if here is None:
        rows.insert(0, ("host", "not measured yet: firsttouch calibrate"))
    tables.print_pairs(rows, terminal.console())
