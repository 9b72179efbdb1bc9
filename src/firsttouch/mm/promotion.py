"""Promotion: base pages of a region become one superpage after their faults. Who may, when, and which region first.

Two ways, which a policy may combine:

  in the fault   the fault that brings a region's population to `in_fault_pages` promotes it at once
  daemon         wakes every `sleep_ns` and looks at regions for `scan_pages` entries a wake, as khugepaged does: in
                 order of address, or those of the highest access coverage first. It promotes a region of which at
                 most `max_none` entries map nothing of their own, and at most `max_shared` pages that others map, too

**Bloat recovery** is the way back: when little memory is free the daemon goes through the superpages, looks for pages
that still hold zeros, and where there are any breaks the superpage up and maps the zero page in their places.

Only anonymous private mappings that the policy's `thp` switch lets have superpages take part, and only regions wholly
inside. Access coverage is the number of a region's pages that the program has touched, in ten buckets.

What a promotion does, and its time, is in `khugepaged.py`: a part (see parts.py), compiled when a policy promotes.

Invariants:
  K1  a region that is promoted maps PMD_PAGES pages of one block, and as many as before are TOUCHED
  K2  the daemon's CPU time is background time; a promotion in the fault is system time of its thread
  K3  a wake looks at `scan_pages` entries at most, rounded up to a region
  K4  recovery frees pages that are not TOUCHED, and no other

Follows Linux khugepaged_do_scan() and hpage_collapse_scan_pmd(), and the access-coverage order of HawkEye (2019);
where it does not: docs/deviations.md, "promotion".
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firsttouch._jit import state_kernel
from firsttouch.mm.superpage import allowed_orders
from firsttouch.policy import Superpage
from firsttouch.units import PMD_ORDER, PMD_PAGES

NR_BUCKETS = 10
NEVER_NS = int(np.iinfo(np.int64).max)
NO_VMA = -1

# counts[]
SCANNED, PROMOTED, NO_MEMORY, ZEROED_PAGES, RECOVERED_PAGES = range(5)
# daemon[]
CURSOR, LEFT_PAGES, ROUNDS, HAS_SLEPT, NEXT_NS, RECOVERING, PLANNED_NS = range(7)


class Promotion(NamedTuple):
    """Rules, and where the daemon is. Written by the daemon, and by faults (vma)."""

    in_fault_pages: int  # 0: faults do not promote
    max_none: int
    max_shared: int
    scan_pages: int
    sleep_ns: int
    alloc_sleep_ns: int  # after the first allocation of a wake that failed
    by_coverage: bool
    recover_below: int  # free pages below which bloat is recovered, 0: never,
    recover_until: int  # and up to which
    may: NDArray[np.uint8]  # [vma] whether it takes part
    vma: NDArray[np.int32]  # [slot] mapping that the region's last fault was in, or NO_VMA
    # region it comes to next, entries left to it, rounds begun, whether it slept for memory, when it goes on; while it
    # recovers: the region it comes to next, plus 1, and when it will go on promoting
    daemon: NDArray[np.int64]
    counts: NDArray[np.int64]


def promotes(rules: Superpage) -> bool:
    """Whether anything is promoted under these rules."""
    return rules.promote != "never" or rules.promote_in_fault_ratio > 0


def ratio_pages(ratio: float) -> int:
    """The least number of a region's pages that is at least this part of it."""
    return math.ceil(ratio * PMD_PAGES - 1e-9)


def make_promotion(
    rules: Superpage, vma_flags: NDArray[np.int32], nr_slots: int, nr_pages: int, by_hook: bool
) -> Promotion:
    """The daemon asleep until its first wake, `promote_sleep_ms` after time 0. No arrays where nothing is promoted."""
    on = promotes(rules) or by_hook
    daemon = np.zeros(7, np.int64)
    daemon[NEXT_NS] = NEVER_NS if rules.promote == "never" else rules.promote_sleep_ms * 10**6
    may = allowed_orders(rules, vma_flags) >> PMD_ORDER & 1
    return Promotion(
        in_fault_pages=ratio_pages(rules.promote_in_fault_ratio),
        max_none=min(rules.promote_max_none, PMD_PAGES - ratio_pages(rules.promote_min_ratio)),
        max_shared=rules.promote_max_shared,
        scan_pages=rules.promote_scan_pages,
        sleep_ns=rules.promote_sleep_ms * 10**6,
        alloc_sleep_ns=rules.promote_alloc_sleep_ms * 10**6,
        by_coverage=rules.promote == "coverage",
        recover_below=round((1 - rules.recover_above_ratio) * nr_pages) if rules.recover_above_ratio else 0,
        recover_until=round((1 - rules.recover_to_ratio) * nr_pages),
        may=may.astype(np.uint8) if on else np.zeros(1, np.uint8),
        vma=np.full(nr_slots if on else 1, NO_VMA, np.int32),
        daemon=daemon,
        counts=np.zeros(5, np.int64),
    )


@state_kernel
def bucket(nr_touched: int) -> int:
    """The coverage bucket of a region of which the program has touched so many pages."""
    return min(NR_BUCKETS - 1, nr_touched * NR_BUCKETS // PMD_PAGES)
