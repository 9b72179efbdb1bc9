"""Locks: who held a line last, until when, and what waiting for it came to.

A lock is a row. A hold is charged when it is taken: its length is known then, because nothing inside it waits. CPUs
ask in the order of their clocks (the step rule of `simulate`), so first come is first served. A lock that another CPU
held last costs a hand-off: its cache line has to travel.

Invariants:
  L1  `free_at_ns` never decreases
  L2  on one CPU no lock is ever waited for
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firsttouch._jit import inlined

ZONE, MM, PAGE_TABLE = range(3)
CLASSES = ("zone", "mmap", "page_table")


class Locks(NamedTuple):
    """All locks of a simulation, and their totals by class."""

    free_at_ns: NDArray[np.int64]  # [lock]
    last_cpu: NDArray[np.int32]  # [lock] CPU that had it last, plus 1; 0 = nobody yet
    wait_ns: NDArray[np.int64]  # [class] waiting and hand-offs
    max_wait_ns: NDArray[np.int64]  # [class]
    hold_ns: NDArray[np.int64]  # [class]
    nr_acquired: NDArray[np.int64]  # [class]


def make_locks(nr_locks: int) -> Locks:
    """Locks that nobody has had."""
    nr = len(CLASSES)
    return Locks(
        np.zeros(nr_locks, np.int64),
        np.zeros(nr_locks, np.int32),
        np.zeros(nr, np.int64),
        np.zeros(nr, np.int64),
        np.zeros(nr, np.int64),
        np.zeros(nr, np.int64),
    )


@inlined
def acquire(locks, kind, lock, cpu, now_ns, hold_ns, handoff_ns):  # type: ignore[no-untyped-def]
    """Take `lock` for `hold_ns`; return how long the CPU is kept: wait, hand-off and hold."""
    wait = max(0, locks.free_at_ns[lock] - now_ns)
    if locks.last_cpu[lock] != cpu + 1:
        if locks.last_cpu[lock] != 0:
            wait += handoff_ns
        locks.last_cpu[lock] = cpu + 1
    locks.free_at_ns[lock] = now_ns + wait + hold_ns
    locks.wait_ns[kind] += wait
    locks.max_wait_ns[kind] = max(locks.max_wait_ns[kind], wait)
    locks.hold_ns[kind] += hold_ns
    locks.nr_acquired[kind] += 1
    return wait + hold_ns
