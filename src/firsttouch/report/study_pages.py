"""Studies as pages of the documentation: a Markdown page and an SVG plot for each table, and an index.

`firsttouch study --all --docs docs/studies` writes them all; none is edited by hand. The plot needs matplotlib, which
comes with `pip install 'firsttouch[docs]'`. The same result gives the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from firsttouch.errors import FirsttouchError, NotHere
from firsttouch.report.exports import write_text
from firsttouch.report.study import ROLES, is_outside, number, outside
from firsttouch.report.tables import safe
from firsttouch.study.compare import Studies, Study
from firsttouch.study.table import Table

MADE = "<!-- made by `firsttouch study --all --docs docs/studies`: do not edit -->"


def write(result: Studies, tables: Mapping[str, Table], folder: Path, *, force: bool = False) -> None:
    """Write a page and a plot for each study, and the index. Raises FirsttouchError where they cannot be written."""
    if find_spec("matplotlib") is None:
        raise NotHere("plots of studies need matplotlib", "pip install 'firsttouch[docs]'")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FirsttouchError(
            f"cannot make the folder {folder}: {error.strerror}", "name another with --docs"
        ) from None
    for study in result.studies:
        write_text(folder / f"{study.table}.md", page(study, tables[study.table], result), force=force)
        plot(study, tables[study.table], folder / f"{study.table}.svg")
    write_text(folder / "index.md", index(result, tables), force=force)


def index(result: Studies, tables: Mapping[str, Table]) -> str:
    """What all tables come to, and those that are not covered."""
    out = [MADE, "", "# Studies", "", "Published tables of the field, and what the model says to each cell.", ""]
    out += ["| cells | tables | cells | median error | worst |", "|---|---|---|---|---|"]
    for total in result.summary:
        if total.median_error is not None and total.worst_error is not None:
            out.append(
                f"| {ROLES[total.role]} | {total.tables} | {total.cells} | {total.median_error:.1%} "
                f"| {total.worst_error:.1%} |"
            )
    out += ["", "| table | machine | cells | role | median error | worst | outside |", "|---|---|---|---|---|---|---|"]
    for study in result.studies:
        table = tables[study.table]
        out.append(
            f"| [{study.table}]({study.table}.md) | {_cell(table.machine)} | {len(study.cells)} | {ROLES[study.role]} "
            f"| {study.median_error:.1%} | {study.worst_error:.1%} | {outside(study, table) or '-'} |"
        )
    out += ["", "*outside*: cells further off than the table's tolerance, 15 % where it sets none."]
    if result.not_covered:
        out += ["", "## Not covered", "", "| table | why |", "|---|---|"]
        out += [f"| {missed.table} | {_cell(missed.reason)} |" for missed in result.not_covered]
    out += ["", "```{toctree}", ":hidden:", "", *(study.table for study in result.studies), "```"]
    return "\n".join(out) + "\n"


def page(study: Study, table: Table, result: Studies) -> str:
    """One table: where it is from, every cell, and what is known to be wrong with it."""
    out = [MADE, "", f"# {study.table}", ""]
    facts = [("policy", table.policy), ("machine", table.machine), ("kernel", table.kernel), ("date", table.date)]
    facts += [("workload", str(table.workload.get("description", table.workload.get("program", ""))))]
    facts += [("source", table.source), ("trust", table.trust), ("notes", table.notes)]
    facts += [("in the model", table.model.notes)]
    out += [f"- {name}: {_cell(text)}" for name, text in facts if text]
    out += ["", f"![published and model]({study.table}.svg)", ""]
    out += ["| row | column | published | model | error | |", "|---|---|---|---|---|---|"]
    for cell in study.cells:
        marks = [*(["fitted"] if cell.role == "fit" else []), *(["**outside**"] if is_outside(cell, table) else [])]
        out.append(
            f"| {_cell(cell.row)} | {_cell(cell.column)} | {number(cell.published)} | {number(cell.model)} "
            f"| {cell.error_ratio:+.1%} | {', '.join(marks)} |"
        )
    out += ["", f"Median error {study.median_error:.1%}, worst {study.worst_error:.1%}."]
    gone = [row for row in result.left_out if row.table == study.table]
    if gone:
        out += ["", "Rows left out:", "", *(f"- {_cell(row.row)}: {_cell(row.reason)}" for row in gone)]
    flags = [f"- {_cell(table.label(flag.row))}: {_cell(flag.why)}" for flag in table.flag if not flag.leave_out]
    return "\n".join(out + (["", "Doubts:", "", *flags] if flags else [])) + "\n"


def plot(study: Study, table: Table, path: Path) -> None:
    """Published points (circles), the model's (crosses), and the errors below, a colour a column.

    Points are joined only where rows differ in one number. Columns that are thousands of times apart, as counts and
    seconds are, have panels of their own.
    """
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    columns = list(dict.fromkeys(cell.column for cell in study.cells))
    rows = list(dict.fromkeys(cell.row for cell in study.cells))
    joined = "-" if is_series(rows) else ""
    of_column = {column: [cell for cell in study.cells if cell.column == column] for column in columns}
    panels = alike([max(abs(cell.published) for cell in mine) for mine in of_column.values()])
    with matplotlib.rc_context({"svg.hashsalt": study.table, "svg.fonttype": "none", "font.size": 8}):
        nr = max(panels) + 1
        figure, all_axes = pyplot.subplots(
            nr + 1, 1, figsize=(7, 3 + 2 * nr), sharex=True, height_ratios=[*[3] * nr, 1], layout="constrained"
        )
        axes: Any = all_axes
        below = axes[-1]
        for i, (column, mine) in enumerate(of_column.items()):
            top = axes[panels[i]]
            at = [rows.index(cell.row) for cell in mine]
            colour = f"C{i % 10}"
            top.plot(at, [cell.model for cell in mine], "x" + joined, color=colour, label=f"{column}, model")
            for role, face in (("predict", colour), ("fit", "none")):
                points = [(x, cell.published) for x, cell in zip(at, mine, strict=True) if cell.role == role]
                if points:
                    name = f"{column}, published ({ROLES[role]})"
                    top.plot(*zip(*points, strict=True), "o", color=colour, markerfacecolor=face, label=name)
            below.plot(at, [100 * cell.error_ratio for cell in mine], "o" + joined, color=colour, markersize=3)
        for panel, top in enumerate(axes[:-1]):
            shown = [cell for k, mine in enumerate(of_column.values()) if panels[k] == panel for cell in mine]
            if all(cell.published > 0 and cell.model > 0 for cell in shown):
                top.set_yscale("log")
            top.legend(fontsize=6)
        limit = 100 * table.model.tolerance
        below.axhspan(-limit, limit, color="0.9", zorder=0)
        below.set_ylabel("error, %")
        below.set_xticks(range(len(rows)), [row.replace(" ", "\n") for row in rows], fontsize=7)
        axes[0].set_title(study.table)
        try:
            figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
        except OSError as error:
            raise FirsttouchError(f"cannot write {path}: {error.strerror}", "name another folder with --docs") from None
        finally:
            pyplot.close(figure)


def is_series(rows: Sequence[str]) -> bool:
    """Whether rows, written `key=value key=value`, differ in numbers only: then a line between two means something."""
    shapes = {tuple(re.sub(r"=\d+(\.\d+)?$", "=N", word) for word in row.split(" ")) for row in rows}
    return len(rows) > 1 and len(shapes) == 1 and any("=N" in word for word in shapes.pop())


def alike(sizes: Sequence[float], apart: float = 1000.0) -> list[int]:
    """For each size the number of its group: it begins one where it is more than `apart` times the last one's least."""
    groups, group, limit = [0] * len(sizes), 0, 0.0
    for k in sorted(range(len(sizes)), key=lambda k: sizes[k]):
        if limit and sizes[k] > limit:
            group, limit = group + 1, 0.0
        groups[k] = group
        limit = limit or sizes[k] * apart
    return groups


def _cell(text: str) -> str:
    """Text that Markdown takes as it is, on one line."""
    return safe(" ".join(text.split())).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
