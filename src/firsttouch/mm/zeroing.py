"""Zeroing: with what, how long it takes, how much of that a CPU is occupied, and what the user pays for it later.

A **method** is how a CPU zeroes: the machine file holds what `temporal`, `nontemporal`, `line_establish` and
`rep_stosb` cost it, for memory in its cache (hot) and not (cold).

A **driver** is a device that zeroes in a CPU's place. Drivers are asked in turn, the one registered last first; one
that declines a block passes it on, and what all decline the CPU zeroes by its method. A driver either holds its CPU
until the block is done, or is *polled*: the daemon sleeps for the whole ticks that the transfer should take, and then
asks again and again. So a polled driver costs a CPU the set-up and what is left after the last whole tick.

A **page zeroed ahead** has left the cache, or was never there: its user fetches each line that he touches from memory.
A page zeroed in the fault is hot. So zeroing ahead pays while fewer lines are touched than `break_even_lines`.

Follows the zero drivers of the prezeroing patches V2 to V6 and their block transfer engine (BTE) of the Altix; where it
does not: docs/deviations.md, "zeroing".
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firsttouch.errors import FirsttouchError
from firsttouch.machine import Costs, Machine

ALTIX_TICK_NS = 976_562  # 1 / 1024 s, cut off


class Driver(NamedTuple):
    """A device that zeroes."""

    name: str
    min_bytes: int  # smallest block that it takes
    end_bytes: int  # smallest that is too large
    setup_ns: int  # CPU time to start it
    bytes_per_s: int
    polled: bool  # the daemon sleeps meanwhile; else its CPU waits

    def takes(self, nr_bytes: int) -> bool:
        """Whether a block of `nr_bytes` is one for it."""
        return self.min_bytes <= nr_bytes < self.end_bytes


def bte(line_bytes: int, *, polled: bool, setup_ns: int = 1_000, bytes_per_s: int = 500_000_000) -> Driver:
    """The block transfer engine of the Altix: blocks from 60,000 bytes up, less than 2**16 lines.

    It was polled with V2 and V3; from V4 on the driver waits. The rate is the one that the patches counted on.
    """
    return Driver("bte", 60_000, line_bytes << 16, setup_ns, bytes_per_s, polled)


class Registry:
    """The drivers of a kernel, the one registered last first."""

    def __init__(self) -> None:
        self.drivers: list[Driver] = []

    def register(self, driver: Driver) -> None:
        """Ask `driver` before all others from now on. Raises FirsttouchError for one that could never work."""
        if not 0 <= driver.min_bytes < driver.end_bytes or driver.setup_ns < 0 or driver.bytes_per_s < 1:
            raise FirsttouchError(
                f"zero driver {driver.name} takes blocks of {driver.min_bytes} bytes to less than {driver.end_bytes}, "
                f"set-up {driver.setup_ns} ns, {driver.bytes_per_s} bytes/s",
                "sizes and set-up are 0 or more, the end above the start, the rate at least 1",
            )
        self.drivers.insert(0, driver)

    def unregister(self, name: str) -> None:
        """Ask the driver of this name no longer. Raises FirsttouchError if there is none."""
        left = [driver for driver in self.drivers if driver.name != name]
        if len(left) == len(self.drivers):
            names = ", ".join(driver.name for driver in self.drivers) or "none"
            raise FirsttouchError(f"there is no zero driver {name!r}", f"registered: {names}")
        self.drivers = left

    def choose(self, nr_bytes: int) -> Driver | None:
        """Who zeroes a block of `nr_bytes`; None: the CPU."""
        return next((driver for driver in self.drivers if driver.takes(nr_bytes)), None)


class Zeroing(NamedTuple):
    """What zeroing one block takes."""

    cpu_ns: int  # a CPU is occupied this long
    elapsed_ns: int  # the block is zeroed after this time


def method_ns(machine: Machine, method: str, nr_bytes: int, hot: bool) -> int:
    """What a CPU of `machine` takes to zero a block by `method`. Raises FirsttouchError if it does not have it."""
    if method not in machine.zero:
        raise FirsttouchError(
            f"machine {machine.name} has no cost for zeroing method {method!r}",
            f"it has {', '.join(machine.zero)}; measure this host: firsttouch calibrate",
        )
    return round(machine.zero[method].ns(nr_bytes, hot))


def driver_ns(driver: Driver, nr_bytes: int, tick_ns: int = ALTIX_TICK_NS) -> Zeroing:
    """What zeroing a block by `driver` takes; the daemon's sleep is a number of ticks of `tick_ns`."""
    transfer_ns = -(-nr_bytes * 10**9 // driver.bytes_per_s)
    done_ns = driver.setup_ns + transfer_ns
    if not driver.polled:
        return Zeroing(done_ns, done_ns)
    asleep_ns = nr_bytes * 10**9 // driver.bytes_per_s // tick_ns * tick_ns
    return Zeroing(done_ns - asleep_ns, done_ns)


def zero_ns(
    machine: Machine,
    method: str,
    nr_bytes: int,
    *,
    hot: bool = False,
    drivers: Registry | None = None,
    tick_ns: int = ALTIX_TICK_NS,
) -> Zeroing:
    """What zeroing a block of `nr_bytes` takes: by the first driver that takes it, else by `method` on the CPU."""
    driver = drivers.choose(nr_bytes) if drivers else None
    if driver is not None:
        return driver_ns(driver, nr_bytes, tick_ns)
    ns = method_ns(machine, method, nr_bytes, hot)
    return Zeroing(ns, ns)


class ZeroTable(NamedTuple):
    """`zero_ns` of blocks by order, for the event loop."""

    cpu_ns: NDArray[np.int64]  # [order]
    elapsed_ns: NDArray[np.int64]  # [order]


def zero_table(
    machine: Machine,
    method: str,
    nr_orders: int,
    *,
    hot: bool = False,
    drivers: Registry | None = None,
    tick_ns: int = ALTIX_TICK_NS,
) -> ZeroTable:
    """What zeroing blocks of the orders 0 to `nr_orders` - 1 takes. Raises as `method_ns`."""
    blocks = [
        zero_ns(machine, method, machine.page_bytes << k, hot=hot, drivers=drivers, tick_ns=tick_ns)
        for k in range(nr_orders)
    ]
    return ZeroTable(
        cpu_ns=np.array([block.cpu_ns for block in blocks], np.int64),
        elapsed_ns=np.array([block.elapsed_ns for block in blocks], np.int64),
    )


def touch_ns(cost: Costs, nr_lines: int, hot: bool) -> float:
    """What the user pays to touch `nr_lines` lines of a page for the first time."""
    return nr_lines * (cost.line_hot if hot else cost.line_cold).ns


def ahead_gain_ns(cost: Costs, fault_zero_ns: float, nr_lines: int) -> float:
    """What fault and user together save if a page whose `nr_lines` lines will be touched was zeroed ahead."""
    return fault_zero_ns + touch_ns(cost, nr_lines, hot=True) - touch_ns(cost, nr_lines, hot=False)


def break_even_lines(cost: Costs, fault_zero_ns: float) -> float:
    """The number of lines touched at which zeroing a page ahead saves nothing; inf if a cold line costs no more.

    `fault_zero_ns` is what zeroing the page in the fault takes. Above the lines of a page: it always pays.
    """
    more_ns = cost.line_cold.ns - cost.line_hot.ns
    return fault_zero_ns / more_ns if more_ns > 0 else math.inf
