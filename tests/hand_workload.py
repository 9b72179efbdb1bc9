"""Workloads written event by event, for tests of the model.

    h = Hand(regions=[2])                 # one address space with two regions
    v = h.vma(0, 1024)                    # its pages 0..1023, anonymous and writable
    t = h.thread()
    h.write(t, v, 5)
    h.workload()                          # every thread gets its EXIT

Costs are those of `handmade.machine`: with one CPU and 256 MiB (batches of 15 pages, zone_page 12 ns) a write fault on
anonymous memory takes

    trap 500 + alloc (300 - 12) + zeroing 300 = 1088 ns, and 15 * 12 = 180 more when the CPU's list was empty.
"""

from dataclasses import replace

import numpy as np
from handmade import PAGE_BYTES, machine

from firsttouch import policy
from firsttouch.workload import (
    ANON,
    EXEC,
    EXIT,
    FORK,
    JOIN,
    MAP,
    MOVE,
    NO_CACHE_PAGE,
    POPULATE,
    RECORDED,
    SLEEP,
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

MEMORY_BYTES = 256 << 20
FAULT_NS, REFILL_NS = 1088, 180


def small_machine(nr_cpus=1, **changes):
    """The machine of round costs, with 256 MiB."""
    return machine(nr_cpus=nr_cpus, memory_bytes=MEMORY_BYTES, **changes)


def linux(diffs=""):
    """`linux-6.18` with diffs, e.g. "+thp"."""
    return policy.load("linux-6.18" + diffs)


class Hand:
    """A workload in the making. Pages are page numbers of an address space, times nanoseconds."""

    def __init__(self, regions=(1,)):
        self.regions = list(regions)
        self.vmas, self.threads, self.events = [], [], []

    def vma(self, start, end, flags=ANON | WRITABLE):
        self.vmas.append((start, end, flags))
        return len(self.vmas) - 1

    def thread(self, mm=0, parent=-1, start_ns=0):
        self.threads.append((mm, parent, start_ns))
        self.events.append([])
        return len(self.threads) - 1

    def add(self, thread, op, *, page=0, end=0, arg=0, kind=0, vma=0, think_ns=0):
        self.events[thread].append((op, kind, vma, page, end, arg, think_ns))

    def touch(self, thread, vma, page, kind=0, think_ns=0):
        self.add(thread, TOUCH, page=page, end=page + 1, kind=kind, vma=vma, think_ns=think_ns)

    def write(self, thread, vma, *pages, think_ns=0):
        for page in pages:
            self.touch(thread, vma, page, WRITE, think_ns)

    def read(self, thread, vma, *pages, think_ns=0):
        for page in pages:
            self.touch(thread, vma, page, 0, think_ns)

    def map(self, thread, vma):
        self.add(thread, MAP, page=self.vmas[vma][0], end=self.vmas[vma][1], vma=vma)

    def populate(self, thread, vma, start, end):
        self.add(thread, POPULATE, page=start, end=end, vma=vma)

    def unmap(self, thread, start, end):
        self.add(thread, UNMAP, page=start, end=end)

    def move(self, thread, start, end, to):
        self.add(thread, MOVE, page=start, end=end, arg=to)

    def fork(self, thread, mm=None):
        """A new thread of `thread`'s address space, or of a copy of it that is address space `mm`."""
        child = self.thread(self.threads[thread][0] if mm is None else mm, thread)
        self.add(thread, FORK, arg=child)
        return child

    def exec(self, thread, mm):
        self.add(thread, EXEC, arg=mm)

    def sleep(self, thread, ns, think_ns=0):
        self.add(thread, SLEEP, page=ns, think_ns=think_ns)

    def join(self, thread, other):
        self.add(thread, JOIN, arg=other)

    def wait(self, thread, think_ns=0):
        self.add(thread, WAIT, think_ns=think_ns)

    def wake(self, thread, other, think_ns=0):
        self.add(thread, WAKE, arg=other, think_ns=think_ns)

    def exit(self, thread, think_ns=0):
        """Thinking before the end; without this call a thread ends at once."""
        self.add(thread, EXIT, think_ns=think_ns)

    def workload(self, *, lines_touched=0, page_bytes=PAGE_BYTES, **changes):
        """`lines_touched` is 0 so that only the kernel's work takes time."""
        rows, first, end = [], [], []
        for events in self.events:
            first.append(len(rows))
            rows += events
            if not events or events[-1][0] != EXIT:
                rows.append((EXIT, 0, 0, 0, 0, 0, 0))
            end.append(len(rows))
        kinds = (np.uint8, np.uint8, np.int32, np.int64, np.int64, np.int64, np.int64)
        mm, parent, start_ns = zip(*self.threads, strict=True)
        return Workload(
            name="hand",
            events=Events(
                *(np.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True))
            ),
            threads=Threads(
                np.array(first, np.int64),
                np.array(end, np.int64),
                np.array(mm, np.int32),
                np.array(parent, np.int32),
                np.array(start_ns, np.int64),
            ),
            vmas=Vmas(
                np.array([v[0] for v in self.vmas] or [0], np.int64),
                np.array([v[1] for v in self.vmas] or [0], np.int64),
                np.array([v[2] for v in self.vmas] or [0], np.int32),
                np.full(max(1, len(self.vmas)), NO_CACHE_PAGE, np.int64),
            ),
            mm_regions=np.array(self.regions, np.int64),
            page_bytes=page_bytes,
            lines_touched=lines_touched,
            **changes,
        )


def recorded(workload, level="full", fault_around_bytes=65536):
    """The same events as a recording: every touch faulted."""
    events = workload.events
    kind = np.where(events.op == TOUCH, events.kind | RECORDED, events.kind).astype(np.uint8)
    return replace(
        workload,
        events=events._replace(kind=kind),
        recorded_level=level,
        recorded_fault_around_bytes=fault_around_bytes,
    )
