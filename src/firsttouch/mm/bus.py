"""Memory of several nodes: what zeroing far away costs more, and what the CPUs of one node can zero together.

A **remote** page lies on another node than the CPU that zeroes it: each base page takes `remote_page` longer. A program
that outgrows its node's memory pays this for all that spills.

The CPUs of a node share a **bus**. However many of them zero, pages follow each other on it no faster than one every
`bus_page`. A CPU that zeroes occupies the bus for that long a page, after those who came before; if its own zeroing
takes longer than waiting and occupying together, it notices nothing. A daemon's block is too long for a place in that
row: it and the faults of its node take the bus page by page in turn. So while it zeroes, a fault's page occupies the
bus twice as long, and the daemon's next block is done later by what faults took meanwhile.

Invariants:
  U1  `free_at_ns` of a bus never decreases
  U2  zeroing never takes less than it takes alone, and exactly that while no other CPU of the node zeroes

What is left out: docs/deviations.md, "bus".
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firsttouch._jit import inlined


class Bus(NamedTuple):
    """The buses of all nodes."""

    free_at_ns: NDArray[np.int64]  # [node] of the row of faults
    daemon_until_ns: NDArray[np.int64]  # [node] a daemon zeroes until then
    taken_ns: NDArray[np.int64]  # [node] from that daemon, by faults


def make_bus(nr_nodes: int) -> Bus:
    """Buses that nobody has used."""
    return Bus(np.zeros(nr_nodes, np.int64), np.zeros(nr_nodes, np.int64), np.zeros(nr_nodes, np.int64))


@inlined
def occupy(bus: Bus, node: int, now_ns: int, zero_ns: int, bus_ns: int) -> int:
    """Zero a block that takes `zero_ns` alone and the bus of `node` for `bus_ns`; return how long it takes."""
    if bus.daemon_until_ns[node] > now_ns:
        bus.taken_ns[node] += bus_ns
        bus_ns *= 2
    wait = max(0, bus.free_at_ns[node] - now_ns)
    bus.free_at_ns[node] = now_ns + wait + bus_ns
    return int(max(zero_ns, wait + bus_ns))


@inlined
def sweep(bus: Bus, node: int, now_ns: int, zero_ns: int, bus_ns: int) -> int:
    """The same for a daemon's block; what faults take from it is charged to its next one."""
    ns = int(max(zero_ns, bus_ns) + bus.taken_ns[node])
    bus.taken_ns[node] = 0
    bus.daemon_until_ns[node] = now_ns + ns
    return ns
