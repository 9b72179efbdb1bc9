"""What the pool's machine code and Python share: the arrays of the arena, the words of its settings, and its counts.

Nothing here loads a compiler: a program that uses the pool loads the machine code that an earlier one compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firsttouch.mm.freelists import Buddy, empty_buddy

PAGE_SHIFT = 16  # 64 KiB: what a block is rounded up to
PAGE_BYTES = 1 << PAGE_SHIFT
MAX_ORDER = 30
NR_RECENT = 8

# Where a block came from: UNZEROED, ZEROED, or
UNFAULTED, JOINED, HOT = 2, 3, 4

# Columns of `counts`
LIVE_PAGES, PEAK_PAGES = 0, 1
NR_MALLOCS, NR_CALLOCS, NR_FREES, NR_DEFERRED = 2, 3, 4, 5
NR_ZERO_HITS, NR_ZERO_HOT, NR_ZERO_MISSES, NR_ZERO_UNFAULTED = 6, 7, 8, 9
AHEAD_BYTES = 10  # zeroed memory handed out that had been zeroed ahead
ZEROED_BYTES = 11  # zeroed in the foreground, at allocation
REUSED_BYTES = 12  # handed out faulted, in requests so large that the C library would have mapped fresh memory
POPULATED_BYTES, TRIMMED_BYTES = 13, 14
NR_WAKEUPS, SCRUBBED_BYTES = 15, 16  # of the scrubber
NR_COUNTS = 24

# Words of the arena: settings. The first eight, a cache line, are all that a request below the threshold looks at.
BASE, END = 0, 1  # addresses of the arena
THRESHOLD = 2  # requests below it are not for the arena; NOTHING: none is
NEXT_CTX, NEXT_MALLOC, NEXT_CALLOC, NEXT_REALLOC, NEXT_FREE = 3, 4, 5, 6, 7
HOT_BYTES, HOT_NS = 8, 9  # zeros of at most so many bytes come from memory freed at most so long ago
FRESH_BYTES = 10  # the C library maps fresh memory for every request from here up
START_ORDER, STOP_ORDER = 11, 12  # of the scrubber: wakes at a free of this order; zeroes blocks down to that
SCRUB_MAIN = 13  # the scrubber's thread begins at this address; 0: there is no scrubber
MAX_FLYING_ORDER = 14  # the most that the scrubber holds
AGE_NS = 15  # memory freed more recently than this is not scrubbed
NAP_US, BUSY_PERCENT, PACE_US = 16, 17, 18  # the process is idle if it used less of the CPU in a nap; else a pace, or 0
LOAD = 19  # no scrubbing at this load average or above
WINDOW_START, WINDOW_END, UTC_OFFSET_S = 20, 21, 22  # minutes of the day; equal for all day
DECAY_NS = 23  # what was not used for so long goes back to the kernel; 0: nothing does
PRESSURE_PERCENT = 24  # of time lost for want of memory; from here up all free memory goes back. 0: no matter
LARGE_MALLOC, LARGE_CALLOC, LARGE_FREE, TRIM = 25, 26, 27, 28  # addresses of the functions of these names
# What changes
KEEP_PAGES = 32  # free faulted pages to have ready, and not to give back
FORKING = 33  # a thread is about to fork and holds every lock
NR_FALLBACKS = 34  # requests from the threshold up that the arena had no room for
WAKE = 35  # counts wake-ups; the scrubber sleeps on it
THREAD = 36  # of the scrubber: NO_THREAD, STARTING, RUNNING
STOP = 37
NR_NAPS, NR_BUSY_NAPS = 38, 39  # the scrubber's; the second: in which the process was busy
FLYING_PFN, FLYING_ORDER, FLYING_FAULTED = 40, 41, 42  # what the scrubber has in flight; the first NO_PFN: nothing
SCRATCH = 64  # of the scrubber, to the end
NR_WORDS = 128
# Words of zone i begin at NR_WORDS + 8 * i, a cache line each
LOCK, DEFERRED = 0, 1  # DEFERRED: page + 1 of the first deferred free, 0 for none; `next` of the block links them

NO_THREAD, STARTING, RUNNING = 0, 1, 2
NOTHING = 2**63 - 1

HUGE_ORDER = 5  # 2 MiB: smaller pieces are not given back, which would break superpages up


class Arena(NamedTuple):
    """All regions. Guarded by the lock of the zone, except what says otherwise."""

    faulted: Buddy  # free memory that is mapped
    unfaulted: Buddy  # free memory that is not
    awake: NDArray[np.uint8]  # [zone] the scrubber has been woken for this zone and has not found it done
    nr_pages: NDArray[np.int32]  # [pfn] of the first page of a live block: its pages; 0 elsewhere
    freed_ns: NDArray[np.int64]  # [pfn] of the head of a free unzeroed block: when part of it was freed last
    recent: NDArray[np.int64]  # [zone, NR_RECENT, 3] what was freed last: first page, pages, when. May be free no more
    counts: NDArray[np.int64]  # [zone, NR_COUNTS]
    word: NDArray[np.int64]  # [NR_WORDS + 8 * zones] settings, locks and lists of handler.py; read without a lock
    base_address: int  # (never) of page 0
    words_address: int  # (never) of word[0], for atomic steps


def make_arena(zone_pages: Sequence[int], nr_words: int = 0, base_address: int = 0) -> Arena:
    """An arena in which nothing is free before `free_all`."""
    zone_start = np.cumsum([0, *zone_pages], dtype=np.int64)
    nr_zones, nr_pages = len(zone_pages), int(zone_start[-1])
    max_order = min(MAX_ORDER, max(zone_pages).bit_length() - 1)
    word = np.zeros(nr_words + 8, np.int64)
    word = word[-word.ctypes.data % 64 // 8 :][:nr_words]  # locks, and the settings read most, on lines of their own
    return Arena(
        faulted=empty_buddy(zone_start, max_order),
        unfaulted=empty_buddy(zone_start, max_order),
        awake=np.zeros(nr_zones, np.uint8),
        nr_pages=np.zeros(nr_pages, np.int32),
        freed_ns=np.zeros(nr_pages, np.int64),
        recent=np.zeros((nr_zones, NR_RECENT, 3), np.int64),
        counts=np.zeros((nr_zones, NR_COUNTS), np.int64),
        word=word,
        base_address=base_address,
        words_address=word.ctypes.data,
    )
