"""Writes a workload event by event: address spaces, mappings, threads, and what each thread does in order.

    b = Builder("two writers", page_bytes=4096)
    mm = b.space(1024)                       # an address space of 1024 pages
    v = b.mapping(0, 1024)                   # anonymous, private and writable unless told otherwise
    root = b.thread(mm)
    b.touch(root, v, 0, 1024)
    b.workload()                             # every thread ends with an EXIT

Pages are page numbers of an address space, from 0; times are nanoseconds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from firsttouch.errors import FirsttouchError
from firsttouch.units import PMD_PAGES, pages
from firsttouch.workload import (
    ANON,
    EXEC,
    EXIT,
    FORK,
    JOIN,
    MAP,
    MEASURE,
    NO_CACHE_PAGE,
    READ,
    SLEEP,
    SYSCALL,
    TOUCH,
    UNMAP,
    WAIT,
    WAKE,
    WRITABLE,
    WRITE,
    Events,
    Threads,
    Vmas,
    Workload,
)

_EVENT_TYPES = (np.uint8, np.uint8, np.int32, np.int64, np.int64, np.int64, np.int64)


class Builder:
    """A workload in the making. Methods return the number of what they made."""

    def __init__(self, name: str, page_bytes: int) -> None:
        self.name, self.page_bytes = name, page_bytes
        self._regions: list[int] = []
        self._vmas: list[tuple[int, int, int, int]] = []
        self._cached_pages = 0
        self._threads: list[tuple[int, int, int]] = []
        self._events: list[list[tuple[int, ...]]] = []

    def space(self, nr_pages: int) -> int:
        """An address space with room for so many pages."""
        self._regions.append(max(1, pages(nr_pages, PMD_PAGES)))
        return len(self._regions) - 1

    def file(self, nr_pages: int) -> int:
        """A file of so many pages; returns the number of its first page in the page cache."""
        self._cached_pages += nr_pages
        return self._cached_pages - nr_pages

    def mapping(self, start: int, end: int, flags: int = ANON | WRITABLE, cache_page: int = NO_CACHE_PAGE) -> int:
        """A mapping, of a file from `cache_page` on if given; it holds in every address space that touches it."""
        self._vmas.append((start, end, flags, cache_page))
        return len(self._vmas) - 1

    def thread(self, mm: int, start_ns: int = 0) -> int:
        """A thread that begins by itself; the first is the root."""
        return self._new_thread(mm, -1, start_ns)

    def _new_thread(self, mm: int, parent: int, start_ns: int) -> int:
        self._threads.append((mm, parent, start_ns))
        self._events.append([])
        return len(self._threads) - 1

    def fork(self, parent: int, mm: int | None = None, think_ns: int = 0) -> int:
        """A thread that `parent` begins here: in its own address space, or as a process whose copy of it is `mm`."""
        child = self._new_thread(self._threads[parent][0] if mm is None else mm, parent, 0)
        self._add(parent, FORK, arg=child, think_ns=think_ns)
        return child

    def touch(
        self, thread: int, vma: int, page: int, end: int, *, step: int = 1, kind: int = WRITE, think_ns: int = 0
    ) -> None:
        """Touch every `step`-th page of [page, end), thinking before each."""
        self._add(thread, TOUCH, kind=kind, vma=vma, page=page, end=end, arg=step, think_ns=think_ns)

    def map(self, thread: int, vma: int, page: int, end: int, think_ns: int = 0) -> None:
        """[page, end) of a mapping is made."""
        self._add(thread, MAP, vma=vma, page=page, end=end, think_ns=think_ns)

    def unmap(self, thread: int, page: int, end: int, think_ns: int = 0) -> None:
        """[page, end) is unmapped."""
        self._add(thread, UNMAP, page=page, end=end, think_ns=think_ns)

    def exec(self, thread: int, mm: int, think_ns: int = 0) -> None:
        """The thread goes on in the address space `mm`, which is empty."""
        self._add(thread, EXEC, arg=mm, think_ns=think_ns)

    def sleep(self, thread: int, ns: int, *, io: bool = False, think_ns: int = 0) -> None:
        """Wait for so long, off the CPU; for I/O, or for a timer."""
        self._add(thread, SLEEP, page=ns, arg=int(io), think_ns=think_ns)

    def syscall(self, thread: int, ns: int, think_ns: int = 0) -> None:
        """So much kernel time."""
        self._add(thread, SYSCALL, page=ns, think_ns=think_ns)

    def read(self, thread: int, ns: int, lines: int) -> None:
        """Read so many lines of files that are in no cache, which takes `ns` while nobody else reads memory."""
        self._add(thread, READ, page=ns, arg=lines)

    def measure(self, thread: int, *, end: bool = False) -> None:
        """What is counted begins here, or ends."""
        self._add(thread, MEASURE, arg=int(end))

    def wait(self, thread: int) -> None:
        """Wait to be woken, unless that has happened already."""
        self._add(thread, WAIT)

    def wake(self, thread: int, other: int) -> None:
        """End one wait of another thread, now or later."""
        self._add(thread, WAKE, arg=other)

    def join(self, thread: int, other: int) -> None:
        """Wait for the end of another thread."""
        self._add(thread, JOIN, arg=other)

    def exit(self, thread: int, think_ns: int = 0) -> None:
        """Think, then end. A thread without this call ends at once."""
        self._add(thread, EXIT, think_ns=think_ns)

    def _add(
        self, thread: int, op: int, *, kind: int = 0, vma: int = 0, page: int = 0, end: int = 0, arg: int = 0,
        think_ns: int = 0,
    ) -> None:  # fmt: skip
        self._events[thread].append((op, kind, vma, page, end, arg, think_ns))

    def workload(self, **changes: Any) -> Workload:
        """All of it; `changes` are further fields of Workload."""
        rows: list[tuple[int, ...]] = []
        first, end = [], []
        for events in self._events:
            first.append(len(rows))
            rows += events
            if not events or events[-1][0] != EXIT:
                rows.append((EXIT, 0, 0, 0, 0, 0, 0))
            end.append(len(rows))
        table = np.array(rows, np.int64).reshape(-1, len(_EVENT_TYPES))
        threads = np.array(self._threads, np.int64).reshape(-1, 3)
        vmas = np.array(self._vmas or [(0, 0, 0, NO_CACHE_PAGE)], np.int64)
        return Workload(
            name=self.name,
            events=Events(*(np.ascontiguousarray(table[:, i], kind) for i, kind in enumerate(_EVENT_TYPES))),
            threads=Threads(
                first=np.array(first, np.int64),
                end=np.array(end, np.int64),
                mm=threads[:, 0].astype(np.int32),
                parent=threads[:, 1].astype(np.int32),
                start_ns=np.ascontiguousarray(threads[:, 2]),
            ),
            vmas=Vmas(
                start=np.ascontiguousarray(vmas[:, 0]),
                end=np.ascontiguousarray(vmas[:, 1]),
                flags=vmas[:, 2].astype(np.int32),
                cache_page=np.ascontiguousarray(vmas[:, 3]),
            ),
            mm_regions=np.array(self._regions, np.int64),
            page_bytes=self.page_bytes,
            **changes,
        )


def at_least(what: str, name: str, value: float, least: float) -> None:
    """Raise FirsttouchError unless a generator's parameter is `least` or more."""
    if not value >= least:
        raise FirsttouchError(f"{what}: {name} is {value}; it must be at least {least}", f"give {name} {least} or more")
