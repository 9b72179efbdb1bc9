"""What one simulation came to."""

from __future__ import annotations

import msgspec


class Disturbances(msgspec.Struct, frozen=True):
    """What a policy does to the rest of the machine: the four costs named in the 2004 thread."""

    wakeups: int  # of the scrubber
    sched_latency_ns: int  # that threads waited for a CPU the scrubber held
    bus_bytes: int  # the scrubber's memory traffic
    lines_displaced: int  # cache lines its stores threw out


class Latency(msgspec.Struct, frozen=True):
    """Nanoseconds from trap to return, over all faults; percentiles are upper edges of 1/8-octave bins."""

    p50_ns: int
    p90_ns: int
    p99_ns: int
    max_ns: int


class LockUse(msgspec.Struct, frozen=True):
    """All locks of one class together."""

    acquired: int
    wait_ns: int  # waiting and hand-offs
    max_wait_ns: int
    hold_ns: int
    contended_ns: int | None = None  # the wait of acquisitions that found the lock held; None: not counted apart


class Outcome(msgspec.Struct, frozen=True):
    """Counters and times of one simulation. Times are the model's, summed over threads except `wall_ns`."""

    policy: str
    available: str
    apply: str
    faults: int
    faults_by_kind: dict[str, int]  # zero_fill, zero_page, cow, file, huge, populate pages are not faults
    fault_ns: int  # in the fault path, lock waits included
    user_ns: int
    system_ns: int
    wall_ns: int
    background_ns: int  # CPU time of the scrubber, and of the daemon that promotes
    peak_bytes: int  # most memory mapped at one time
    untouched_bytes: int  # mapped, and never touched until unmapped or the end
    zeroed_hits: int  # allocations that wanted zeros and got a zeroed block
    zeroed_misses: int  # those that had to zero
    lock_wait_ns: dict[str, int]  # by class
    latency: Latency
    zeroed_in_fault_bytes: int
    zeroed_ahead_bytes: int
    copied_bytes: int
    disturbances: Disturbances
    out_of_memory: bool
    supply: list[tuple[int, int]]  # (t_ns, zeroed free bytes) over time, at most some hundred points
    table_pages: int = 0  # page-table pages made, where the policy counts them
    table_pages_cached: int = 0  # those of them that came zeroed from a cache
    mmap_lock_faults: int = 0  # that took the address space's mmap_lock
    lock_bytes: dict[str, int] = {}  # what the locks take at most, by class
    answers_bounded: dict[str, int] = {}  # answers of a user's functions that were out of bounds, by hook
    recovered_bytes: int = 0  # of superpages that were broken up, given back because nothing had touched them
    promotions: int = 0  # regions that became a superpage after their faults
    locks: dict[str, LockUse] = {}  # by class, as lock_wait_ns
