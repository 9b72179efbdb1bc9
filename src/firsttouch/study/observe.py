"""What can be read off a simulation: the observables that a table's cells are compared with.

Times and counts are those of the whole run, rates are free of its size. `pages` in the rates of the page-fault test are
computed from its parameters, as the test does, not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from firsttouch.errors import FirsttouchError
from firsttouch.machine import Machine
from firsttouch.mm.outcome import Outcome
from firsttouch.study.ask import Ask

LOCK_WAIT = "lock_wait_s:"
CONTENDED = "lock_contended_s:"  # as lock profiling counts: of acquisitions that found the lock held


@dataclass(frozen=True)
class Seen:
    """One simulation, as far as observables need it."""

    ask: Ask
    machine: Machine
    outcome: Outcome
    weight: float = 1.0  # how many jobs each of a sample stands for

    @property
    def shrink(self) -> float:
        """How many times smaller than the published run it was."""
        return self.ask.shrink * self.weight

    @property
    def nominal_pages(self) -> float:
        """Pages as the page-fault test computes them, of the run as published."""
        given = dict(self.ask.parameters)
        return float(given["nr_bytes"]) * float(given.get("reps", 1)) / self.machine.page_bytes


def cpu_s(seen: Seen) -> float:
    """User and system time."""
    return seen.shrink * (seen.outcome.user_ns + seen.outcome.system_ns) / 1e9


def wall_s(seen: Seen) -> float:
    """From the start to the last exit."""
    return seen.shrink * seen.outcome.wall_ns / 1e9


OBSERVABLES: dict[str, Callable[[Seen], float]] = {
    "user_s": lambda seen: seen.shrink * seen.outcome.user_ns / 1e9,
    "system_s": lambda seen: seen.shrink * seen.outcome.system_ns / 1e9,
    "cpu_s": cpu_s,
    "wall_s": wall_s,
    "background_s": lambda seen: seen.shrink * seen.outcome.background_ns / 1e9,
    "faults": lambda seen: float(seen.shrink * seen.outcome.faults),
    "peak_bytes": lambda seen: float(seen.shrink * seen.outcome.peak_bytes),
    "fault_us": lambda seen: seen.outcome.fault_ns / max(1, seen.outcome.faults) / 1e3,
    "zeroed_gb_per_wall_s": lambda seen: seen.outcome.zeroed_in_fault_bytes / max(1, seen.outcome.wall_ns),
    "pages_per_cpu_s": lambda seen: seen.nominal_pages / cpu_s(seen),
    "pages_per_wall_s": lambda seen: seen.nominal_pages / wall_s(seen),
}


def contended_ns(seen: Seen, lock: str) -> int:
    """What a class of locks was waited for by those who found it held. Raises KeyError where that is not counted."""
    ns = seen.outcome.locks[lock].contended_ns
    if ns is None:
        raise KeyError(CONTENDED + lock)
    return ns


def observe(name: str, seen: Seen) -> float:
    """The observable `name`. Raises FirsttouchError for one that is not there, and for a rate of nothing."""
    try:
        if name.startswith(LOCK_WAIT):
            return seen.shrink * seen.outcome.lock_wait_ns[name.removeprefix(LOCK_WAIT)] / 1e9
        if name.startswith(CONTENDED):
            return seen.shrink * contended_ns(seen, name.removeprefix(CONTENDED)) / 1e9
        return OBSERVABLES[name](seen)
    except KeyError as error:
        counted = (lock for lock, use in seen.outcome.locks.items() if use.contended_ns is not None)
        known = [*OBSERVABLES, *(LOCK_WAIT + lock for lock in seen.outcome.lock_wait_ns)]
        known += [CONTENDED + lock for lock in counted]
        raise FirsttouchError(f"nothing is called {error.args[0]!r} that a cell could be compared with",
                              f"there are {', '.join(known)}") from None  # fmt: skip
    except ZeroDivisionError:
        raise FirsttouchError(f"{name} of a run that took no time", "give the generator more to do") from None
