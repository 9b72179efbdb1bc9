"""Threads that read one file through mappings: what fault-around was measured with.

    root      makes the threads, waits for them, exits, which unmaps everything
    thread    maps the whole file for itself and reads words of it, `passes` times, by `pattern`:
                sequential   every word, in order
                random       every word once, in an order by chance, each from memory: caches are small beside the file
                sparse       one word of each `step_pages`-th page

The file is in the page cache. The mappings are the threads' own, and lie in one address space: each thread faults for
itself, and all of them meet at the address space's lock. With `processes` each has an address space of its own, too.

**Words by chance.** A page holds W words, so its first one comes early: of all P pages, j have been met when the part
1 - (1 - j / P) ** (1 / W) of all words is read. So all P first touches lie in the first ln(P) / W of the run, the later
the rarer. The generator has them at just these places, the pages in an order of each thread's own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from firsttouch.errors import FirsttouchError
from firsttouch.units import BASE_PAGE_BYTES, PMD_PAGES
from firsttouch.units import pages as pages_of
from firsttouch.workload import Workload
from firsttouch.workload.generators.builder import Builder, at_least

WORD_BYTES = 8
PATTERNS = ("sequential", "random", "sparse")
LEAST_WORDS, MOST_WORDS = 64, 1024  # read in one event: fewer are put off to the next, more are several


def readers(
    file_pages: int = 8192,
    *,
    threads: int = 4,
    pattern: str = "sequential",
    word_ns: float = 2.0,
    step_pages: int = PMD_PAGES,
    passes: int = 1,
    processes: bool = False,
    seed: int = 1,
    page_bytes: int = BASE_PAGE_BYTES,
) -> Workload:
    """Readers of one mapped file.

    Parameters
    ----------
    file_pages
        Of the file, all in the page cache.
    threads
        How many read it, all of it each.
    pattern
        "sequential", "random" or "sparse": which words each reads, and in what order.
    word_ns
        What reading a word of 8 bytes takes, without faults and while nobody else reads memory.
    step_pages
        "sparse": from one page to the next that it reads; the default is one of each page-table page.
    passes
        How often each reads it.
    processes
        Each reader is a process instead of a thread.
    seed
        Of the random orders.
    page_bytes
        Of the machine it will run on.

    Raises FirsttouchError for a parameter out of range.
    """
    for name, value, least in (
        ("file_pages", file_pages, 1), ("threads", threads, 1), ("word_ns", word_ns, 0), ("step_pages", step_pages, 1),
        ("passes", passes, 1), ("seed", seed, 0),
    ):  # fmt: skip
        at_least("readers", name, value, least)
    if pattern not in PATTERNS:
        raise FirsttouchError(f"readers: pattern is {pattern!r}", f"it is one of {', '.join(PATTERNS)}")
    room = pages_of(file_pages, PMD_PAGES) * PMD_PAGES  # mappings begin at a region's boundary, as large ones do
    b = Builder(f"{threads} readers of {file_pages} pages, {pattern}", page_bytes)
    root = b.thread(b.space(1 if processes else threads * room))
    file = b.file(file_pages)
    workers = [b.fork(root, b.space(room) if processes else None) for _ in range(threads)]
    for i, worker in enumerate(workers):
        start = 0 if processes else i * room
        vma = b.mapping(start, start + file_pages, flags=0, cache_page=file)
        b.map(worker, vma, start, start + file_pages)
        rng = np.random.default_rng((seed, i))
        for _ in range(passes):
            if pattern == "random":
                _read_by_chance(b, worker, vma, start + rng.permutation(file_pages), word_ns, page_bytes // WORD_BYTES)
                continue
            step, words = (step_pages, 1) if pattern == "sparse" else (1, page_bytes // WORD_BYTES)
            b.touch(worker, vma, start, start + file_pages, step=step, kind=0, think_ns=round(words * word_ns))
        b.join(root, worker)
    return b.workload()


def words_before(nr_pages: int, words: int) -> NDArray[np.int64]:
    """[page] how many words of a file of `nr_pages` are read by chance before its j-th new page is met."""
    met = 1 - np.arange(nr_pages) / nr_pages
    return np.floor((1 - met ** (1 / words)) * nr_pages * words).astype(np.int64)


def _read_by_chance(b: Builder, thread: int, vma: int, pages: NDArray[np.int64], word_ns: float, words: int) -> None:
    """Touch `pages` in their order, with reads of words between them and after."""
    done = 0
    for page, before in zip(pages.tolist(), words_before(len(pages), words).tolist(), strict=True):
        if before - done >= LEAST_WORDS:
            done += _read(b, thread, before - done, word_ns)
        b.touch(thread, vma, page, page + 1, kind=0)
    _read(b, thread, len(pages) * words - done, word_ns)


def _read(b: Builder, thread: int, words: int, word_ns: float) -> int:
    """Read `words`, some at a time; return how many."""
    for first in range(0, words, MOST_WORDS):
        nr = min(MOST_WORDS, words - first)
        b.read(thread, round(nr * word_ns), nr)
    return words
