"""Workloads: what the model replays. Arrays of events per thread, made from a trace or by a generator.

**Address spaces and regions.** Memory is cut into *regions* of `PMD_PAGES` base pages, aligned, as one page-table page
maps. Each address space (`mm`) has a table of the regions it ever uses, in address order; a *page* number in an event
is `region * PMD_PAGES + index`, where `region` is the position in that table: address order and the low bits of a
vpn are kept, and the holes between regions take no memory. A child made by fork numbers its regions as its parent
does; exec begins a new address space.

**Events.** `op` says which of the other columns mean something:

| op | does | columns |
|---|---|---|
| TOUCH | access pages `page` to `end`, every `arg`-th (0: each), thinking before each | page, end, arg, kind, vma |
| MAP | a mapping is made, or grows to this; `arg`: NumPy is there to have made it | page, end, arg, vma |
| UNMAP | pages lose their mapping: munmap, brk, MADV_DONTNEED; or, if `arg`, the program keeps them | page, end, arg |
| MOVE | mremap: pages go from `page` .. `end` to `arg` | page, end, arg |
| POPULATE | MADV_POPULATE_WRITE by the program itself | page, end, vma |
| FORK | thread `arg` begins; its address space copies this one's if it is another | arg |
| EXEC | this thread goes on in address space `arg`, which is empty | arg |
| SLEEP | wait for `page` nanoseconds: for I/O, which counts for the load, if `arg`; else a timer | page, arg |
| READ | `page` nanoseconds of reading `arg` lines of files from memory: longer where its bus is busy | page, arg |
| SYSCALL | `page` nanoseconds of kernel time that no policy changes: exec, open, read, write | page |
| MEASURE | what is counted begins here (or ends, if `arg`): the rest only brings memory into a state | arg |
| YIELD | nothing: the recorded thread waited for a CPU here, which in the model the scheduler decides | |
| JOIN | wait until thread `arg` has ended | arg |
| WAIT | wait for a WAKE, unless one has come already | |
| WAKE | end one WAIT of thread `arg`, now or later | arg |
| EXIT | the thread ends; the last one of an address space unmaps it | |

`think_ns` is CPU time the thread uses before the event. In a recording it holds what the kernel did for the event
before; the model takes that off again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

TOUCH, MAP, UNMAP, MOVE, POPULATE, FORK, EXEC, SLEEP, JOIN, WAIT, WAKE, YIELD, EXIT, SYSCALL, MEASURE, READ = range(16)

# Event kinds: bits. The first are those of trace.schema.
WRITE = 1
KERNEL = 4
PROTECTION = 8
KEPT = 32  # of memory that the program's own allocator keeps: no fault where a touch before it mapped the page
RACED = 64  # another thread's fault on the page was still under way: the trap found the page mapped
RECORDED = 128  # seen as a fault: under the recording's own conditions the page was not mapped for this access

# VMA flags: bits.
ANON = 1
WRITABLE = 2
SHARED = 4
STACK = 8
ADVISED = 16  # MADV_HUGEPAGE
NOHUGE = 32  # MADV_NOHUGEPAGE
NORESERVE = 64
SHMEM = 128  # shared memory: first touch allocates a zeroed page
RANDOM = 256  # MADV_RANDOM
SEQUENTIAL = 512  # MADV_SEQUENTIAL
HEAP = 1024  # what brk moves the end of
IMAGE = 2048  # a program's own file, which exec maps

NO_CACHE_PAGE = np.iinfo(np.int32).min  # of Vmas.cache_page


class Events(NamedTuple):
    """Events of all threads, those of one thread together and in order."""

    op: NDArray[np.uint8]  # [event]
    kind: NDArray[np.uint8]  # [event] bits
    vma: NDArray[np.int32]  # [event] row of Vmas
    page: NDArray[np.int64]  # [event] first page; SLEEP: nanoseconds
    end: NDArray[np.int64]  # [event] page after the last
    arg: NDArray[np.int64]  # [event]
    think_ns: NDArray[np.int64]  # [event]


class Threads(NamedTuple):
    """One row a thread; thread 0 is the root. A thread that no FORK begins starts at `start_ns`."""

    first: NDArray[np.int64]  # [thread] its first event
    end: NDArray[np.int64]  # [thread] the event after its last
    mm: NDArray[np.int32]  # [thread] address space it begins in
    parent: NDArray[np.int32]  # [thread] thread whose FORK begins it, or -1
    start_ns: NDArray[np.int64]  # [thread]


class Vmas(NamedTuple):
    """Mappings as they stood at some touch: a row is never changed, a mapping that grows gets a new row.

    A **cache page** is the place of a file's page in the page cache: files lie one after another, from page 0, so two
    mappings of one file's page, in whatever address spaces, have one number, and `cache_page >> PMD_ORDER` is its
    superpage frame.
    """

    start: NDArray[np.int64]  # [vma] page
    end: NDArray[np.int64]  # [vma] page after the last
    flags: NDArray[np.int32]  # [vma] bits
    cache_page: NDArray[np.int64]  # [vma] of its first page, or NO_CACHE_PAGE: no file, or an unknown one


@dataclass(frozen=True)
class Workload:
    """What a program does to memory, in terms that hold under any policy.

    A recording has only touches that faulted with base pages, marked RECORDED: see `mm.fault`.
    """

    name: str
    events: Events
    threads: Threads
    vmas: Vmas
    mm_regions: NDArray[np.int64]  # [mm] regions in its table
    page_bytes: int
    recorded_fault_around_bytes: int = 65536  # what the recording kernel used; RECORDED touches are relative to it
    recorded_level: str = ""  # "basic" or "full": events are a recording, and gaps hold its kernel time; "": generated
    user_ns: int = 0  # of the recorded program, by getrusage
    system_ns: int = 0  # the same
    numpy_mms: tuple[int, ...] = ()  # address spaces that have NumPy in them
    lines_touched: int = 64  # cache lines of a page that its user goes on to touch
    facts: dict[str, Any] = field(default_factory=dict)  # for reports: touches, fault mix, what was inferred

    @property
    def nr_touches(self) -> int:
        """TOUCH events."""
        return int(np.count_nonzero(self.events.op == TOUCH))
