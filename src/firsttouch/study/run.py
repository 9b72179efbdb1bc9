"""Runs what tables ask: each simulation once, several side by side in threads (kernels release the GIL).

What a table asks for may not exist in this version: a policy, a machine, a generator. That is found out here, at run
time, and told as the reason why the table is not covered.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from typing import Any

import msgspec

from firsttouch import machine as machines
from firsttouch import policy as policies
from firsttouch.errors import FirsttouchError
from firsttouch.machine import Machine
from firsttouch.study.ask import Ask
from firsttouch.study.observe import Seen
from firsttouch.study.table import HINT
from firsttouch.workload import Workload, generators

Progress = Callable[..., None]  # (text, done, total)
SHRINKS = {"pft": ("nr_bytes",), "readers": ("file_pages",)}  # parameters of a generator that `shrink` divides


@cache
def machine_named(name: str) -> Machine:
    """A preset or a machine file, read once."""
    return machines.load(name)


def workload_of(ask: Ask, machine: Machine) -> Workload:
    """What the generator makes of the parameters. Raises FirsttouchError for one, or a parameter, that is not there."""
    make = getattr(generators, ask.generator, None) if ask.generator in generators.__all__ else None
    known = inspect.signature(make).parameters if inspect.isfunction(make) else {}
    if make is None or "page_bytes" not in known:
        raise FirsttouchError(f"there is no workload generator {ask.generator!r}", "see docs/reference/workloads.md")
    given = dict(ask.parameters)
    if ask.shrink > 1:
        if ask.generator not in SHRINKS:
            raise FirsttouchError(f"{ask.generator} cannot be shrunk", HINT)
        for name in SHRINKS[ask.generator]:
            given[name] = max(1, int(given[name]) // ask.shrink)
    for name in ("page_bytes", "line_bytes"):
        if name in known:
            given.setdefault(name, getattr(machine, name))
    unknown = sorted(given.keys() - known.keys())
    if unknown:
        raise FirsttouchError(
            f"{ask.generator} has no parameter {unknown[0]!r}", f"it has {', '.join(name for name in known)}"
        )
    try:
        made: Workload = make(**given)
    except (TypeError, OverflowError, ValueError, MemoryError) as error:
        raise FirsttouchError(f"{ask.generator} cannot be made of {given}: {error}", HINT) from None
    return made


def run_ask(ask: Ask, machine: Machine | None = None) -> Seen:
    """Simulate. `machine` replaces the preset of the name that is asked for. Raises FirsttouchError."""
    from firsttouch.mm.simulate import simulate

    whole = machine or machine_named(ask.machine)
    policy = policies.load(ask.policy)
    small = msgspec.structs.replace(
        whole, memory_bytes=whole.memory_bytes // ask.shrink, held_bytes=whole.held_bytes // ask.shrink
    )
    workload = workload_of(ask, whole)
    outcome = simulate(workload, small, policy)
    if outcome.out_of_memory:
        raise FirsttouchError(
            f"{ask.generator} with {_words(ask)} does not fit in the memory of {ask.machine}", "ask for less"
        )
    return Seen(ask, whole, outcome, float(workload.facts.get("weight", 1)))


def run_all(
    asks: Iterable[Ask], replaced: dict[str, Machine] | None = None, progress: Progress | None = None
) -> dict[Ask, Seen | FirsttouchError]:
    """Every ask once, on all CPUs; what cannot be asked is its error."""
    unique = sorted(set(asks), key=_work, reverse=True)  # the longest first
    found: dict[Ask, Seen | FirsttouchError] = {}

    def one(ask: Ask) -> Seen | FirsttouchError:
        try:
            return run_ask(ask, (replaced or {}).get(ask.machine))
        except FirsttouchError as error:
            return error

    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        waiting = {pool.submit(one, ask): ask for ask in unique}
        for done, future in enumerate(as_completed(waiting), 1):
            found[waiting[future]] = future.result()
            if progress:
                progress(f"{waiting[future].generator} on {waiting[future].machine}", done, len(unique))
    return found


def _work(ask: Ask) -> tuple[float, str]:
    """What orders simulations by length, roughly; the text makes the order the same each time."""
    given: dict[str, Any] = dict(ask.parameters)
    numbers = [float(v) for v in given.values() if isinstance(v, (int, float))]
    size = 1.0
    for number in numbers:
        size *= max(1.0, number)
    return size / ask.shrink, repr(ask)


def _words(ask: Ask) -> str:
    return ", ".join(f"{name} {value}" for name, value in ask.parameters)


__all__: Sequence[str] = ["machine_named", "run_all", "run_ask", "workload_of"]
