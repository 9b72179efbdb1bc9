"""A history of allocating and freeing, which leaves memory in pieces: days in milliseconds.

    day       runs of short-lived pages fill memory; between them, now and then, comes a page that lives long
    evening   all short-lived pages are freed, in runs, in no order; long-lived pages of `life_days` ago are, too
    night     nothing runs for `night_ns`: daemons have the machine

A block of 2**k pages is free as a whole at night only if none of its pages lives long. The long-lived share of memory
grows day by day, by `long_ratio`, until as many die as are born. If they lay independently of each other, a share of
(1 - long-lived share) ** 2**k of the blocks would be left: half of memory in long blocks is gone when one page in a
thousand lives long. So high orders go first, and with them what zeroes or maps only high orders.

`ageing` is a workload of its own. `aged` puts it before another, which begins after the last night; long-lived pages
stay until that has ended. Counting begins with the other workload (MEASURE).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from firsttouch.errors import FirsttouchError
from firsttouch.units import BASE_PAGE_BYTES
from firsttouch.workload import (
    ANON,
    EXIT,
    JOIN,
    MEASURE,
    NOHUGE,
    SLEEP,
    WAIT,
    WAKE,
    WRITABLE,
    Events,
    Threads,
    Vmas,
    Workload,
)
from firsttouch.workload.generators.builder import Builder, at_least


def ageing(
    nr_pages: int = 16_384,
    *,
    days: int = 3,
    long_ratio: float = 0.005,
    life_days: int = 20,
    run_pages: int = 64,
    night_ns: int = 100_000_000,
    seed: int = 1,
    page_bytes: int = BASE_PAGE_BYTES,
) -> Workload:
    """A history, and its end.

    Parameters
    ----------
    nr_pages
        In use at the end of each day: the part of memory that gets its share of long-lived pages.
    days, life_days
        How many days; how many a long-lived page lives.
    long_ratio
        The share of a day's pages that live long.
    run_pages
        Pages of the longest short-lived run; each size class of twice the pages comes half as often.
    night_ns
        Between two days.
    seed
        Of lengths, places and the order of frees.
    page_bytes
        Of the machine it will run on.

    Raises FirsttouchError for a parameter out of range.
    """
    return _history(nr_pages, days, long_ratio, life_days, run_pages, night_ns, seed, page_bytes).workload()


def aged(
    workload: Workload,
    nr_pages: int = 16_384,
    *,
    days: int = 3,
    long_ratio: float = 0.005,
    life_days: int = 20,
    run_pages: int = 64,
    night_ns: int = 100_000_000,
    seed: int = 1,
) -> Workload:
    """`workload` on memory with a history; parameters as those of `ageing`.

    Threads of `workload` that begin by themselves begin when the history is over, each at its own time after that.
    """
    b = _history(nr_pages, days, long_ratio, life_days, run_pages, night_ns, seed, workload.page_bytes)
    before, events, threads = b.workload(), workload.events, workload.threads
    nr_mms, nr_vmas, nr_threads = len(workload.mm_regions), len(workload.vmas.start), len(threads.first)
    roots = np.flatnonzero(threads.parent < 0)
    # Of each root: wait for the history to end, then until its own time.
    first = np.repeat(threads.first[roots], 2)
    added = _rows([row for t in roots for row in ((WAIT, 0, 0), (SLEEP, int(threads.start_ns[t]), 0))])
    pairs: list[Any] = list(zip(events, added, strict=True))
    joined = Events._make(np.insert(own, first, new) for own, new in pairs)
    shift = 2 * np.searchsorted(np.sort(threads.first[roots]), threads.first, side="left")
    ends = 2 * np.searchsorted(np.sort(threads.first[roots]), threads.end, side="left")
    # The history comes behind, as one more thread in one more address space.
    own = Events._make(column[:-1] for column in before.events)
    own = own._replace(vma=(own.vma + nr_vmas).astype(np.int32))
    woken, waited_for = [(WAKE, 0, int(t)) for t in roots], [(JOIN, 0, int(t)) for t in range(nr_threads)]
    tail = _rows([(MEASURE, 0, 0), *woken, *waited_for, (MEASURE, 0, 1), (EXIT, 0, 0)])
    return replace(
        workload,
        name=f"{workload.name}, after {days} days",
        events=Events._make(np.concatenate([*columns]) for columns in zip(joined, own, tail, strict=True)),
        threads=Threads(
            first=np.append(threads.first + shift, len(joined.op)),
            end=np.append(threads.end + ends, len(joined.op) + len(own.op) + len(tail.op)),
            mm=np.append(threads.mm, nr_mms).astype(np.int32),
            parent=np.append(threads.parent, -1).astype(np.int32),
            start_ns=np.append(np.where(threads.parent < 0, 0, threads.start_ns), 0),
        ),
        vmas=Vmas._make(np.concatenate([*columns]) for columns in zip(workload.vmas, before.vmas, strict=True)),
        mm_regions=np.append(workload.mm_regions, before.mm_regions),
        facts={**workload.facts, "aged_threads": nr_threads},
    )


def _rows(rows: list[tuple[int, int, int]]) -> Events:
    """Events of (op, page, arg) alone."""
    table = np.array(rows, np.int64).reshape(-1, 3)
    nothing = np.zeros(len(table), np.int64)
    return Events(
        op=table[:, 0].astype(np.uint8),
        kind=nothing.astype(np.uint8),
        vma=nothing.astype(np.int32),
        page=table[:, 1].copy(),
        end=nothing,
        arg=table[:, 2].copy(),
        think_ns=nothing,
    )


def _history(
    nr_pages: int, days: int, long_ratio: float, life_days: int, run_pages: int, night_ns: int, seed: int,
    page_bytes: int,
) -> Builder:  # fmt: skip
    """One thread that lives through all days."""
    for name, value, least in (
        ("nr_pages", nr_pages, 1), ("days", days, 0), ("life_days", life_days, 1), ("run_pages", run_pages, 1),
        ("night_ns", night_ns, 0), ("seed", seed, 0),
    ):  # fmt: skip
        at_least("ageing", name, value, least)
    if not 0 <= long_ratio < 1 / life_days:
        raise FirsttouchError(
            f"ageing: long_ratio is {long_ratio}; it must be at least 0 and less than 1 / {life_days} (life_days)",
            "pages that live long would fill memory",
        )
    rng = np.random.default_rng(seed)
    nr_long = round(nr_pages * long_ratio)  # a day
    b = Builder(f"{days} days of ageing, {nr_pages} pages", page_bytes)
    short_at = nr_long * life_days
    thread = b.thread(b.space(short_at + nr_pages))
    # All are small: a superpage would come back whole.
    long_lived = b.mapping(0, max(1, short_at), ANON | WRITABLE | NOHUGE)
    short_lived = b.mapping(short_at, short_at + nr_pages, ANON | WRITABLE | NOHUGE)
    most = run_pages.bit_length() - 1
    for day in range(days):
        born = day % life_days * nr_long  # where those were that die today
        if day >= life_days and nr_long:
            b.unmap(thread, born, born + nr_long)
        nr_short = nr_pages - nr_long * min(day + 1, life_days)
        places = np.sort(rng.choice(nr_short, nr_long, replace=nr_long > nr_short)).tolist()  # short pages before each
        runs, at, nth = [], 0, 0
        while at < nr_short:
            size = min(nr_short - at, run_pages, 1 << min(int(rng.geometric(0.5)) - 1, most))
            b.touch(thread, short_lived, short_at + at, short_at + at + size)
            runs.append((short_at + at, short_at + at + size))
            at += size
            due = nth
            while due < nr_long and places[due] < at:
                due += 1
            if due > nth:
                b.touch(thread, long_lived, born + nth, born + due)
            nth = due
        for i in rng.permutation(len(runs)).tolist():
            b.unmap(thread, *runs[i])
        b.sleep(thread, night_ns)
    return b
