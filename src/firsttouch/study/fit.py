"""Fits a machine's constants to the cells that tables name for it, by least squares over the model itself.

A fit (`fits/MACHINE.toml`) names at most MAX_CONSTANTS constants, shared by all tables of the machine, and the bounds
that physics sets them. Residuals are logarithms of model over published, so that cells of all sizes count alike, and a
cell far off (`soft_l1`) less than its square: tables of one machine contradict each other by more than its rows do.

The model charges whole nanoseconds and CPUs race in it, so residuals are not smooth: derivatives are taken over steps
of `STEP`. Nothing is drawn by chance; the same tables give the same constants.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from firsttouch.errors import FirsttouchError
from firsttouch.machine import Machine, encode
from firsttouch.study.ask import ask_of
from firsttouch.study.compare import Cell, Studies, compare
from firsttouch.study.run import Progress, machine_named
from firsttouch.study.table import HINT, Table

MAX_CONSTANTS = 8
STEP = 0.04  # relative
MAX_EVALUATIONS = 40  # of all residuals, each with as many more as there are constants
HELD = "memory.held"
SOFT = 0.1  # an error beyond this counts less than its square


class Constant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One number that is fitted.

    `cost.trap`; `zero.temporal`, which scales the costs of a method at all sizes; `cost.alloc_large` and
    `cost.unmap_large`, which stand for their first number, and change in proportion to it; `memory.held`, whose source
    is in the machine's notes.
    """

    name: str
    low: float
    high: float
    also: list[str] = []  # further constants that keep their ratio to it


class FitPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is fitted of one machine."""

    machine: str
    constant: list[Constant]
    tables: list[str] = []  # to whose cells; [] all that name some. Tables that take long to compute are left out so


class Fitted(msgspec.Struct, frozen=True):
    """A machine fitted, how well, and what the tables come to that were left out one at a time."""

    machine: Machine
    residuals: Residuals


class Residuals(msgspec.Struct, frozen=True):
    """What is stored beside a fitted machine."""

    machine: str
    constants: dict[str, float]
    tables: list[str]  # fitted to
    cells: list[Cell]  # residuals
    left_out: dict[str, float]  # table: median error of its fit cells when it is left out of the fit


def plans() -> dict[str, FitPlan]:
    """The fits that ship, by machine."""
    folder = resources.files(__name__.rpartition(".")[0]) / "fits"
    files = [entry for entry in folder.iterdir() if entry.name.endswith(".toml")]
    out = {}
    for entry in sorted(files, key=lambda e: e.name):
        plan = msgspec.toml.decode(entry.read_bytes(), type=FitPlan)
        if len(plan.constant) > MAX_CONSTANTS:
            raise FirsttouchError(f"the fit of {plan.machine} has {len(plan.constant)} constants", "at most 8")
        out[plan.machine] = plan
    return out


def get(machine: Machine, name: str) -> float:
    """The value of a constant: nanoseconds, bytes of memory, or 1 for a zeroing method as it stands."""
    where, _, field = name.partition(".")
    if where == "zero" and field in machine.zero:
        return 1.0
    if where == "cost" and isinstance(getattr(machine.cost, field, None), list):
        return float(getattr(machine.cost, field)[0])
    if where == "cost" and hasattr(getattr(machine.cost, field, None), "ns"):
        return float(getattr(machine.cost, field).ns)
    if name == HELD and machine.held_bytes > 0:
        return float(machine.held_bytes)
    raise FirsttouchError(f"machine {machine.name} has no constant {name!r} to fit", HINT)


def put(machine: Machine, name: str, value: float, source: str = "") -> Machine:
    """The machine with a constant changed: to nanoseconds or bytes, or a method's costs times `value`."""
    where, _, field = name.partition(".")
    if name == HELD:
        notes = {**machine.notes, "held_bytes": source} if source else machine.notes
        return msgspec.structs.replace(machine, held_bytes=round(value), notes=notes)
    if where == "zero":
        old = machine.zero[field]
        new = msgspec.structs.replace(
            old,
            hot_ns=[round(ns * value, 3) for ns in old.hot_ns],
            cold_ns=[round(ns * value, 3) for ns in old.cold_ns],
            source=source or old.source,
        )
        return msgspec.structs.replace(machine, zero={**machine.zero, field: new})
    before = getattr(machine.cost, field)
    if isinstance(before, list):
        large = [round(ns * value / before[0], 3) for ns in before]
        return msgspec.structs.replace(machine, cost=msgspec.structs.replace(machine.cost, **{field: large}))
    cost = msgspec.structs.replace(before, ns=round(value, 3), source=source or before.source)
    return msgspec.structs.replace(machine, cost=msgspec.structs.replace(machine.cost, **{field: cost}))


def with_constants(machine: Machine, plan: FitPlan, values: Sequence[float], source: str = "") -> Machine:
    """The machine with all constants of the plan at `values`."""
    for constant, value in zip(plan.constant, values, strict=True):
        ratio = value / get(machine, constant.name)
        for also in constant.also:
            machine = put(machine, also, get(machine, also) * ratio, source)
        machine = put(machine, constant.name, value, source)
    return machine


def tables_of(plan: FitPlan, tables: Sequence[Table]) -> list[Table]:
    """The tables that have cells to fit this machine to."""
    mine = [table for table in tables if not plan.tables or table.name in plan.tables]
    return [table for table in mine if not table.model.uncovered and _cells_of(table, plan.machine)]


def fit(
    plan: FitPlan, tables: Sequence[Table], start: Machine | None = None, progress: Progress | None = None
) -> Machine:
    """The machine with its constants fitted to the cells that `tables` name for it. Raises FirsttouchError."""
    from scipy.optimize import least_squares

    machine = start or machine_named(plan.machine)
    narrowed = [_narrow(table, machine.name) for table in tables_of(plan, tables)]
    if not narrowed:
        raise FirsttouchError(f"no table names cells to fit {machine.name} to", HINT)
    x0 = np.array([get(machine, constant.name) for constant in plan.constant])
    low = np.array([constant.low for constant in plan.constant])
    high = np.array([constant.high for constant in plan.constant])

    def residuals(x: NDArray[np.float64]) -> NDArray[np.float64]:
        changed = with_constants(machine, plan, [float(v) for v in x0 * np.exp(x - 1)])
        cells = fit_cells(compare(narrowed, {machine.name: changed}))
        return np.array([math.log(max(1e-9, 1 + cell.error_ratio)) for cell in cells])

    found = least_squares(
        residuals,
        1 + np.log(np.clip(x0, low * 1.01, high * 0.99) / x0),
        bounds=(1 + np.log(low / x0), 1 + np.log(high / x0)),
        diff_step=STEP,
        loss="soft_l1",
        f_scale=SOFT,
        max_nfev=MAX_EVALUATIONS,
        xtol=1e-3,
        ftol=1e-4,
    )
    if progress:
        progress(f"{machine.name}: {found.nfev} evaluations, cost {found.cost:.4f}")
    names = ", ".join(table.name for table in narrowed)
    return with_constants(machine, plan, [float(v) for v in x0 * np.exp(found.x - 1)], f"fitted to {names}")


def fit_cells(result: Studies) -> list[Cell]:
    """The cells of the role `fit`. Raises FirsttouchError where a table could not be asked."""
    if result.not_covered:
        raise FirsttouchError(f"cannot fit to {result.not_covered[0].table}: {result.not_covered[0].reason}", HINT)
    return [cell for study in result.studies for cell in study.cells if cell.role == "fit"]


def cross_validate(
    plan: FitPlan, tables: Sequence[Table], start: Machine, progress: Progress | None = None
) -> dict[str, float]:
    """For each table: the median error of its fit cells when the machine was fitted to all others, from `start`."""
    mine = tables_of(plan, tables)
    errors = {}
    for table in mine if len(mine) > 1 else []:
        others = [other for other in mine if other is not table]
        machine = fit(plan, others, start, progress)
        cells = fit_cells(compare([_narrow(table, plan.machine)], {plan.machine: machine}))
        errors[table.name] = float(np.median([abs(cell.error_ratio) for cell in cells]))
    return errors


def fit_all(tables: Sequence[Table], progress: Progress | None = None) -> Iterator[Fitted]:
    """Fit every machine that has a plan and cells, and leave each of its tables out once. Raises FirsttouchError."""
    mine = [plan for plan in plans().values() if tables_of(plan, tables)]
    if not mine:
        names = ", ".join(plans())
        raise FirsttouchError("none of the tables has cells to fit a machine to", f"machines that are fitted: {names}")
    for plan in mine:
        machine = fit(plan, tables, progress=progress)
        left_out = cross_validate(plan, tables, machine, progress)
        yield Fitted(machine, residuals_of(plan, machine, tables, left_out))


def keep(fitted: Fitted, folder: Path, *, force: bool = False) -> None:
    """Write a fitted machine and its residuals. Raises FirsttouchError if they exist and not `force`, or cannot be."""
    name = fitted.machine.name
    stored = msgspec.json.format(msgspec.json.encode(fitted.residuals), indent=1) + b"\n"
    for path, data in (
        (folder / f"{name}.toml", encode(fitted.machine)),
        (folder / f"{name}.residuals.json", stored),
    ):
        try:
            with path.open("wb" if force else "xb") as file:
                file.write(data)
        except FileExistsError:
            raise FirsttouchError(f"{path} exists already", "use --force to replace it") from None
        except OSError as error:
            raise FirsttouchError(f"cannot write {path}: {error.strerror}", "name a folder that exists") from None


def residuals_of(plan: FitPlan, machine: Machine, tables: Sequence[Table], left_out: dict[str, float]) -> Residuals:
    """What a fit came to, for storing beside the machine."""
    mine = tables_of(plan, tables)
    cells = fit_cells(compare([_narrow(table, plan.machine) for table in mine], {plan.machine: machine}))
    constants: dict[str, Any] = {}
    for constant in plan.constant:
        for name in (constant.name, *constant.also):
            method = machine.zero.get(name.removeprefix("zero."))
            constants[name] = get(machine, name) if method is None else method.cold_ns[0]
    return Residuals(plan.machine, constants, [table.name for table in mine], cells, left_out)


def _cells_of(table: Table, machine: str) -> list[tuple[int, str]]:
    """Where the table has cells to fit this machine to."""
    return [
        (row, column)
        for row in range(len(table.rows))
        for column in table.model.observe
        if table.is_compared(row, column) and table.is_fitted(row, column)
        if table.rows[row][table.columns.index(column)] != ""
        if ask_of(table, row, column).machine == machine
    ]


def _narrow(table: Table, machine: str) -> Table:
    """The table with only the rows that are needed to fit the machine."""
    cells = _cells_of(table, machine)
    columns = {column for _, column in cells} | {table.model.baseline_column}
    model = msgspec.structs.replace(
        table.model,
        rows=sorted({row for row, _ in cells}),
        observe={column: value for column, value in table.model.observe.items() if column in columns},
    )
    return msgspec.structs.replace(table, model=model)
