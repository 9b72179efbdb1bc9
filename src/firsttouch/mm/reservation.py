"""Reservations: a superpage frame is set aside at the first touch of a region, and populated page by page.

A region of an address space (2 MiB, aligned) that has a reservation gets its pages from there, each at its place: page
i of the region from page i of the frame. So when all have been touched the region is contiguous and aligned, and can be
mapped by one entry. Pages of a reservation that nobody has taken are free, and nobody else's: until memory runs out,
when the reservation whose population changed the longest ago is *broken*: it gives its free pages back, and is none any
more. One whose last page is freed gives back the frame.

A reservation is made if the region does not begin before its mapping, and nothing of it is mapped yet; anonymous memory
may reach past the mapping's end. If no frame is free the page comes from elsewhere.

Partly populated reservations of a node are in a queue, ordered by the last change of their population; a change within
a tick (1 ms) of the last one does not move a reservation, and takes no lock.

Invariants:
  R1  nr_used[frame] bits of the frame's map are set; 0 means that it is no reservation
  R2  of_region[region_of[frame]] is the frame, for every reservation whose region has not made another
  R3  a reservation is queued on its node exactly if it is not full
  R4  a page is free in the buddy, or kept by a CPU, or free in a reservation, or taken; never two of these

Follows FreeBSD vm_reserv.c: vm_reserv_alloc_page(), vm_reserv_populate(), vm_reserv_depopulate(), vm_reserv_break(),
vm_reserv_reclaim_inactive(); where it does not: docs/deviations.md, "reservation".
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firsttouch._jit import inlined, state_kernel
from firsttouch.mm.buddy import NO_PFN, UNZEROED, Buddy, alloc_block, free_block, zone_of
from firsttouch.units import PMD_ORDER, PMD_PAGES

NO_FRAME = NO_REGION = int(np.iinfo(np.int32).min)
TICK_NS = 1_000_000

# counts[]
NR_CREATED, NR_FULL, NR_BROKEN, NR_RETURNED, NR_PROMOTIONS, NR_FAILURES, NR_DEMOTIONS, NR_MAPPINGS = range(8)
COUNTS = ("created", "full", "broken", "returned", "promotions", "failures", "demotions", "mappings")

# what a change of population asks of the caller
NOTHING, QUEUED, RETURNED = range(3)  # nothing; the lock of the node's queue; that, and the lock of free memory


class Reservation(NamedTuple):
    """All superpage frames of memory. Empty if the policy has no reservations."""

    on: bool
    region_of: NDArray[np.int32]  # [frame] region (of all address spaces: an index of Pmap.slot), or NO_REGION
    of_region: NDArray[np.int32]  # [region] frame, or NO_FRAME
    nr_used: NDArray[np.int16]  # [frame] pages taken
    used: NDArray[np.uint8]  # [frame, page // 8] bits: page taken
    changed_tick: NDArray[np.int64]  # [frame] of its last move in the queue
    queued: NDArray[np.bool_]  # [frame]
    next: NDArray[np.int32]  # [frame] in its node's queue, or NO_FRAME
    prev: NDArray[np.int32]  # [frame]
    head: NDArray[np.int32]  # [node] changed the longest ago
    tail: NDArray[np.int32]  # [node]
    counts: NDArray[np.int64]


def make_reservation(on: bool, nr_pages: int, nr_regions: int, nr_nodes: int) -> Reservation:
    """No reservation."""
    nr_frames, nr_regions = (-(-nr_pages // PMD_PAGES), nr_regions) if on else (0, 0)
    return Reservation(
        on=on,
        region_of=np.full(nr_frames, NO_REGION, np.int32),
        of_region=np.full(nr_regions, NO_FRAME, np.int32),
        nr_used=np.zeros(nr_frames, np.int16),
        used=np.zeros((nr_frames, PMD_PAGES // 8), np.uint8),
        changed_tick=np.zeros(nr_frames, np.int64),
        queued=np.zeros(nr_frames, np.bool_),
        next=np.full(nr_frames, NO_FRAME, np.int32),
        prev=np.full(nr_frames, NO_FRAME, np.int32),
        head=np.full(nr_nodes, NO_FRAME, np.int32),
        tail=np.full(nr_nodes, NO_FRAME, np.int32),
        counts=np.zeros(len(COUNTS), np.int64),
    )


@inlined
def is_used(r: Reservation, frame: int, i: int) -> bool:
    """Whether page `i` of a reservation is taken."""
    return bool(r.used[frame, i >> 3] & (1 << (i & 7)))


@inlined
def enqueue(r: Reservation, node: int, frame: int) -> None:
    """Put a frame at the end of its node's queue."""
    last = r.tail[node]
    r.prev[frame] = last
    r.next[frame] = NO_FRAME
    if last == NO_FRAME:
        r.head[node] = frame
    else:
        r.next[last] = frame
    r.tail[node] = frame
    r.queued[frame] = True


@inlined
def dequeue(r: Reservation, node: int, frame: int) -> None:
    """Take a frame off its node's queue."""
    after, before = r.next[frame], r.prev[frame]
    if before == NO_FRAME:
        r.head[node] = after
    else:
        r.next[before] = after
    if after == NO_FRAME:
        r.tail[node] = before
    else:
        r.prev[after] = before
    r.queued[frame] = False


@state_kernel
def reserve(r: Reservation, b: Buddy, zone: int, region: int) -> int:
    """Set a frame of `zone` aside for a region that has none; NO_FRAME if the zone has no free one."""
    pfn = alloc_block(b, zone, PMD_ORDER, UNZEROED)
    if pfn == NO_PFN:
        return NO_FRAME
    frame = pfn >> PMD_ORDER
    r.region_of[frame] = region
    r.of_region[region] = frame
    r.counts[NR_CREATED] += 1
    return frame


@state_kernel
def take_page(r: Reservation, b: Buddy, frame: int, i: int, tick: int) -> int:
    """Take page `i`, which is free, of a reservation; return NOTHING or QUEUED."""
    r.used[frame, i >> 3] |= 1 << (i & 7)
    r.nr_used[frame] += 1
    is_full = r.nr_used[frame] == PMD_PAGES
    if r.queued[frame] and not is_full and r.changed_tick[frame] == tick:
        return NOTHING
    node = zone_of(b, frame << PMD_ORDER)
    if r.queued[frame]:
        dequeue(r, node, frame)
    if is_full:
        r.counts[NR_FULL] += 1
    else:
        enqueue(r, node, frame)
        r.changed_tick[frame] = tick
    return QUEUED


@state_kernel
def give_back(r: Reservation, b: Buddy, pfn: int, tick: int) -> int:
    """Free a page of a reservation; return NOTHING, QUEUED, or RETURNED: it was the last, and the frame is free."""
    frame, i = pfn >> PMD_ORDER, pfn & (PMD_PAGES - 1)
    node = zone_of(b, pfn)
    was_full = r.nr_used[frame] == PMD_PAGES
    r.used[frame, i >> 3] = int(r.used[frame, i >> 3]) & ~(1 << (i & 7))
    r.nr_used[frame] -= 1
    if r.nr_used[frame] == 0:
        if r.queued[frame]:
            dequeue(r, node, frame)
        forget(r, frame)
        free_block(b, node, frame << PMD_ORDER, PMD_ORDER, UNZEROED)
        r.counts[NR_RETURNED] += 1
        return RETURNED
    if not was_full and r.changed_tick[frame] == tick:
        return NOTHING
    if r.queued[frame]:
        dequeue(r, node, frame)
    enqueue(r, node, frame)
    r.changed_tick[frame] = tick
    return QUEUED


@inlined
def forget(r: Reservation, frame: int) -> None:
    """The frame is no reservation any more."""
    region = r.region_of[frame]
    if r.of_region[region] == frame:
        r.of_region[region] = NO_FRAME
    r.region_of[frame] = NO_REGION


@state_kernel
def break_oldest(r: Reservation, b: Buddy, node: int) -> bool:
    """Break the reservation of a node whose population changed the longest ago; false if there is none."""
    frame = int(r.head[node])
    if frame == NO_FRAME:
        return False
    dequeue(r, node, frame)
    forget(r, frame)
    for i in range(PMD_PAGES):
        if not is_used(r, frame, i):
            free_block(b, node, (frame << PMD_ORDER) + i, 0, UNZEROED)
    for i in range(PMD_PAGES // 8):
        r.used[frame, i] = 0
    r.nr_used[frame] = 0
    r.counts[NR_BROKEN] += 1
    return True


@inlined
def is_reserved(r: Reservation, pfn: int) -> bool:
    """Whether a page belongs to a reservation."""
    return bool(r.on and r.region_of[pfn >> PMD_ORDER] != NO_REGION)


def nr_free_pages(r: Reservation) -> int:
    """Pages of reservations that nobody has taken."""
    return int(np.count_nonzero(r.region_of != NO_REGION)) * PMD_PAGES - int(r.nr_used.sum())


def check(r: Reservation, b: Buddy) -> list[str]:
    """Which invariants do not hold, in words. For tests: it walks everything."""
    wrong = []
    bits = np.unpackbits(r.used, axis=1).sum(axis=1)
    is_one = r.region_of != NO_REGION
    if not np.array_equal(bits, r.nr_used) or not np.array_equal(r.nr_used > 0, is_one):
        wrong.append("R1: counts of taken pages and their bits differ")
    for region in np.flatnonzero(r.of_region != NO_FRAME):
        if r.region_of[r.of_region[region]] != region:
            wrong.append(f"R2: frame {r.of_region[region]} is not of region {region}")
    found: list[int] = []
    for node in range(len(r.head)):
        frame, before = int(r.head[node]), NO_FRAME
        while frame != NO_FRAME and len(found) <= len(r.next):
            found.append(frame)
            if r.prev[frame] != before or zone_of(b, frame << PMD_ORDER) != node:
                wrong.append(f"R3: frame {frame} is out of place in the queue of node {node}")
            before, frame = frame, int(r.next[frame])
    partly = np.flatnonzero(is_one & (r.nr_used < PMD_PAGES)).tolist()
    if sorted(found) != partly or np.flatnonzero(r.queued).tolist() != partly:
        wrong.append(f"R3: frames {sorted(found)} are queued, {partly} partly populated")
    return wrong
