"""The load average of one minute, as the kernel keeps it: fixed point, refreshed every five seconds.

`avenrun` is the average number of threads that run or could run, times FIXED_1. At each refresh the number of that very
moment counts for 1 - EXP_1 / FIXED_1 = 8 %; products are cut off, not rounded. A test against a limit in whole threads
compares `avenrun >= limit << FSHIFT`.

Follows Linux 2.6.10 calc_load() and CALC_LOAD(); where it does not: docs/deviations.md, "load".
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firsttouch._jit import state_kernel

FSHIFT = 11  # bits of the fraction
FIXED_1 = 1 << FSHIFT  # one thread
EXP_1 = 1884  # FIXED_1 / exp(5 s / 1 min)
LOAD_FREQ_NS = 5_000_000_000


class Load(NamedTuple):
    """One minute's average. Written by the event loop."""

    avenrun: NDArray[np.int64]  # [1] threads, times FIXED_1
    next_ns: NDArray[np.int64]  # [1] time of the next refresh


def make_load(avenrun: int = 0) -> Load:
    """A machine that has had `avenrun / FIXED_1` threads for long, at time 0."""
    return Load(avenrun=np.array([avenrun], np.int64), next_ns=np.array([LOAD_FREQ_NS], np.int64))


@state_kernel
def update_load(avenrun: int, nr_active: int) -> int:
    """The average after one refresh that found `nr_active` threads running or able to."""
    return (avenrun * EXP_1 + nr_active * FIXED_1 * (FIXED_1 - EXP_1)) >> FSHIFT


@state_kernel
def advance_load(load: Load, now_ns: int, nr_active: int) -> int:
    """Do the refreshes due until `now_ns`, all of which find `nr_active` threads; the average then."""
    while load.next_ns[0] <= now_ns:
        before = load.avenrun[0]
        load.avenrun[0] = update_load(before, nr_active)
        load.next_ns[0] += LOAD_FREQ_NS
        if load.avenrun[0] == before:  # nothing changes any more
            load.next_ns[0] += max(0, now_ns - load.next_ns[0]) // LOAD_FREQ_NS * LOAD_FREQ_NS
    return int(load.avenrun[0])
