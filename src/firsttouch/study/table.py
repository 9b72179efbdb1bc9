"""A published table: a TOML file of what was printed, and of how the model is asked for the same.

`columns` and `rows` are as printed. `[[flag]]` says what is wrong with a row, and whether it is left out. `[model]`
says how each cell is asked for:

    machine, policy, generator, [model.parameters]    what is simulated
    [model.observe]                                   column of cells -> observable of the simulation (observe.py)
    fit                                               the cells that the machine's constants may be fitted to

Any of these values may depend on where the cell stands:

    "linux-2.6.10"                                    the same for all cells
    { from = "Threads" }                              what the row holds in that column, as a number
    { from = "Gb", times = 1073741824 }               the same, times a number
    { from = "order", is = { Baseline = "a" } }       by the text that the row holds there
    { by_column = { base = "a", patched = "b" } }     by the cell's column

`shrink` simulates a share of the memory on a machine with that share of its memory; times and counts are multiplied
again. It is for runs whose every page is alike, and `tests/study` holds the proof. `uncovered` says why a table is not
asked for at all.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import msgspec

from firsttouch.errors import FirsttouchError

TABLE_SCHEMA = 1
HINT = "the form is in docs/reference/studies.md; compare with the tables that ship"
Word = str | int | float


class Flag(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of one row beyond what was printed."""

    row: int
    why: str
    leave_out: bool = False  # it is shown, and no error is counted


class Fit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cells that constants may be fitted to: these rows of these columns; empty: all."""

    rows: list[int] = []
    columns: list[str] = []


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the model is asked for the cells."""

    machine: Any = None
    policy: Any = None
    generator: str = ""
    parameters: dict[str, Any] = {}
    observe: dict[str, Any] = {}
    label: list[str] = []  # columns whose values name a row; default: the first column
    rows: list[int] = []  # that are asked for; empty: all
    baseline_row: int | None = None  # what is compared is the change against this row, or
    against: dict[str, int] = {}  # against another for each row: row -> row, or
    baseline_column: str = ""  # against this column
    # the table prints changes; or values, of which the difference, or the ratio to what is compared with, is compared
    printed: Literal["percent", "value", "ratio"] = "percent"
    fit: list[Fit] = []
    shrink: int = 1
    tolerance: float = 0.15  # an error above this is shown as outside
    uncovered: str = ""
    notes: str = ""  # what the asking takes for granted


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One published table."""

    schema: int
    name: str
    columns: list[str]
    rows: list[list[Word]]
    kind: str = "found"  # seed: from one of the five discussions
    source: str = ""
    machine: str = ""
    kernel: str = ""
    date: str = ""
    policy: str = ""
    group: str = ""
    identifies: str = ""
    trust: str = ""
    units: str = ""
    notes: str = ""
    workload: dict[str, Any] = {}
    flag: list[Flag] = []
    model: Model = Model()

    def label(self, row: int) -> str:
        """How a row is called: its first column, or the columns that the model section names, with theirs."""
        names = self.model.label or self.columns[:1]
        values = [str(self.rows[row][self.columns.index(name)]) for name in names]
        return " ".join(values if len(names) == 1 else map("=".join, zip(names, values, strict=True)))

    def base_of(self, row: int) -> int | None:
        """The row that a row's change is against; None: there is none, or it is one that others are compared with."""
        model = self.model
        if row == model.baseline_row or row in model.against.values():
            return None
        return model.against.get(str(row), model.baseline_row)

    def is_asked(self, row: int) -> bool:
        """Whether a row is asked for: itself, or as the one that others are compared with."""
        model = self.model
        bases = {model.baseline_row, *model.against.values()}
        return not self.left_out(row) and (not model.rows or row in model.rows or row in bases)

    def is_compared(self, row: int, column: str) -> bool:
        """Whether a cell has an error: it is asked for, and not what others are compared with."""
        model = self.model
        changes = model.baseline_row is not None or bool(model.against)
        return self.is_asked(row) and column != model.baseline_column and not (changes and self.base_of(row) is None)

    def left_out(self, row: int) -> str:
        """Why no error is counted for a row, or ""."""
        return "; ".join(flag.why for flag in self.flag if flag.row == row and flag.leave_out)

    def is_fitted(self, row: int, column: str) -> bool:
        """Whether constants may be fitted to this cell."""
        return any(
            (not fit.rows or row in fit.rows) and (not fit.columns or column in fit.columns) for fit in self.model.fit
        )

    def published(self, row: int, column: str) -> float:
        """The number printed in a cell. Raises FirsttouchError if it is none."""
        value = self.rows[row][self.columns.index(column)]
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise FirsttouchError(f"table {self.name}: row {row} has {value!r} in column {column}: not a number", HINT)
        return number


def shipped() -> dict[str, Table]:
    """All tables that ship, by name, sorted."""
    folder = resources.files(__name__.rpartition(".")[0]) / "tables"
    files = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".toml")), key=lambda e: e.name)
    return by_name(table for entry in files for table in decode(entry.read_bytes(), entry.name))


def choose(tables: dict[str, Table], names: Iterable[str]) -> list[Table]:
    """Tables by name. Raises FirsttouchError, with the nearest names, for one that is not there."""
    chosen = []
    for name in names:
        if name not in tables:
            near = difflib.get_close_matches(name, tables, 3)
            raise FirsttouchError(
                f"there is no table {name!r}", f"did you mean {' or '.join(near)}?" if near else "see: firsttouch study"
            )
        chosen.append(tables[name])
    return chosen


def by_name(tables: Iterable[Table]) -> dict[str, Table]:
    """The tables by name. Raises FirsttouchError if two have the same."""
    found: dict[str, Table] = {}
    for table in tables:
        if table.name in found:
            raise FirsttouchError(f"two tables are called {table.name!r}", "give each a name of its own")
        found[table.name] = table
    return found


def load_file(path: Path) -> list[Table]:
    """The tables of a user's file."""
    try:
        return decode(path.read_bytes(), str(path))
    except OSError as error:
        raise FirsttouchError(f"cannot read tables from {path}: {error.strerror}", HINT) from None


def decode(toml: bytes, where: str) -> list[Table]:
    """One table from TOML, or several where the file is a list of `[[table]]`; `where` names it in errors."""
    try:
        tree = msgspec.toml.decode(toml)
        several = list(tree) == ["table"] and isinstance(tree["table"], list)
        tables = msgspec.convert(tree["table"] if several else [tree], list[Table])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FirsttouchError(f"tables of {where}: {error}", HINT) from None
    for table in tables:
        check(table)
    return tables


def check(table: Table) -> None:
    """Raise FirsttouchError for a table that cannot be: ragged rows, a column or row that it does not have."""

    def bad(what: str) -> FirsttouchError:
        return FirsttouchError(f"table {table.name}: {what}", HINT)

    if not 1 <= table.schema <= TABLE_SCHEMA:
        raise bad(f"schema is {table.schema}; this firsttouch reads up to {TABLE_SCHEMA}")
    if not table.name or "/" in table.name or not table.name.isprintable():
        raise FirsttouchError(f"a table is called {table.name!r}", HINT)
    if not table.rows or len(set(table.columns)) != len(table.columns):
        raise bad("it needs rows, and columns with names of their own")
    for i, row in enumerate(table.rows):
        if len(row) != len(table.columns):
            raise bad(f"row {i} has {len(row)} values for {len(table.columns)} columns")
    model = table.model
    base_columns = [model.baseline_column] if model.baseline_column else []
    for name in [*base_columns, *model.observe, *model.label, *(column for fit in model.fit for column in fit.columns)]:
        if name not in table.columns:
            raise bad(f"the model section names a column {name!r}, which is not there")
    if not all(row.isdecimal() for row in model.against):
        raise bad("`against` names rows by their numbers")
    named = [*(flag.row for flag in table.flag), *(row for fit in model.fit for row in fit.rows)]
    named += [*model.rows, *map(int, model.against), *model.against.values()]
    for at in named if model.baseline_row is None else [*named, model.baseline_row]:
        if not 0 <= at < len(table.rows):
            raise bad(f"there is no row {at}; rows are 0 to {len(table.rows) - 1}")
    if model.shrink < 1 or not 0 < model.tolerance < math.inf:
        raise bad(f"shrink is {model.shrink} and tolerance {model.tolerance}; they are at least 1, and above 0")
    if not model.uncovered and not model.observe:
        raise bad("its model section has neither cells to observe nor a reason why not (uncovered)")


__all__ = ["Fit", "Flag", "Model", "Table", "by_name", "check", "choose", "decode", "load_file", "shipped"]
