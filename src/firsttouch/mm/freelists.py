"""The free lists of a buddy allocator as they lie in memory: `buddy.py` without its code, and without a compiler.

The user-space pool has these lists as well, and fills them by machine code that was compiled earlier.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

UNZEROED, ZEROED = 0, 1
NO_PFN = int(np.iinfo(np.int32).min)  # not -1: a[-1] is a legal index, a[NO_PFN] never is
NOT_HEAD = 0


class Buddy(NamedTuple):
    """Free lists of all zones. z: UNZEROED or ZEROED; k: order. Writers: a = alloc and free, s = scrubber."""

    zone_start: NDArray[np.int64]  # [nr_zones + 1] (never) zone i is the pfns [zone_start[i], zone_start[i + 1])
    first: NDArray[np.int32]  # [zone, z, k] (a,s) head of the list, or NO_PFN
    nr_free: NDArray[np.int64]  # [zone, z, k] (a,s) blocks on the list
    free_pages: NDArray[np.int64]  # [zone] (a) free pages of both classes, blocks in flight included
    zero_pages: NDArray[np.int64]  # [zone] (a,s) pages on the zeroed lists
    next: NDArray[np.int32]  # [pfn] (a,s) of a head: the next on its list, or NO_PFN. Not free: for the owner's lists
    prev: NDArray[np.int32]  # [pfn] (a,s) of a head: the one before, or NO_PFN. Not free: for the owner's lists
    order: NDArray[np.int8]  # [pfn] (a,s) order + 1 of the free block headed here, or NOT_HEAD
    zeroed: NDArray[np.uint8]  # [pfn] (a,s) zero state of the free block headed here; no meaning elsewhere


def empty_buddy(zone_start: NDArray[np.int64], max_order: int) -> Buddy:
    """An allocator that has no free page. `zone_start`: where each zone begins, and the end of the last, in pages."""
    nr_zones, nr_pages = len(zone_start) - 1, int(zone_start[-1])
    return Buddy(
        zone_start=zone_start,
        first=np.full((nr_zones, 2, max_order + 1), NO_PFN, np.int32),
        nr_free=np.zeros((nr_zones, 2, max_order + 1), np.int64),
        free_pages=np.zeros(nr_zones, np.int64),
        zero_pages=np.zeros(nr_zones, np.int64),
        next=np.empty(nr_pages, np.int32),
        prev=np.empty(nr_pages, np.int32),
        order=np.zeros(nr_pages, np.int8),
        zeroed=np.zeros(nr_pages, np.uint8),
    )
