"""What a NumPy program does to memory when a pool beneath NumPy keeps it: a recorded workload, made another.

The pool (`firsttouch.pool`) is no part of a kernel. It changes what the program asks for: large arrays get memory that
stays mapped when they die, and that was zeroed before it is asked for again. So under a policy that has it, in each
address space that has NumPy in it,

- a range of ordinary memory of the pool's threshold or more that the program gives back stays mapped, whether it was a
  mapping of its own or the end of the heap;
- touches of it fault only where no touch before mapped their page;
- it is advised to have superpages, and ends where superpages do;
- to start the pool takes time and pages, when NumPy first maps memory; what is forked after that has it.

Addresses stay as the C library chose them. Everything else is as it was recorded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from firsttouch.units import PMD_PAGES
from firsttouch.workload import (
    ADVISED,
    ANON,
    EXEC,
    FORK,
    HEAP,
    KEPT,
    MAP,
    NO_CACHE_PAGE,
    NOHUGE,
    NORESERVE,
    PROTECTION,
    SHARED,
    SHMEM,
    STACK,
    TOUCH,
    UNMAP,
    WRITABLE,
    WRITE,
    Events,
    Vmas,
    Workload,
)

if TYPE_CHECKING:
    from firsttouch.policy import Userspace

_ORDINARY = ANON | WRITABLE | SHARED | SHMEM | STACK | NORESERVE  # ... and only the first two of them set


def pooled(workload: Workload, userspace: Userspace) -> Workload:
    """The workload with the pool; as it is where the policy has none, or no part of the program has NumPy."""
    if not userspace.pool_threshold_bytes or not workload.numpy_mms:
        return workload
    events, vmas = workload.events, workload.vmas
    least_pages = -(-userspace.pool_threshold_bytes // workload.page_bytes)
    mm = _address_spaces(workload)
    flags = vmas.flags[events.vma]
    ordinary = flags & _ORDINARY == ANON | WRITABLE
    kind, vma, arg = events.kind.copy(), events.vma.copy(), events.arg.copy()
    starts, ends, rows = list(vmas.start), list(vmas.end), list(vmas.flags)
    for number in workload.numpy_mms:
        mine = mm == number
        heap = np.unique(events.vma[mine & (events.op == TOUCH) & ordinary & (flags & HEAP != 0)])
        made = _made(
            workload, np.flatnonzero(mine & ((events.op == MAP) & ordinary | (events.op == UNMAP))), least_pages
        )
        within = _merged(np.append(made[:, 0], vmas.start[heap]), np.append(made[:, 1], vmas.end[heap]))
        unmaps = mine & (events.op == UNMAP) & (events.end - events.page >= least_pages)
        unmaps[unmaps] = _holds(within, events.page[unmaps], events.end[unmaps])
        arg[unmaps] = 1
        first, end = _merged(np.append(made[:, 0], events.page[unmaps]), np.append(made[:, 1], events.end[unmaps]))
        touches = np.flatnonzero(mine & (events.op == TOUCH) & ordinary)
        touches = touches[_holds((first, end), events.page[touches], events.end[touches])]
        vma[touches] = len(rows) + np.searchsorted(first, events.page[touches], side="right") - 1
        kind[touches] = kind[touches] & ~np.uint8(PROTECTION) | KEPT  # what stays mapped is writable
        starts += list(first // PMD_PAGES * PMD_PAGES)
        ends += list(-(-end // PMD_PAGES) * PMD_PAGES)
        rows += [ANON | WRITABLE | ADVISED] * len(first)
    caches = np.concatenate([vmas.cache_page, np.full(len(rows) - len(vmas.flags), NO_CACHE_PAGE, np.int64)])
    table = Vmas(np.array(starts, np.int64), np.array(ends, np.int64), np.array(rows, np.int32), caches)
    done = replace(workload, events=events._replace(kind=kind, vma=vma, arg=arg), vmas=table)
    return _started(done, mm, userspace) if userspace.pool_start_pages else done


def _started(workload: Workload, mm: NDArray[np.int64], userspace: Userspace) -> Workload:
    """The workload in which each NumPy program starts its pool; `mm` is the address space of each event."""
    events, threads, vmas = workload.events, workload.threads, workload.vmas
    where = _starts(workload, mm)
    if not len(where):
        return workload
    pages = userspace.pool_start_pages
    regions = np.array(workload.mm_regions, np.int64)
    first = int(regions.max()) * PMD_PAGES
    heirs = _heirs(workload, mm, set(mm[where].tolist()))
    regions[heirs] = first // PMD_PAGES + -(-pages // PMD_PAGES)  # above what anybody has
    new = {
        "op": TOUCH, "kind": WRITE, "vma": len(vmas.flags), "page": first, "end": first + pages, "arg": 0,
        "think_ns": userspace.pool_start_ns // pages,
    }  # fmt: skip
    # of the same types as before: other ones would have the model compiled once more
    table = Vmas(
        np.append(vmas.start, np.int64(first)), np.append(vmas.end, np.int64(first + pages)),
        np.append(vmas.flags, np.int32(ANON | WRITABLE | NOHUGE)), np.append(vmas.cache_page, np.int64(NO_CACHE_PAGE)),
    )  # fmt: skip
    return replace(
        workload,
        events=Events(**{name: np.insert(getattr(events, name), where, value) for name, value in new.items()}),
        threads=threads._replace(
            first=threads.first + np.searchsorted(where, threads.first),
            end=threads.end + np.searchsorted(where, threads.end),
        ),
        vmas=table,
        mm_regions=regions.astype(workload.mm_regions.dtype),
        user_ns=workload.user_ns + userspace.pool_start_ns * len(where),
    )


def _starts(workload: Workload, mm: NDArray[np.int64]) -> NDArray[np.int64]:
    """The events, in order, before which an address space starts a pool: none where a fork brought one along."""
    events, threads = workload.events, workload.threads
    asks = np.flatnonzero((events.op == MAP) & (events.arg != 0))
    first = {number: int(at) for number in workload.numpy_mms for at in asks[mm[asks] == number][:1]}
    forks = np.flatnonzero(events.op == FORK)
    ends = threads.end[np.searchsorted(threads.end, forks, side="right")]  # of the threads that fork
    brought = set()
    for at, end in zip(forks.tolist(), ends.tolist(), strict=True):
        start, child = first.get(int(mm[at])), int(threads.mm[events.arg[at]])
        # only the thread that starts the pool can be seen to have forked before
        if start is not None and child != mm[at] and not at < start < end:
            brought.add(child)
    return np.array(sorted(at for number, at in first.items() if number not in brought), np.int64)


def _heirs(workload: Workload, mm: NDArray[np.int64], known: set[int]) -> list[int]:
    """`known` address spaces and those that forks make of them: a child numbers its regions as its parent does."""
    for at in np.flatnonzero(workload.events.op == FORK):  # a parent's events come before its child's
        if int(mm[at]) in known:
            known.add(int(workload.threads.mm[workload.events.arg[at]]))
    return sorted(known)


def _address_spaces(workload: Workload) -> NDArray[np.int64]:
    """[event] the address space that its thread is in."""
    events, threads = workload.events, workload.threads
    mm = np.zeros(len(events.op), np.int64)
    for first, end, begins_in in zip(threads.first, threads.end, threads.mm, strict=True):
        mm[first:end] = begins_in
        for at in first + np.flatnonzero(events.op[first:end] == EXEC):
            mm[at + 1 : end] = events.arg[at]
    return mm


def _made(workload: Workload, order: NDArray[np.int64], least_pages: int) -> NDArray[np.int64]:
    """[n, 2] the ranges of `least_pages` or more that NumPy mapped, from the MAP and UNMAP events of one address space.

    A kernel joins a new mapping with its neighbours and tells of the whole; here only what is new of it counts.
    """
    events, flags = workload.events, workload.vmas.flags
    mapped: list[tuple[int, int]] = []
    made: list[tuple[int, int]] = []
    for e in order:
        start, end = int(events.page[e]), int(events.end[e])
        apart = [(a, b) for a, b in mapped if b <= start or end <= a]
        if events.op[e] == MAP:
            new_start, new_end = start, end
            for a, b in sorted(mapped):
                new_start = b if a <= new_start < b else new_start
            for a, b in sorted(mapped, reverse=True):
                new_end = a if a < new_end <= b else new_end
            if events.arg[e] and not flags[events.vma[e]] & HEAP and new_end - new_start >= least_pages:
                made.append((new_start, new_end))
            mapped = [*apart, (start, end)]
        else:
            cut = [each for a, b in mapped if b > start and end > a for each in ((a, start), (end, b))]
            mapped = apart + [(a, b) for a, b in cut if a < b]
    return np.array(made, np.int64).reshape(-1, 2)


def _merged(start: NDArray[np.int64], end: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The union of ranges, as ranges that neither overlap nor touch, in order."""
    order = np.argsort(start, kind="stable")
    start, upto = start[order], np.maximum.accumulate(end[order])
    fresh = np.ones(len(start), bool)
    fresh[1:] = start[1:] > upto[:-1]
    last = np.flatnonzero(np.append(fresh[1:], True))[: int(fresh.sum())]
    return start[fresh], upto[last]


def _holds(
    ranges: tuple[NDArray[np.int64], NDArray[np.int64]], start: NDArray[np.int64], end: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which of [start, end) are within one of the ranges."""
    first, upto = ranges
    at = np.searchsorted(first, start, side="right") - 1
    inside = at >= 0
    inside[inside] = end[inside] <= upto[at[inside]]
    return inside
