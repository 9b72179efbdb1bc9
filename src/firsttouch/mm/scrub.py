"""The scrubber: which free block to zero next, and when to begin and end. One for each zone.

Time is not here: the event loop lets an idle CPU `take` a block, charges the zeroing, and has it `give` the block back.
A scrubber sleeps until a free of unzeroed memory merges to `start_order`; it then zeroes one block after another, the
highest order first, down to `stop_order`, and sleeps when no such block is left. A wake-up while it is awake is lost.
The block it takes is the one freed last, and it goes back to the head of the zeroed list, where it may merge.

Invariants:
  S1  a block in flight is on no list, and free_pages counts it
  S2  a block given back is zeroed
  S3  nr_wakeups counts sleeping scrubbers that woke, not calls
  S4  take returns the highest order from stop_order up that has an unzeroed block

Follows wakeup_kscrubd(), scrub_node() and zero_one() of the prezeroing patches V4 and V6 (2005); where it does not:
docs/deviations.md, "scrub".
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firsttouch._jit import state_kernel
from firsttouch.mm.buddy import NO_PFN, UNZEROED, ZEROED, Buddy, put_back, take_head


class Scrub(NamedTuple):
    """The scrubber of every zone. Written by the CPU that frees (awake, nr_wakeups) and the one that scrubs."""

    awake: NDArray[np.uint8]  # [zone] 1 from a wake-up until no block is left
    nr_wakeups: NDArray[np.int64]  # [zone] times it woke
    nr_blocks: NDArray[np.int64]  # [zone] blocks zeroed
    zeroed_bytes: NDArray[np.int64]  # [zone] bytes zeroed


def make_scrub(nr_zones: int) -> Scrub:
    """All scrubbers asleep, as they are until the first free that is large enough."""
    return Scrub(
        awake=np.zeros(nr_zones, np.uint8),
        nr_wakeups=np.zeros(nr_zones, np.int64),
        nr_blocks=np.zeros(nr_zones, np.int64),
        zeroed_bytes=np.zeros(nr_zones, np.int64),
    )


@state_kernel
def wake_scrub(s: Scrub, zone: int, start_order: int, final_order: int) -> bool:
    """After a free whose unzeroed blocks merged to `final_order` (-1: none): whether the scrubber woke."""
    if final_order < start_order or s.awake[zone]:
        return False
    s.awake[zone] = 1
    s.nr_wakeups[zone] += 1
    return True


@state_kernel
def sleep_scrub(s: Scrub, zone: int) -> None:
    """The scrubber found nothing to do."""
    s.awake[zone] = 0


@state_kernel
def count_scrubbed(s: Scrub, zone: int, nr_bytes: int) -> None:
    """Account for one block of `nr_bytes` zeroed."""
    s.nr_blocks[zone] += 1
    s.zeroed_bytes[zone] += nr_bytes


@state_kernel
def wants(b: Buddy, zone: int, stop_order: int) -> bool:
    """Whether there is an unzeroed block of `stop_order` or above."""
    nr_orders = b.first.shape[2]
    k = stop_order
    while k < nr_orders and b.first[zone, UNZEROED, k] == NO_PFN:
        k += 1
    return bool(k < nr_orders)


@state_kernel
def take(b: Buddy, zone: int, stop_order: int) -> tuple[int, int]:
    """The next block to zero, off its list: (pfn, order), or (NO_PFN, 0) when there is none down to `stop_order`."""
    for k in range(b.first.shape[2] - 1, stop_order - 1, -1):
        if b.first[zone, UNZEROED, k] != NO_PFN:
            return take_head(b, zone, k, UNZEROED), k
    return NO_PFN, 0


@state_kernel
def give(b: Buddy, zone: int, pfn: int, k: int) -> int:
    """Return a block that `take` took, zeroed; the order it merged to."""
    return put_back(b, zone, pfn, k, ZEROED)
