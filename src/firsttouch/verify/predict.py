"""What the model says of a program under a policy, from one or more recordings of it.

With several recordings a prediction is their median, and its interval what they and the costs' quartiles span. Of what
a recording cannot hold, only the kernel knows the count: faults taken without a trap, when exec copies a program's
arguments. No policy changes them, so the recording's number is added.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
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
    return Recorded(
        workload=workload,
        unseen=int(meta["unseen"] or 0),
        lost=int(meta["lost"] or 0),
        level=str(meta["level"]),
        wall_ns=int(meta["wall_ns"] or 0),
        system_ns=int(meta["system_ns"] or 0),
        user_ns=int(meta["user_ns"] or 0),
        faults=int(meta["minflt"] or 0) + int(meta["majflt"] or 0),
        nr_processes=int(workload.facts["processes"]),
        fixed_addresses=bool(meta.get("fixed_addresses")),
    )


def peaks_bytes(recordings: Sequence[Recorded], machine: Machine, policy: Policy) -> list[int]:
    """The model's peak memory of each recording."""
    return [simulate(recorded.workload, machine, policy).peak_bytes for recorded in recordings]


def predict(
    recordings: Sequence[Recorded],
    machine: Machine,
    policy: Policy,
    base_peaks_bytes: Sequence[int],
    base_rss_bytes: float,
) -> dict[str, Predicted]:
    """Every observable under `policy`.

    `base_peaks_bytes` is the model's peak with base pages, `base_rss_bytes` the measured one.
    """
    found: dict[str, list[list[float]]] = {}
    for recorded, base_bytes in zip(recordings, base_peaks_bytes, strict=True):
        variants: dict[str, list[float]] = {}
        for costs in (machine, at_quartile(machine, "low"), at_quartile(machine, "high")):
            outcome = simulate(recorded.workload, costs, policy)
            for name, value in observables(outcome, recorded, base_bytes, base_rss_bytes).items():
                variants.setdefault(name, []).append(value)
        for name, values in variants.items():
            found.setdefault(name, []).append(values)
    return {
        name: Predicted(
            value=statistics.median(values[0] for values in each),
            low=min(min(values) for values in each),
            high=max(max(values) for values in each),
        )
        for name, each in found.items()
    }


def observables(outcome: Outcome, recorded: Recorded, base_bytes: int, base_rss_bytes: float) -> dict[str, float]:
    """An outcome in the terms of claims."""
    added_bytes = outcome.peak_bytes - base_bytes
    return {
        "faults": outcome.faults + recorded.unseen,
        "system_ns": outcome.system_ns,
        "cpu_ns": outcome.user_ns + outcome.system_ns,
        "wall_ns": outcome.wall_ns,
        "peak_rss_bytes": base_rss_bytes + added_bytes,
        "untouched_bytes": added_bytes,
    }


def at_quartile(machine: Machine, end: str) -> Machine:
    """The machine with every cost that has an interval at its "low" or "high" end."""
    moved = {}
    for field in machine.cost.__struct_fields__:
        cost = getattr(machine.cost, field)
        if isinstance(cost, Cost) and getattr(cost, end) is not None:
            moved[field] = msgspec.structs.replace(cost, ns=getattr(cost, end))
    return msgspec.structs.replace(machine, cost=msgspec.structs.replace(machine.cost, **moved))
