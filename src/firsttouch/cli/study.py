"""`firsttouch study`: published tables against the model, cell by cell."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from firsttouch.cli import terminal


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("study", short_help="Published tables against the model.")(study)


def study(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME...", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every table that ships.")] = False,
    files: Annotated[
        list[Path] | None, typer.Option("--tables", metavar="F", help="Tables of a file, instead of those that ship.")
    ] = None,
    fit: Annotated[
        bool, typer.Option("--fit", help="Fit the machines' constants anew, to the cells that the tables name for it.")
    ] = False,
    cells: Annotated[bool, typer.Option("--cells", help="Every cell, also with --all.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="With --fit: keep the fitted machines and residuals there."),
    ] = None,
    docs: Annotated[
        Path | None, typer.Option("--docs", metavar="DIR", help="Write a page and a plot for each table there.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Ask the model for what published tables hold, and print the error of every cell.

    Constants of a machine were fitted to some cells; the others are predictions, and are told apart. A table that
    the model cannot be asked for is listed with the reason. Exits 1 when none of the tables can be covered.
    """
    if bool(names) + everything + bool(files) != 1:
        terminal.usage("it needs names of tables, or --all, or --tables FILE", "firsttouch study --all")
    if output is not None and not fit:
        terminal.usage("-o keeps fitted machines, and nothing is fitted", "add --fit")
    from firsttouch.report import study as report
    from firsttouch.study import compare, table

    if files:
        tables = [one for path in files for one in table.load_file(path)]
    else:
        shipped = table.shipped()
        tables = list(shipped.values()) if everything else table.choose(shipped, names or [])
    by_name = table.by_name(tables)
    replaced = {}
    with terminal.StepProgress() as progress:
        if fit:
            from firsttouch.study import fit as fitting

            for fitted in fitting.fit_all(tables, progress):
                replaced[fitted.machine.name] = fitted.machine
                if output is not None:
                    fitting.keep(fitted, output, force=force)
        result = compare.compare(tables, replaced, progress)
    if docs is not None:
        from firsttouch.report.study_pages import write

        write(result, by_name, docs, force=force)
    if as_json:
        import msgspec

        terminal.print_json(msgspec.to_builtins(result))
    else:
        typer.echo(report.text(result, by_name, cells=cells or bool(names)), nl=False)
    if not result.studies:
        raise typer.Exit(1)
