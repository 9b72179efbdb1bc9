"""pft, the page-fault test: what the tables of 2004 and after were measured with.

    parent    for each repetition: fork a child, wait for it
    child     make the threads, wait for them, exit (which unmaps everything: inside the wall time)
    thread    map bytes / threads, write to it every 16384 bytes, end

The stride is 16384 bytes whatever the page size: on the machines with 16 KiB pages that the test was written on it
touches each page, with 4 KiB pages only every fourth. The rates are nevertheless computed from all pages:

    pages     = bytes * repetitions / page size
    flt/cpu/s = pages / (user + system time of the children)
    fault/wsec = pages / wall time, from before the first fork to after the last wait

`stride_bytes` = page size touches each page, so that pages are faults. With `lines` above 1, each page that is
touched has that many of its cache lines written, from the first on, as in the cache-line tables.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from firsttouch.errors import FirsttouchError
from firsttouch.units import BASE_PAGE_BYTES, format_bytes, pages
from firsttouch.workload import Workload
from firsttouch.workload.generators.builder import Builder

STRIDE_BYTES = 16384
MAX_BYTES, MAX_THREADS, MAX_CREATED = 16 << 40, 4096, 1_000_000  # at a time; at a time; over all repetitions


@dataclass(frozen=True)
class PftTest:
    """One row's parameters."""

    nr_bytes: int  # of all threads together, in each repetition
    reps: int = 1
    threads: int = 1
    lines: int = 1  # cache lines written in each page that is touched
    stride_bytes: int = STRIDE_BYTES

    def check(self, page_bytes: int, line_bytes: int) -> None:
        """Raise FirsttouchError for a test that cannot be: nothing to touch, no thread, more lines than a page has."""

        def bad(what: str, value: object, why: str) -> FirsttouchError:
            return FirsttouchError(
                f"the page-fault test cannot have {what} {value}: {why}", "see: firsttouch pft --help"
            )

        if not 1 <= self.threads <= MAX_THREADS:
            raise bad("threads", self.threads, f"1 to {MAX_THREADS} are possible")
        if not 1 <= self.reps <= MAX_CREATED // self.threads:
            raise bad("repetitions", self.reps, f"1 to {MAX_CREATED // self.threads} are possible")
        if self.nr_bytes > MAX_BYTES:
            raise bad("bytes", self.nr_bytes, f"at most {format_bytes(MAX_BYTES)} are possible")
        if self.part_bytes < page_bytes:
            raise bad(
                "bytes", self.nr_bytes, f"each thread needs a page of {format_bytes(page_bytes)} or more to touch"
            )
        if self.stride_bytes < 1 or (self.stride_bytes % page_bytes and page_bytes % self.stride_bytes):
            raise bad("stride", self.stride_bytes, f"it must be a multiple or a part of a page, {page_bytes} bytes")
        if not 1 <= self.lines <= page_bytes // line_bytes:
            raise bad("lines", self.lines, f"a page has {page_bytes // line_bytes} of them")

    @property
    def part_bytes(self) -> int:
        """What one thread maps."""
        return self.nr_bytes // max(1, self.threads)

    def pages(self, page_bytes: int) -> float:
        """Pages as the rates count them: computed, not touched."""
        return self.nr_bytes * self.reps / page_bytes

    def touched_pages(self, page_bytes: int) -> int:
        """Pages that are really touched, and fault where each is mapped by itself, over all repetitions."""
        return self.reps * self.threads * pages(self.part_bytes, max(page_bytes, self.stride_bytes))


class PftRow(msgspec.Struct, frozen=True):
    """One row of results; the times and rates are None when memory ran out."""

    gb: float
    rep: int
    threads: int
    lines: int
    user_s: float | None
    system_s: float | None
    wall_s: float | None
    faults_per_cpu_s: float | None
    faults_per_wall_s: float | None
    stride_bytes: int
    page_bytes: int
    pages: float  # what the rates are computed from
    touched_pages: int
    faults: int  # that the kernel, or the model, counted
    out_of_memory: bool
    machine: str  # "host" where it was measured
    policy: str  # "" where it was measured


def pft_row(
    test: PftTest, *, page_bytes: int, user_s: float, system_s: float, wall_s: float, faults: int,
    out_of_memory: bool = False, machine: str = "host", policy: str = "",
) -> PftRow:  # fmt: skip
    """The row that a run of `test` comes to."""
    known = not out_of_memory
    nr_pages = test.pages(page_bytes)
    return PftRow(
        gb=test.nr_bytes / (1 << 30),
        rep=test.reps,
        threads=test.threads,
        lines=test.lines,
        user_s=user_s if known else None,
        system_s=system_s if known else None,
        wall_s=wall_s if known else None,
        faults_per_cpu_s=nr_pages / (user_s + system_s) if known and user_s + system_s > 0 else None,
        faults_per_wall_s=nr_pages / wall_s if known and wall_s > 0 else None,
        stride_bytes=test.stride_bytes,
        page_bytes=page_bytes,
        pages=nr_pages,
        touched_pages=test.touched_pages(page_bytes),
        faults=faults,
        out_of_memory=out_of_memory,
        machine=machine,
        policy=policy,
    )


def pft(
    nr_bytes: int,
    *,
    reps: int = 1,
    threads: int = 1,
    lines: int = 1,
    stride_bytes: int = STRIDE_BYTES,
    page_bytes: int = BASE_PAGE_BYTES,
    line_bytes: int = 64,
    fork_ns: int = 0,
    thread_ns: int = 0,
) -> Workload:
    """The page-fault test as a workload.

    Parameters
    ----------
    nr_bytes
        Memory of all threads together, mapped anew in each repetition.
    reps, threads
        Children, one after another; threads of each.
    lines
        Cache lines written in each touched page.
    stride_bytes
        From one touch to the next; a multiple of the page size, or a part of it.
    page_bytes, line_bytes
        Of the machine it will run on.
    fork_ns, thread_ns
        What making a child and a thread takes; the machine files do not say.

    The threads' parts lie one after another in one mapping that begins at a region's boundary, as mappings that a
    kernel merges do. Raises FirsttouchError for a test that cannot be.
    """
    test = PftTest(nr_bytes, reps, threads, lines, stride_bytes)
    test.check(page_bytes, line_bytes)
    part_pages = pages(test.part_bytes, page_bytes)
    step = max(1, stride_bytes // page_bytes)
    b = Builder(f"pft {format_bytes(nr_bytes)} x {reps}, {threads} threads", page_bytes)
    root = b.thread(b.space(0))
    space = b.space(threads * part_pages)  # of every child: the one before has left it empty
    vma = b.mapping(0, threads * part_pages)
    for _ in range(reps):
        child = b.fork(root, space, think_ns=fork_ns)
        b.join(root, child)
        workers = [b.fork(child, think_ns=thread_ns) for _ in range(threads)]
        for i, worker in enumerate(workers):
            start = i * part_pages
            b.map(worker, vma, start, start + part_pages)
            b.touch(worker, vma, start, start + part_pages, step=step)
            b.join(child, worker)
    passes = max(1, page_bytes // stride_bytes)  # of the threads over each page
    return b.workload(lines_touched=min(lines * passes, page_bytes // line_bytes))
