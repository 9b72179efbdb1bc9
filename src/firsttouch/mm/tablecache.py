"""Page-table pages: each begins as zeros, from a cache that is kept zeroed or from the allocator and zeroed anew.

A page-table page is all zeros again when the last thing it mapped is gone. So a kernel may keep it as it is for the
next address space, and neither allocates nor zeroes for that one. Where a machine's costs were measured on dense
touches, a page-table page is part of the trap, one for PMD_PAGES faults, and this mechanism is off ("in-trap").

    zeroed    the first fault of a region allocates and zeroes its page-table page
    cached    it takes one from the cache of its CPU if that has any; an address space that ends puts its own there, up
              to `cache_pages`

Invariants:
  T1  `present[slot]` says whether the region's page-table page has been paid for
  T2  a CPU's cache never holds more than `cache_pages`
  T3  nr_pages counts pages handed out, nr_hits those of them from a cache

Follows the page-table quicklists of Linux 2.6.10 (ia64) and the pte caches of ppc64; where it does not:
docs/deviations.md, "tablecache".
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

IN_TRAP, ZEROED, CACHED = MODES = ("in-trap", "zeroed", "cached")

# counts[]
NR_TABLE_PAGES, NR_TABLE_HITS = range(2)


class TableCache(NamedTuple):
    """Page-table pages of all address spaces, and each CPU's spare ones."""

    cache_pages: int  # 0: no cache
    present: NDArray[np.bool_]  # [slot]
    spare: NDArray[np.int64]  # [cpu] zeroed pages in its cache
    counts: NDArray[np.int64]


def make_tablecache(mode: str, cache_pages: int, nr_slots: int, nr_cpus: int) -> TableCache:
    """Empty caches."""
    return TableCache(
        cache_pages if mode == CACHED else 0,
        np.zeros(nr_slots if mode != IN_TRAP else 1, np.bool_),
        np.zeros(nr_cpus, np.int64),
        np.zeros(2, np.int64),
    )
