"""`firsttouch policies`: what there is, and what each means."""

from __future__ import annotations

from typing import Annotated

import typer

from firsttouch.cli import terminal


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("policies", short_help="List the policies, and what each means.")(policies)


def policies(
    show: Annotated[str | None, typer.Option(metavar="NAME", help="Print one as TOML, with every field.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the policies: bases, and the diffs that are written after a base, as in linux-6.18+thp."""
    from firsttouch import _toml, policy
    from firsttouch.whatif.evaluate import full_name

    if show is not None:
        found = policy.load(full_name(show))
        if as_json:
            terminal.print_json(found)
        else:
            typer.echo(_toml.encode(found).decode(), nl=False)
        return
    presets = policy.presets()
    if as_json:
        terminal.print_json({"policies": presets})
        return
    from firsttouch.report import tables

    rows = [(preset.name, f"{preset.summary} [{tables.AVAILABLE[preset.available]}]") for preset in presets]
    tables.print_pairs(rows, terminal.console())
