"""A program that touches few pages of much memory: hash tables, sparse matrices, large stacks, arenas used in part.

    thread    writes once to each of `touched_ratio` of the pages of its part of one mapping, in an order that a fixed
              sequence gives, in runs of `run_pages` neighbours

What maps more than was touched (superpages, populating, fault-ahead) costs such a program memory and time; runs of some
pages are where it can still gain.
"""

from __future__ import annotations

import numpy as np

from firsttouch.errors import FirsttouchError
from firsttouch.units import BASE_PAGE_BYTES
from firsttouch.workload import Workload
from firsttouch.workload.generators.builder import Builder, at_least


def sparse(
    nr_pages: int = 262_144,
    *,
    touched_ratio: float = 0.05,
    run_pages: int = 1,
    threads: int = 1,
    in_order: bool = False,
    think_ns: int = 0,
    seed: int = 1,
    page_bytes: int = BASE_PAGE_BYTES,
) -> Workload:
    """Sparse touches.

    Parameters
    ----------
    nr_pages, threads
        Of the mapping, and how many threads have a part of it.
    touched_ratio, run_pages
        The share of pages to touch, and how many neighbours at a time; runs are aligned to their length.
    in_order
        Runs in address order instead of scattered.
    think_ns
        CPU time before each touch.
    seed
        Of the choice and its order.
    page_bytes
        Of the machine it will run on.

    Raises FirsttouchError for a parameter out of range.
    """
    for name, value, least in (
        ("threads", threads, 1), ("run_pages", run_pages, 1), ("nr_pages", nr_pages, threads * run_pages),
        ("think_ns", think_ns, 0), ("seed", seed, 0),
    ):  # fmt: skip
        at_least("sparse", name, value, least)
    if not 0 < touched_ratio <= 1:
        raise FirsttouchError(
            f"sparse: touched_ratio is {touched_ratio}; it must be above 0 and at most 1", "give 0.05"
        )
    rng = np.random.default_rng(seed)
    part = nr_pages // threads
    nr_runs = part // run_pages
    chosen = max(1, round(touched_ratio * nr_runs))
    b = Builder(f"sparse, {touched_ratio:.3g} of {nr_pages} pages", page_bytes)
    root = b.thread(b.space(nr_pages))
    vma = b.mapping(0, nr_pages)
    b.map(root, vma, 0, nr_pages)
    for i in range(threads):
        thread = b.fork(root)
        runs = rng.choice(nr_runs, chosen, replace=False)
        for run in (np.sort(runs) if in_order else runs).tolist():
            start = i * part + run * run_pages
            b.touch(thread, vma, start, start + run_pages, think_ns=think_ns)
        b.join(root, thread)
    return b.workload()
