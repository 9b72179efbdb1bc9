"""A spawn-and-exit storm: many short processes, several at a time, as a configure script or a shell pipeline has them.

    shell     keeps `at_once` workers; each runs its share of the processes, one after another, and waits for each
    process   begins as a copy of its worker, writes to `copied_pages` of what it shares with it (COW copies), execs,
              reads `file_pages` of program and libraries (page cache), writes to `pages` of fresh memory, computes
              `compute_ns`, and exits

Pages are freed as fast as they are asked for: per-CPU lists, the zone lock and exit are what it is about, and a
prezeroed page is soon one that was zeroed in the background a moment ago, or none is left.
"""

from __future__ import annotations

from firsttouch.units import BASE_PAGE_BYTES
from firsttouch.workload import Workload
from firsttouch.workload.generators.builder import Builder, at_least


def storm(
    processes: int = 1000,
    *,
    at_once: int = 4,
    pages: int = 150,
    file_pages: int = 120,
    copied_pages: int = 20,
    worker_pages: int = 64,
    compute_ns: int = 300_000,
    page_bytes: int = BASE_PAGE_BYTES,
) -> Workload:
    """Short processes.

    Parameters
    ----------
    processes, at_once
        How many in all, and how many workers start them.
    pages, file_pages
        Each process writes to so many fresh pages, and reads so many pages of files.
    copied_pages, worker_pages
        A process writes to the first so many of its worker's pages before it execs; a worker has touched so many.
    compute_ns
        CPU time of each process besides its faults.
    page_bytes
        Of the machine it will run on.

    Raises FirsttouchError for a parameter out of range.
    """
    for name, value, least in (
        ("processes", processes, 1), ("at_once", at_once, 1), ("pages", pages, 0), ("file_pages", file_pages, 0),
        ("copied_pages", copied_pages, 0), ("worker_pages", worker_pages, copied_pages), ("compute_ns", compute_ns, 0),
    ):  # fmt: skip
        at_least("storm", name, value, least)
    b = Builder(f"storm of {processes} processes, {at_once} at once", page_bytes)
    shell = b.thread(b.space(0))
    own = b.mapping(0, max(1, worker_pages))
    fresh = b.mapping(0, max(1, pages))
    files = b.mapping(pages, pages + max(1, file_pages), flags=0)
    workers = [b.fork(shell, b.space(worker_pages)) for _ in range(min(at_once, processes))]
    for i, worker in enumerate(workers):
        copy, after = b.space(worker_pages), b.space(pages + file_pages)
        if worker_pages:
            b.touch(worker, own, 0, worker_pages)
        for _ in range(i, processes, len(workers)):
            child = b.fork(worker, copy)
            if copied_pages:
                b.touch(child, own, 0, copied_pages)
            b.exec(child, after)
            if file_pages:
                b.touch(child, files, pages, pages + file_pages, kind=0)
            if pages:
                b.touch(child, fresh, 0, pages)
            b.exit(child, think_ns=compute_ns)
            b.join(worker, child)
        b.join(shell, worker)
    return b.workload()
