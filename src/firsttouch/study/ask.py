"""What a cell asks of the model: its machine, policy, generator and parameters, resolved for its row and column."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from firsttouch.errors import FirsttouchError
from firsttouch.study.table import HINT, Table


@dataclass(frozen=True)
class Ask:
    """One simulation. Two cells that ask the same share it."""

    machine: str
    policy: str
    generator: str
    parameters: tuple[tuple[str, Any], ...]
    shrink: int


def ask_of(table: Table, row: int, column: str) -> Ask:
    """What the cell at `row` and `column` asks. Raises FirsttouchError for a section that does not say."""
    model = table.model
    parameters = {name: resolve(table, f"parameters.{name}", v, row, column) for name, v in model.parameters.items()}
    return Ask(
        machine=text(table, "machine", model.machine, row, column),
        policy=text(table, "policy", model.policy, row, column),
        generator=model.generator,
        parameters=tuple(sorted(parameters.items())),
        shrink=model.shrink,
    )


def text(table: Table, field: str, value: Any, row: int, column: str) -> str:
    """A value that is a name."""
    found = resolve(table, field, value, row, column)
    if not isinstance(found, str) or not found:
        raise FirsttouchError(f"table {table.name}: model.{field} is {found!r}: it must be a name", HINT)
    return found


def resolve(table: Table, field: str, value: Any, row: int, column: str) -> Any:
    """A value of the model section as it is for one cell; see table.py for the forms."""

    def bad(why: str) -> FirsttouchError:
        return FirsttouchError(f"table {table.name}: model.{field} is {value!r}: {why}", HINT)

    if not isinstance(value, dict):
        if isinstance(value, list) or value is None:
            raise bad("it must be a value, or a table that says where it is from")
        return value
    keys = set(value)
    if keys == {"by_column"} and isinstance(value["by_column"], dict):
        if column not in value["by_column"]:
            raise bad(f"it says nothing of column {column}")
        return value["by_column"][column]
    source = value.get("from")
    if source not in table.columns:
        raise bad("`from` must name a column")
    cell = table.rows[row][table.columns.index(source)]
    if keys == {"from", "is"} and isinstance(value["is"], dict):
        if str(cell) not in value["is"]:
            raise bad(f"it says nothing of {str(cell)!r}, which row {row} holds")
        return value["is"][str(cell)]
    if not keys <= {"from", "times"} or not isinstance(value.get("times", 1), (int, float)):
        raise bad("it may hold `from` with `times` or `is`, or `by_column`")
    try:
        number = float(cell) * value.get("times", 1)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise bad(f"row {row} holds {cell!r} there, which is not a number")
    return int(number) if number == int(number) else number
