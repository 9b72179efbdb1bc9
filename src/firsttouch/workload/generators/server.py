"""A long-lived server: a resident heap, and requests that each take fresh memory and give it back.

    thread    for each request: wait for it, map a buffer, write to all of it, compute, unmap it; every `grow_every`-th
              request adds a page to the heap that stays

Buffers have sizes from one page to `buffer_pages`, most of them small (each size class of twice the pages half as
often), from a fixed sequence. After the first minutes such a program faults only for what it gives back and takes anew:
what a pool, MADV_FREE, or larger pages would save is that churn.
"""

from __future__ import annotations

import numpy as np

from firsttouch.units import BASE_PAGE_BYTES
from firsttouch.workload import Workload
from firsttouch.workload.generators.builder import Builder, at_least


def server(
    requests: int = 1000,
    *,
    threads: int = 4,
    heap_pages: int = 8192,
    buffer_pages: int = 256,
    grow_every: int = 8,
    wait_ns: int = 500_000,
    compute_ns: int = 100_000,
    seed: int = 1,
    page_bytes: int = BASE_PAGE_BYTES,
) -> Workload:
    """A server that lives long.

    Parameters
    ----------
    requests, threads
        How many in all, and how many threads share them.
    heap_pages
        Written once at the start, by the root thread, and kept.
    buffer_pages
        Pages of the largest buffer.
    grow_every
        Requests between two new pages of the heap, of each thread; 0 never grows it.
    wait_ns, compute_ns
        Of each request: off the CPU before it, and on the CPU besides its faults.
    seed
        Of the sequence of sizes.
    page_bytes
        Of the machine it will run on.

    Raises FirsttouchError for a parameter out of range.
    """
    for name, value, least in (
        ("requests", requests, 1), ("threads", threads, 1), ("heap_pages", heap_pages, 0), ("wait_ns", wait_ns, 0),
        ("buffer_pages", buffer_pages, 1), ("grow_every", grow_every, 0), ("compute_ns", compute_ns, 0),
        ("seed", seed, 0),
    ):  # fmt: skip
        at_least("server", name, value, least)
    b = Builder(f"server of {threads} threads, {requests} requests", page_bytes)
    grown = -(-requests // threads) // grow_every if grow_every else 0  # pages a thread, at most
    room = heap_pages + threads * (grown + buffer_pages)
    root = b.thread(b.space(room))
    heap = b.mapping(0, max(1, heap_pages + threads * grown))
    if heap_pages:
        b.touch(root, heap, 0, heap_pages)
    sizes = _sizes(requests, buffer_pages, seed)
    for i in range(threads):
        thread = b.fork(root)
        buffer = room - (threads - i) * buffer_pages
        vma = b.mapping(buffer, buffer + buffer_pages)
        for nr, size in enumerate(sizes[i::threads], 1):
            b.sleep(thread, wait_ns)
            b.map(thread, vma, buffer, buffer + size)
            b.touch(thread, vma, buffer, buffer + size)
            b.unmap(thread, buffer, buffer + size, think_ns=compute_ns)
            if grow_every and nr % grow_every == 0:
                new = heap_pages + i * grown + nr // grow_every - 1
                b.touch(thread, heap, new, new + 1)
        b.join(root, thread)
    return b.workload()


def _sizes(number: int, most: int, seed: int) -> list[int]:
    """Pages of each buffer: a size class of twice the pages comes half as often."""
    rng = np.random.default_rng(seed)
    classes = np.minimum(rng.geometric(0.5, number) - 1, most.bit_length() - 1)
    return [int(rng.integers(1 << c, min(most, (2 << c) - 1) + 1)) for c in classes]
