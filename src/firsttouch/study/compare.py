"""Published against model: the error of each cell, of each table, and of all."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from firsttouch.errors import FirsttouchError
from firsttouch.machine import Machine
from firsttouch.study.ask import Ask, ask_of, resolve, text
from firsttouch.study.observe import Seen, observe
from firsttouch.study.run import Progress, run_all
from firsttouch.study.table import Table


class Cell(msgspec.Struct, frozen=True):
    """One number that was published, and the model's."""

    row: str
    column: str
    published: float
    model: float
    error_ratio: float  # model / published - 1
    role: str  # fit: constants of the machine were fitted to it; predict: they were not


class Study(msgspec.Struct, frozen=True):
    """One table. Errors are of the cells' absolute error ratios."""

    table: str
    role: str  # fit, predict, or mixed
    cells: list[Cell]
    median_error: float
    worst_error: float


class NotCovered(msgspec.Struct, frozen=True):
    """A table that the model is not asked for, or cannot answer."""

    table: str
    reason: str


class LeftOut(msgspec.Struct, frozen=True):
    """A row whose error is not counted."""

    table: str
    row: str
    reason: str


class Summary(msgspec.Struct, frozen=True):
    """Errors over the cells of one role; None without cells."""

    role: str
    tables: int
    cells: int
    median_error: float | None
    worst_error: float | None


class Studies(msgspec.Struct, frozen=True):
    """All that were asked for: the JSON of `firsttouch study --json`."""

    studies: list[Study]
    not_covered: list[NotCovered]
    left_out: list[LeftOut]
    summary: list[Summary]


@dataclass(frozen=True)
class _Wanted:
    """Where a cell stands, and what it asks."""

    row: int
    column: str
    ask: Ask
    observable: str


def compare(
    tables: Sequence[Table], replaced: dict[str, Machine] | None = None, progress: Progress | None = None
) -> Studies:
    """Simulate what `tables` ask and compare. A machine in `replaced` stands in for the preset of its name.

    Raises FirsttouchError for a table that contradicts itself; one that asks for what is not there is not covered.
    """
    wanted = {table.name: _wanted(table) for table in tables if not table.model.uncovered}
    found = run_all((cell.ask for cells in wanted.values() for cell in cells), replaced, progress)
    studies, not_covered, left_out = [], [], []
    for table in tables:
        if table.model.uncovered:
            not_covered.append(NotCovered(table.name, table.model.uncovered))
            continue
        failed = [found[cell.ask] for cell in wanted[table.name] if isinstance(found[cell.ask], FirsttouchError)]
        if failed:
            not_covered.append(NotCovered(table.name, str(failed[0])))
            continue
        try:
            cells = _cells(table, wanted[table.name], found)
        except FirsttouchError as error:
            not_covered.append(NotCovered(table.name, str(error)))
            continue
        if cells:
            studies.append(study_of(table.name, cells))
        left_out += [
            LeftOut(table.name, table.label(row), table.left_out(row))
            for row in range(len(table.rows))
            if table.left_out(row)
        ]
    return Studies(studies, not_covered, left_out, [summary_of(role, studies) for role in ("fit", "predict")])


def study_of(name: str, cells: list[Cell]) -> Study:
    """The errors of one table's cells, of which there is at least one."""
    errors = [abs(cell.error_ratio) for cell in cells]
    roles = {cell.role for cell in cells}
    return Study(name, roles.pop() if len(roles) == 1 else "mixed", cells, statistics.median(errors), max(errors))


def summary_of(role: str, studies: Sequence[Study]) -> Summary:
    """The errors of all cells of one role."""
    having = [study for study in studies if any(cell.role == role for cell in study.cells)]
    errors = [abs(cell.error_ratio) for study in having for cell in study.cells if cell.role == role]
    return Summary(
        role, len(having), len(errors), statistics.median(errors) if errors else None, max(errors, default=None)
    )


def _wanted(table: Table) -> list[_Wanted]:
    """The cells of a table that are asked for, row by row; those of a row that is left out are not."""
    out = []
    for row in range(len(table.rows)):
        if not table.is_asked(row):
            continue
        for column, value in table.model.observe.items():
            if table.rows[row][table.columns.index(column)] == "":
                continue  # nothing was printed there
            if resolve(table, f"observe.{column}", value, row, column) == "":
                continue  # the table says that this cell is of something else
            observable = text(table, f"observe.{column}", value, row, column)
            out.append(_Wanted(row, column, ask_of(table, row, column), observable))
            if table.is_compared(row, column):
                table.published(row, column)
    return out


def _cells(table: Table, wanted: Sequence[_Wanted], found: dict[Ask, Seen | FirsttouchError]) -> list[Cell]:
    """The cells with the model's values; under a baseline row the change against it in percent."""
    model: dict[tuple[int, str], float] = {}
    for cell in wanted:
        seen = found[cell.ask]
        assert isinstance(seen, Seen)
        model[cell.row, cell.column] = observe(cell.observable, seen)
    cells = []
    for row, column in model:
        if not table.is_compared(row, column):
            continue
        published, value = _change(table, model, row, column)
        if published == 0:
            raise FirsttouchError(
                f"table {table.name}: row {row} prints no change in column {column}: no error ratio", "leave it out"
            )
        role = "fit" if table.is_fitted(row, column) else "predict"
        cells.append(Cell(table.label(row), column, published, value, value / published - 1, role))
    return cells


def _change(table: Table, model: dict[tuple[int, str], float], row: int, column: str) -> tuple[float, float]:
    """What is compared of a cell, published and modelled: its value, or its change against another row or column."""
    published, value = table.published(row, column), model[row, column]
    base_row, base_column = table.base_of(row), table.model.baseline_column
    if base_row is None and not base_column:
        return published, value
    base = (row if base_row is None else base_row, base_column or column)
    if table.model.printed == "percent":
        return published, 100 * (value / model[base] - 1)
    if table.model.printed == "ratio":
        return published / table.published(*base), value / model[base] if model[base] else math.inf
    return published - table.published(*base), value - model[base]
