"""What the model says of a program under a policy, from one or more recordings of it.

Counts come from the model alone. Times are what the program took with base pages and without a recorder, plus what the
model says the policy changes; so is peak memory, as the model has anonymous pages only. With base pages it is measured
in the same rounds as under the knobs, so that a machine that drifts is no error of the model: in runs that are no
knob's, and for all knobs but itself in those of `never`.

With several recordings a prediction is their median, and its interval what they and the costs' quartiles span. Of what
a recording cannot hold, only the kernel knows the count: faults taken without a trap, when exec copies a program's
arguments. No policy changes them, so the recording's number is added.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from firsttouch.machine import Cost, Machine
from firsttouch.mm.outcome import Outcome
from firsttouch.mm.simulate import simulate
from firsttouch.policy import Policy
from firsttouch.trace.store import Trace
from firsttouch.verify.claims import Predicted
from firsttouch.workload import Workload
from firsttouch.workload.from_trace import from_trace


class Recorded(NamedTuple):
    """A recording, ready to replay."""

    workload: Workload
    unseen: int  # faults that the kernel counted and the recording does not hold
    lost: int
    level: str
    wall_ns: int
    system_ns: int
    user_ns: int
    faults: int  # by the kernel's own count
    nr_processes: int
    fixed_addresses: bool


def read(trace: Trace) -> Recorded:
    """A trace, ready to replay. Raises FirsttouchError as `from_trace` does."""
    workload, meta = from_trace(trace), trace.meta
    faults = int(meta["minflt"] or 0) + int(meta["majflt"] or 0)
    return Recorded(
        workload=workload,
        unseen=max(0, faults - workload.nr_touches),
        lost=int(meta["lost"] or 0),
        level=str(meta["level"]),
        wall_ns=int(meta["wall_ns"] or 0),
        system_ns=int(meta["system_ns"] or 0),
        user_ns=int(meta["user_ns"] or 0),
        faults=faults,
        nr_processes=int(workload.facts["processes"]),
        fixed_addresses=bool(meta.get("fixed_addresses")),
    )


class Plain(NamedTuple):
    """Medians of the runs with base pages and without a recorder."""

    system_ns: float
    cpu_ns: float
    wall_ns: float
    maxrss_bytes: float


def variants(machine: Machine) -> list[Machine]:
    """The machine as it is, and with its costs at their lower and upper quartiles."""
    return [machine, at_quartile(machine, "low"), at_quartile(machine, "high")]


def outcomes(recordings: Sequence[Recorded], machine: Machine, policy: Policy) -> list[list[Outcome]]:
    """[recording][variant of the machine] what the model makes of them."""
    return [[simulate(one.workload, costs, policy) for costs in variants(machine)] for one in recordings]


def predict(
    recordings: Sequence[Recorded], under: Sequence[Sequence[Outcome]], base: Sequence[Sequence[Outcome]], plain: Plain
) -> dict[str, Predicted]:
    """Every observable, from the outcomes under a policy and those under the recording's own, `base`."""
    found: dict[str, list[list[float]]] = {name: [] for name in ABSOLUTE | DIFFERENCES}
    for one, mine, theirs in zip(recordings, under, base, strict=True):
        for name, value in ABSOLUTE.items():
            found[name].append([value(outcome) + one.unseen for outcome in mine])
        for name, value in DIFFERENCES.items():
            anchor = getattr(plain, name.replace("peak_rss", "maxrss"), 0.0)
            pairs = zip(mine, theirs, strict=True)
            found[name].append([anchor + value(a) - value(b) for a, b in pairs])
    return {
        name: Predicted(
            value=statistics.median(values[0] for values in each),
            low=min(min(values) for values in each),
            high=max(max(values) for values in each),
        )
        for name, each in found.items()
    }


ABSOLUTE: dict[str, Callable[[Outcome], float]] = {"faults": lambda outcome: outcome.faults}
DIFFERENCES: dict[str, Callable[[Outcome], float]] = {
    "system_ns": lambda outcome: outcome.system_ns,
    "cpu_ns": lambda outcome: outcome.user_ns + outcome.system_ns,
    "wall_ns": lambda outcome: outcome.wall_ns,
    "peak_rss_bytes": lambda outcome: outcome.peak_bytes,
    "untouched_bytes": lambda outcome: outcome.peak_bytes,
}


def at_quartile(machine: Machine, end: str) -> Machine:
    """The machine with every cost that has an interval at its "low" or "high" end."""
    moved = {}
    for field in machine.cost.__struct_fields__:
        cost = getattr(machine.cost, field)
        if isinstance(cost, Cost) and getattr(cost, end) is not None:
            moved[field] = msgspec.structs.replace(cost, ns=getattr(cost, end))
    return msgspec.structs.replace(machine, cost=msgspec.structs.replace(machine.cost, **moved))
