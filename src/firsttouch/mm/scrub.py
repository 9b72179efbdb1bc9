"""The scrubber: which free block to zero next, and when to begin and end. One daemon for each node.

Time is not here: the event loop lets an idle CPU ask for the `next_block`, charges the zeroing, and reports it `done`.
What differs between the versions of scrubd is in ScrubRules, a tuple of numbers:

  by order (V2 to V6)    A free whose unzeroed blocks merge to order `start` wakes the daemon. It goes through the zones
                         of its node again and again, in each one block at most, of the highest order that has one,
                         down to `stop`; a pass that found nothing is the last.
  by fraction (V8)       After any free to the buddy that leaves fewer than start / 1024 of the zone's free pages zeroed
                         the daemon wakes. It goes through its zones once: in each, from order 0 up, while the
                         zeroed blocks of the order are fewer than stop / 1024 of the unzeroed ones.
  load                   The 1-minute average from which on the daemon does not run. V2 has no such test, V3 to V6 look
                         when they would wake, V8 at the start of its pass: it looks again after 30 s.
  from, until            A daily window. Outside it nothing wakes the daemon, and a pass ends at its next block.
  pages_per_s            From the start of a block of n pages on it waits n / pages_per_s before the next.
  just_freed             Idle CPUs zero the single pages that they freed last, see hotcold.py.

A wake-up while the daemon is awake is lost. The block it takes is the one freed last, and it goes back to the head of
the zeroed list, where it may merge.

Invariants:
  S1  a block in flight is on no list, and free_pages counts it
  S2  a block given back is zeroed
  S3  nr_wakeups counts sleeping daemons that woke, not calls
  S4  by order: the block is of the highest order from `stop` up that its zone has, the one freed last

Follows wakeup_kscrubd(), kscrubd(), scrub_node() and zero_one() of the prezeroing patches V2, V3, V4, V6 and V8
(2004-2005); where it does not: docs/deviations.md, "scrub".
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firsttouch._jit import inlined, state_kernel
from firsttouch.errors import FirsttouchError
from firsttouch.mm.buddy import NO_PFN, UNZEROED, ZEROED, Buddy, put_back, take_head
from firsttouch.mm.load import FSHIFT

NO_SCRUB, BY_ORDER, BY_FRACTION = range(3)
NO_LOAD_TEST, LOAD_AT_WAKE_UP, LOAD_AT_PASS = range(3)
FRACTION_SHIFT = 10  # fractions are of 1024
LOAD_RETRY_NS = 30_000_000_000
DAY_NS = 86_400_000_000_000
NEVER_NS = int(np.iinfo(np.int64).max)


class ScrubRules(NamedTuple):
    """What a scrubber goes by."""

    kind: int  # NO_SCRUB, BY_ORDER, BY_FRACTION
    start: int  # order, or fraction
    stop: int  # order, or fraction
    load: int  # threads
    load_test: int  # NO_LOAD_TEST, LOAD_AT_WAKE_UP, LOAD_AT_PASS
    from_ns: int  # of the day, whose first moment is time 0 of the simulation
    until_ns: int  # of the day; the same as from_ns: all day
    just_freed: bool
    pages_per_s: int  # it zeroes no more than this; 0: as fast as it can


class Defaults(NamedTuple):
    """A version's rules as it was posted."""

    kind: int
    start: int | None  # None: the number of orders, which no block reaches, so that it is off
    stop: int
    load: int
    load_test: int


SCRUBBERS = {
    "none": Defaults(NO_SCRUB, 0, 0, 0, NO_LOAD_TEST),
    "scrubd": Defaults(BY_ORDER, 4, 0, 0, NO_LOAD_TEST),
    "scrubd-v2": Defaults(BY_ORDER, None, 2, 0, NO_LOAD_TEST),
    "scrubd-v3": Defaults(BY_ORDER, 7, 2, 999, LOAD_AT_WAKE_UP),
    "scrubd-v4": Defaults(BY_ORDER, 5, 2, 999, LOAD_AT_WAKE_UP),
    "scrubd-v6": Defaults(BY_ORDER, 6, 4, 999, LOAD_AT_WAKE_UP),
    "scrubd-v8": Defaults(BY_FRACTION, 100, 300, 1, LOAD_AT_PASS),
}


def scrub_rules(
    scrub: str,
    *,
    start: int | None = None,
    stop: int | None = None,
    load: int | None = None,
    from_s: int = 0,
    until_s: int = 0,
    just_freed: bool = False,
    pages_per_s: int = 0,
    max_order: int = 10,
) -> ScrubRules:
    """The rules of one of SCRUBBERS, with what is not None in place of its defaults.

    Parameters
    ----------
    start, stop
        Orders, or for scrubd-v8 fractions of 1024. A start above `max_order` turns the daemon off.
    load
        1-minute load average, in whole threads, from which on the daemon does not run; 0 turns it off.
    from_s, until_s
        Daily window in seconds after midnight, over midnight if `until_s` is the smaller; equal: all day.
    just_freed
        Whether idle CPUs zero the pages that they freed last.
    pages_per_s
        After a block the daemon waits as long as so slow a zeroing would take; 0: it does not.
    max_order
        The highest order of the zones.

    Raises FirsttouchError naming the value for an unknown scrubber, what it does not have, and values out of range.
    """
    if scrub not in SCRUBBERS:
        raise FirsttouchError(f"there is no scrubber {scrub!r}", f"there are {', '.join(SCRUBBERS)}")
    own = SCRUBBERS[scrub]

    def bad(what: str, value: object, why: str) -> FirsttouchError:
        return FirsttouchError(f"{what} of {scrub} is {value}: {why}", "the defaults are in docs/model/scrub.md")

    given = {"start": start, "stop": stop, "load": load}
    for what, value in given.items():
        if value is not None and own.kind == NO_SCRUB:
            raise bad(what, value, "there is no scrubber to steer")
        if value is not None and value < 0:
            raise bad(what, value, "it must be 0 or more")
    if load is not None and own.load_test == NO_LOAD_TEST:
        raise bad("load", load, "this one does not look at the load")
    if start is None:
        start = max_order + 1 if own.start is None else own.start
    stop = own.stop if stop is None else stop
    if own.kind == BY_FRACTION and max(start, stop) > 1 << FRACTION_SHIFT:
        raise bad("start or stop", (start, stop), "they are fractions of 1024")
    if own.kind == BY_ORDER and stop > max_order:
        raise bad("stop", stop, f"the highest order is {max_order}")
    if own.kind == BY_ORDER and start < stop:
        raise bad("start", start, f"the daemon would wake for blocks below its stop order {stop}")
    for what, seconds in (("from_s", from_s), ("until_s", until_s)):
        if not 0 <= seconds <= DAY_NS // 10**9:
            raise bad(what, seconds, "a day has 86400 seconds")
    return ScrubRules(
        kind=own.kind,
        start=start,
        stop=stop,
        load=own.load if load is None else load,
        load_test=own.load_test,
        from_ns=from_s * 10**9 % DAY_NS,
        until_ns=until_s * 10**9 % DAY_NS,
        just_freed=just_freed,
        pages_per_s=pages_per_s,
    )


class Scrub(NamedTuple):
    """The daemon of every node. Written by the CPU that frees (awake, nr_wakeups) and the one that scrubs."""

    awake: NDArray[np.uint8]  # [node] 1 from a wake-up until its pass is over
    busy: NDArray[np.uint8]  # [node] 1 while a CPU runs it or a block is in flight
    next_zone: NDArray[np.int64]  # [node] of its pass: the zone it comes to next, counted from the node's first,
    next_order: NDArray[np.int64]  # [node] the order it comes to next (by fraction),
    pass_blocks: NDArray[np.int64]  # [node] and the blocks zeroed so far
    wait_ns: NDArray[np.int64]  # [node] it does not go on before this time
    nr_wakeups: NDArray[np.int64]  # [node] times it woke
    nr_blocks: NDArray[np.int64]  # [node] blocks zeroed
    zeroed_bytes: NDArray[np.int64]  # [node] bytes zeroed
    zones_per_node: int


def make_scrub(nr_zones: int, zones_per_node: int = 1) -> Scrub:
    """All daemons asleep, as they are until the first free that is large enough."""
    nr_nodes = nr_zones // zones_per_node
    return Scrub(
        awake=np.zeros(nr_nodes, np.uint8),
        busy=np.zeros(nr_nodes, np.uint8),
        next_zone=np.zeros(nr_nodes, np.int64),
        next_order=np.zeros(nr_nodes, np.int64),
        pass_blocks=np.zeros(nr_nodes, np.int64),
        wait_ns=np.zeros(nr_nodes, np.int64),
        nr_wakeups=np.zeros(nr_nodes, np.int64),
        nr_blocks=np.zeros(nr_nodes, np.int64),
        zeroed_bytes=np.zeros(nr_nodes, np.int64),
        zones_per_node=zones_per_node,
    )


@inlined
def in_window(r: ScrubRules, now_ns: int) -> bool:
    """Whether the daily window is open."""
    of_day = now_ns % DAY_NS
    if r.from_ns <= r.until_ns:
        return r.from_ns == r.until_ns or r.from_ns <= of_day < r.until_ns
    return of_day >= r.from_ns or of_day < r.until_ns


@state_kernel
def next_opening_ns(r: ScrubRules, now_ns: int) -> int:
    """When the window opens next, after `now_ns`: somebody then writes `scrub_start`. NEVER_NS if it is always open."""
    if r.from_ns == r.until_ns:
        return NEVER_NS
    today = now_ns - now_ns % DAY_NS + r.from_ns
    return today if today > now_ns else today + DAY_NS


@inlined
def load_forbids(r: ScrubRules, test: int, avenrun: int) -> bool:
    """Whether the rules look at the load in this place, and it has reached the limit."""
    return bool(r.load_test == test and avenrun >= r.load << FSHIFT)


@inlined
def is_short(r: ScrubRules, b: Buddy, zone: int) -> bool:
    """By fraction: whether too few of the zone's free pages are zeroed."""
    return bool(b.zero_pages[zone] < (b.free_pages[zone] * r.start) >> FRACTION_SHIFT)


@state_kernel
def may_wake(r: ScrubRules, b: Buddy, zone: int, merged_order: int, avenrun: int, now_ns: int) -> bool:
    """Whether a free to `zone` whose unzeroed blocks merged to `merged_order` (-1: none did) calls for the daemon."""
    if r.kind == NO_SCRUB or merged_order < 0 or not in_window(r, now_ns):
        return False
    if load_forbids(r, LOAD_AT_WAKE_UP, avenrun):
        return False
    return is_short(r, b, zone) if r.kind == BY_FRACTION else merged_order >= r.start


@state_kernel
def wake_after_free(s: Scrub, r: ScrubRules, b: Buddy, zone: int, merged_order: int, avenrun: int, now_ns: int) -> bool:
    """What a free to the buddy does beside freeing: wake the node's daemon for a new pass; whether it did."""
    node = zone // s.zones_per_node
    if s.awake[node] or not may_wake(r, b, zone, merged_order, avenrun, now_ns):
        return False
    s.awake[node] = 1
    s.nr_wakeups[node] += 1
    s.next_zone[node] = s.next_order[node] = s.pass_blocks[node] = s.wait_ns[node] = 0
    return True


@state_kernel
def write_start(s: Scrub, r: ScrubRules, b: Buddy, avenrun: int, now_ns: int) -> int:
    """What writing `scrub_start` does: wake every daemon, as a free of the highest order would; how many woke."""
    woken = 0
    top = b.first.shape[2] - 1
    for node in range(len(s.awake)):
        for zone in range(node * s.zones_per_node, (node + 1) * s.zones_per_node):
            woken += wake_after_free(s, r, b, zone, top, avenrun, now_ns)
    return woken


@inlined
def is_ready(s: Scrub, node: int, now_ns: int) -> bool:
    """Whether a daemon would run if it were given a CPU."""
    return bool(s.awake[node] and not s.busy[node] and s.wait_ns[node] <= now_ns)


@state_kernel
def next_block(s: Scrub, r: ScrubRules, b: Buddy, node: int, avenrun: int, now_ns: int) -> tuple[int, int, int]:
    """The next block to zero, off its list: (pfn, order, zone). NO_PFN: the daemon sleeps, or waits until `wait_ns`."""
    s.busy[node] = 0
    if r.pages_per_s and now_ns < s.wait_ns[node]:
        return NO_PFN, 0, 0
    if in_window(r, now_ns):
        begins = s.next_zone[node] == 0 and s.next_order[node] == 0 and s.pass_blocks[node] == 0
        if begins and load_forbids(r, LOAD_AT_PASS, avenrun):
            s.wait_ns[node] = now_ns + LOAD_RETRY_NS
            return NO_PFN, 0, 0
        first = node * s.zones_per_node
        pfn, k, zone = _next_by_fraction(s, r, b, node, first) if r.kind == BY_FRACTION else _next(s, r, b, node, first)
        if pfn != NO_PFN:
            s.busy[node] = 1
            s.pass_blocks[node] += 1
            if r.pages_per_s:
                s.wait_ns[node] = now_ns + (10**9 << k) // r.pages_per_s
            return pfn, k, zone
    s.awake[node] = 0
    return NO_PFN, 0, 0


@state_kernel
def _next(s: Scrub, r: ScrubRules, b: Buddy, node: int, first: int) -> tuple[int, int, int]:
    """By order: one block of the next zone that has any, pass after pass."""
    while True:
        while s.next_zone[node] < s.zones_per_node:
            zone = first + int(s.next_zone[node])
            s.next_zone[node] += 1
            pfn, k = take(b, zone, r.stop)
            if pfn != NO_PFN:
                return pfn, k, zone
        if s.pass_blocks[node] == 0:
            return NO_PFN, 0, 0
        s.next_zone[node] = s.pass_blocks[node] = 0


@state_kernel
def _next_by_fraction(s: Scrub, r: ScrubRules, b: Buddy, node: int, first: int) -> tuple[int, int, int]:
    """By fraction: the next block of the lowest order that is short of zeroed ones, in one pass."""
    while s.next_zone[node] < s.zones_per_node:
        zone = first + int(s.next_zone[node])
        while s.next_order[node] < b.first.shape[2]:
            k = int(s.next_order[node])
            if b.nr_free[zone, ZEROED, k] < (b.nr_free[zone, UNZEROED, k] * r.stop) >> FRACTION_SHIFT:
                return take_head(b, zone, k, UNZEROED), k, zone
            s.next_order[node] += 1
        s.next_zone[node] += 1
        s.next_order[node] = 0
    return NO_PFN, 0, 0


@state_kernel
def done(s: Scrub, b: Buddy, zone: int, pfn: int, k: int, page_bytes: int) -> int:
    """Return a block that `next_block` took, zeroed, and count it; the order it merged to."""
    node = zone // s.zones_per_node
    s.busy[node] = 0
    count_scrubbed(s, node, page_bytes << k)
    return give(b, zone, pfn, k)


@state_kernel
def count_scrubbed(s: Scrub, node: int, nr_bytes: int) -> None:
    """Account for one block of `nr_bytes` zeroed."""
    s.nr_blocks[node] += 1
    s.zeroed_bytes[node] += nr_bytes


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
