"""Studies as text of at most 78 columns: a line a table, a line a cell, and what all come to."""

from __future__ import annotations

from collections.abc import Mapping

from firsttouch.report.tables import counted, plain
from firsttouch.study.compare import Cell, Studies, Study
from firsttouch.study.table import Table

NAME_COLUMNS = 36
ROLES = {"fit": "fitted", "predict": "predicted", "mixed": "mixed"}


def text(result: Studies, tables: Mapping[str, Table], *, cells: bool) -> str:
    """The whole result; `cells`: with every cell of every table."""
    out = []
    for study in result.studies:
        if cells:
            out += [*detail(study, tables[study.table]), ""]
    if result.studies:
        out += summary(result, tables)
    if result.left_out:
        out += ["", "rows left out:"]
        out += [f"  {plain(row.table)}, {plain(row.row)}: {plain(row.reason)}" for row in result.left_out]
    if result.not_covered:
        out += ["", "not covered:"]
        out += [f"  {plain(missed.table)}: {plain(missed.reason)}" for missed in result.not_covered]
    return "\n".join(out).lstrip("\n") + "\n"


def summary(result: Studies, tables: Mapping[str, Table]) -> list[str]:
    """A line a table, then one each for the cells that were fitted to and those that were predicted."""
    out = [f"{'table':<{NAME_COLUMNS}} {'cells':>5} {'':<9} {'median':>7} {'worst':>8} outside"]
    for study in result.studies:
        out.append(
            f"{plain(study.table):<{NAME_COLUMNS}} {len(study.cells):>5} {ROLES[study.role]:<9} "
            f"{study.median_error:>7.1%} {study.worst_error:>8.1%} {outside(study, tables[study.table]) or '-':>7}"
        )
    for total in result.summary:
        if total.median_error is not None and total.worst_error is not None:
            name = f"all cells, {counted(total.tables, 'table', 'tables')}"
            out.append(
                f"{name:<{NAME_COLUMNS}} {total.cells:>5} "
                f"{ROLES[total.role]:<9} {total.median_error:>7.1%} {total.worst_error:>8.1%}"
            )
    return out


def outside(study: Study, table: Table) -> int:
    """How many cells are further off than the table's tolerance."""
    return sum(is_outside(cell, table) for cell in study.cells)


def is_outside(cell: Cell, table: Table) -> bool:
    """Whether a cell is further off than its table's tolerance."""
    return abs(cell.error_ratio) > table.model.tolerance


def detail(study: Study, table: Table) -> list[str]:
    """One table, cell by cell; a star marks what is outside the tolerance."""
    out = [f"{plain(study.table)}: {plain(table.policy or table.workload.get('description', ''))}"]
    width = max(len(plain(cell.row)) for cell in study.cells)
    names = max(len(plain(cell.column)) for cell in study.cells)
    out.append(f"  {'':<{width}} {'':<{names}} {'published':>11} {'model':>11} {'error':>8}")
    for cell in study.cells:
        mark = "*" if is_outside(cell, table) else " "
        role = "" if cell.role == "predict" else "  fitted"
        out.append(
            f"  {plain(cell.row):<{width}} {plain(cell.column):<{names}} {number(cell.published):>11} "
            f"{number(cell.model):>11} {cell.error_ratio:>+8.1%}{mark}{role}".rstrip()
        )
    out.append(
        f"  median {study.median_error:.1%}, worst {study.worst_error:.1%}; "
        f"{outside(study, table)} of {len(study.cells)} outside {table.model.tolerance:.0%}"
    )
    return out


def number(value: float) -> str:
    """Five significant digits, without an exponent."""
    digits = max(0, 4 - len(str(int(abs(value))))) if abs(value) >= 1 else 4
    return f"{value:,.{digits}f}"
