"""Where counting begins and ends, in a workload that first brings memory into a state: at its MEASURE events.

Everything goes on as it was, memory, page tables, locks, CPUs and daemons; only what an outcome is made of begins anew.
What was under way at that moment (a daemon's block) counts with its end, if at all. After the end threads take no more
time, but what daemons still do for what was freed before counts.
"""

import numpy as np
from numpy.typing import NDArray

from firsttouch.mm.pmap import MAPPED_PAGES, PEAK_PAGES, UNTOUCHED_PAGES
from firsttouch.mm.sched import LATENCY_NS, QUEUED_NS
from firsttouch.mm.vmlocks import count_anew
from firsttouch.mm.world import (
    BEGUN_NS,
    BEGUN_PAGES,
    COLD_NS,
    CREDIT_NS,
    LIVE_MMS,
    OUT_OF_MEMORY,
    PEAK_MMS,
    SUPPLY_STEP_NS,
    SYSTEM_NS,
    THINK_NS,
    WALL_NS,
    World,
)

BEGIN, END = 1, 2  # total[PAUSED] at a MEASURE
KEPT = (OUT_OF_MEMORY, SUPPLY_STEP_NS, BEGUN_NS, LIVE_MMS)


def begin_counting(w: World) -> None:
    """Set all counters of a paused world to nothing; it may run on."""
    kept = [int(w.total[i]) for i in KEPT]
    locks = w.locks
    for counters in (
        w.total, w.served, w.latency, w.max_latency_ns, w.supply, w.promotion.counts, w.tablecache.counts,
        w.scrub.nr_wakeups, w.scrub.nr_blocks, w.scrub.zeroed_bytes, w.answers.bounded,
        locks.wait_ns, locks.max_wait_ns, locks.hold_ns, locks.nr_acquired,
    ):  # fmt: skip
        counters[...] = 0
    w.total[list(KEPT)] = kept
    count_anew(w.vmlocks, int(w.total[BEGUN_NS]))
    w.total[PEAK_MMS] = w.total[LIVE_MMS]
    w.total[BEGUN_PAGES] = w.pmap.counts[PEAK_PAGES] = w.pmap.counts[MAPPED_PAGES]
    w.pmap.counts[UNTOUCHED_PAGES] = 0
    w.sched.counts[[LATENCY_NS, QUEUED_NS]] = 0


def thread_times(w: World) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What threads have taken, where counting ends."""
    return w.total.copy(), w.vmlocks.charged_ns.copy()


def end_counting(w: World, times: tuple[NDArray[np.int64], NDArray[np.int64]]) -> None:
    """Threads have taken `times`, whatever has run since."""
    own = [SYSTEM_NS, THINK_NS, COLD_NS, CREDIT_NS, WALL_NS]
    w.total[own] = times[0][own]
    w.vmlocks.charged_ns[...] = times[1]
