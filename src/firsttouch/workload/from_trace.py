"""A workload from a trace: who touched what, when, inside which mapping, and what each thread did in between.

Three passes:

1. *Address spaces.* Walk forks, execs, maps, unmaps and advice in time order, keep the mappings of every process, and
   give each touch the mapping that held it.
2. *Pages.* Give each family of address spaces (a program and what it forked) its table of regions, and turn addresses
   into page numbers.
3. *Threads.* Put each thread's touches, calls and waits in order; what is left between them is thinking.

What a trace does not say is inferred, counted in `facts`, and listed in docs/deviations.md: without root, whether a
touch was a read or a write and when memory was unmapped; always, what a sleeping thread waited for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firsttouch.errors import FirsttouchError
from firsttouch.trace import schema
from firsttouch.trace.schema import MAP_NORESERVE, MAP_SHARED, MAP_STACK, PROT_WRITE
from firsttouch.trace.store import Trace
from firsttouch.trace.vma import MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_RANDOM, MADV_SEQUENTIAL, Vma, VmaMap
from firsttouch.units import BASE_PAGE_BYTES, PMD_ORDER, PMD_PAGES
from firsttouch.workload import (
    ADVISED,
    ANON,
    EXEC,
    EXIT,
    FORK,
    HEAP,
    JOIN,
    MAP,
    MOVE,
    NO_CACHE_PAGE,
    NOHUGE,
    NORESERVE,
    POPULATE,
    PROTECTION,
    RACED,
    RANDOM,
    RECORDED,
    SEQUENTIAL,
    SHARED,
    SHMEM,
    SLEEP,
    STACK,
    TOUCH,
    UNMAP,
    WAIT,
    WAKE,
    WRITABLE,
    WRITE,
    YIELD,
    Events,
    Threads,
    Vmas,
    Workload,
)

MADV_DONTNEED, MADV_DONTNEED_LOCKED, MADV_POPULATE_READ, MADV_POPULATE_WRITE = 4, 24, 22, 23

RACE_NS = 20_000  # two threads that fault on one page this close together were in the kernel at the same time
WAKE_UP_NS = 2_000_000  # from being woken to running, on a busy machine
STACK_GROWTH_BYTES = 8 << 20  # a touch this far below a stack grows it
NUMPY = "/_multiarray_umath."  # part of the name of the file that NumPy's arrays are made by
POPULATABLE_BYTES = 64 << 30  # larger mappings are reservations that nobody would populate

KEPT_KIND_BITS = schema.WRITE | schema.KERNEL | schema.PROTECTION


_Moment = tuple[int, int]  # when, and which other thread
_Pause = tuple[int, int, int, str]  # thread, from when to when it was off the CPU, and why


@dataclass
class _Space:
    """One address space while the trace is walked: from a fork or exec to the next exec or the end."""

    mm: int
    family: int
    vmas: VmaMap
    pid: int
    begin_ns: int


@dataclass
class _Calls:
    """Events other than touches, as columns; addresses and ranges are bytes until pages are known."""

    t_ns: list[int] = field(default_factory=list)
    thread: list[int] = field(default_factory=list)
    op: list[int] = field(default_factory=list)
    vma: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    arg: list[int] = field(default_factory=list)
    mm: list[int] = field(default_factory=list)  # address space of the range, or -1
    pause_ns: list[int] = field(default_factory=list)  # time after t_ns that is not thinking

    def add(
        self, t_ns: int, thread: int, op: int, *, vma: int = 0, start: int = 0, end: int = 0, arg: int = 0,
        mm: int = -1, pause_ns: int = 0,
    ) -> None:  # fmt: skip
        for column, value in zip(
            (self.t_ns, self.thread, self.op, self.vma, self.start, self.end, self.arg, self.mm, self.pause_ns),
            (t_ns, thread, op, vma, start, end, arg, mm, pause_ns),
            strict=True,
        ):
            column.append(value)


class _Walk:
    """Pass 1. Holds what is known of processes, threads and mappings at the moment the walk has come to."""

    def __init__(self, trace: Trace) -> None:
        self.basic = trace.meta["level"] != "full"
        self.touch = trace.table("touch", "t_ns")
        self.nr = len(self.touch["t_ns"])
        self.space_of_pid: dict[int, _Space] = {}
        self.families = 0
        self.mm_family: list[int] = []
        self.thread_of_tid: dict[int, int] = {}
        self.threads: list[dict[str, int]] = []  # tid, pid, mm, parent, start_ns, end_ns
        self.calls = _Calls()
        self.ranges: dict[int, list[tuple[int, int]]] = defaultdict(list)  # family -> byte ranges that need regions
        self.rows: dict[tuple[int, Vma], int] = {}
        self.row_list: list[tuple[int, Vma]] = []
        self.touch_vma = np.zeros(self.nr, np.int32)
        self.touch_family = np.zeros(self.nr, np.int32)
        self.touch_thread = np.zeros(self.nr, np.int32)
        self.touch_mm = np.zeros(self.nr, np.int32)
        self.inferred: Counter[str] = Counter()
        self.numpy_mms: set[int] = set()
        self.made: list[tuple[int, int, _Space, int, int]] = []  # without root: anonymous mappings, as they were made
        self._by_pid = _group(self.touch["pid"])
        self._by_tid = _group(self.touch["tid"])
        self._flushed: Counter[int] = Counter()
        self._threaded: Counter[int] = Counter()
        self._exec_done: set[int] = set()

    # -- processes and threads

    def space(self, pid: int, t_ns: int = 0) -> _Space:
        """The address space of a process; a process not seen before gets an empty one of its own family."""
        if pid not in self.space_of_pid:
            self.space_of_pid[pid] = self._new_space(pid, self._new_family(), VmaMap(), t_ns)
        return self.space_of_pid[pid]

    def _new_family(self) -> int:
        self.families += 1
        return self.families - 1

    def _new_space(self, pid: int, family: int, vmas: VmaMap, t_ns: int) -> _Space:
        self.mm_family.append(family)
        return _Space(len(self.mm_family) - 1, family, vmas, pid, t_ns)

    def thread(self, tid: int, pid: int, t_ns: int) -> int:
        """The thread of a tid; one not seen before begins by itself."""
        if tid not in self.thread_of_tid:
            start_ns = 0 if not self.threads else t_ns
            self._new_thread(tid, pid, self.space(pid, t_ns).mm, -1, start_ns)
        return self.thread_of_tid[tid]

    def _new_thread(self, tid: int, pid: int, mm: int, parent: int, start_ns: int) -> int:
        self.thread_of_tid[tid] = len(self.threads)
        self.threads.append({"tid": tid, "pid": pid, "mm": mm, "parent": parent, "start_ns": start_ns, "end_ns": -1})
        return self.thread_of_tid[tid]

    def fork(self, t_ns: int, pid: int, tid: int, parent_tid: int, parent_pid: int) -> None:
        """A new thread, in a new process if its pid is not its parent's."""
        parent = self.thread(parent_tid, parent_pid, t_ns)
        self.catch_up(pid, t_ns)
        self._name_threads(tid, t_ns)
        if pid != parent_pid:
            self.catch_up(parent_pid, t_ns)
            old = self.space(parent_pid, t_ns)
            self.space_of_pid[pid] = self._new_space(pid, old.family, old.vmas.copy(), t_ns)
            if old.mm in self.numpy_mms:
                self.numpy_mms.add(self.space_of_pid[pid].mm)
        child = self._new_thread(tid, pid, self.space(pid, t_ns).mm, parent, t_ns)
        self.calls.add(t_ns, parent, FORK, arg=child)

    def exec(self, t_ns: int, pid: int, tid: int) -> None:
        """The process goes on in an empty address space."""
        thread = self.thread(tid, pid, t_ns)
        self.catch_up(pid, t_ns)
        self.space_of_pid[pid] = self._new_space(pid, self._new_family(), VmaMap(), t_ns)
        self.calls.add(t_ns, thread, EXEC, arg=self.space_of_pid[pid].mm)

    def exit(self, t_ns: int, pid: int, tid: int) -> None:
        """A thread ends."""
        thread = self.thread(tid, pid, t_ns)
        if self.threads[thread]["end_ns"] < 0:
            self._name_threads(tid, t_ns)
            self.threads[thread]["end_ns"] = t_ns
            del self.thread_of_tid[tid]

    # -- touches

    def catch_up(self, pid: int, t_ns: int) -> None:
        """Give all touches of a process before `t_ns` the mappings as they are now."""
        rows = self._by_pid.get(pid)
        if rows is None:
            return
        first = self._flushed[pid]
        last = first + int(np.searchsorted(self.touch["t_ns"][rows[first:]], t_ns, side="left"))
        if last == first:
            return
        space = self.space(pid, int(self.touch["t_ns"][rows[first]]))
        self._find_mappings(space, rows[first:last])
        self._flushed[pid] = last

    def _find_mappings(self, space: _Space, rows: NDArray[Any]) -> None:
        self.touch_family[rows] = space.family
        self.touch_mm[rows] = space.mm
        while len(rows):
            addresses = self.touch["vaddr"][rows]
            found = space.vmas.find(addresses)
            vmas = list(space.vmas.vmas)
            upto = len(rows)
            for i in np.flatnonzero(found < 0):
                if self._grow_stack(space.vmas, int(addresses[i])):
                    upto = int(i)
                    break
            numbers = np.full(len(vmas) + 1, -1, np.int32)
            for at in np.unique(found[:upto]):
                numbers[at] = self.row(space.family, vmas[at]) if at >= 0 else -1
            self.touch_vma[rows[:upto]] = numbers[found[:upto]]
            rows = rows[upto:]

    def _grow_stack(self, vmas: VmaMap, address: int) -> bool:
        """A touch just below a stack: the kernel grows it to that page and says nothing."""
        above = next((vma for vma in vmas.vmas if vma.start > address), None)
        if above is None or above.name != "[stack]" or above.start - address > STACK_GROWTH_BYTES:
            return False
        start = address & ~(BASE_PAGE_BYTES - 1)
        vmas.map(start, above.end, above.map_id, above.prot, above.flags, above.name)
        return True

    def _name_threads(self, tid: int, t_ns: int) -> None:
        """Touches of `tid` before `t_ns` belong to the thread that has the tid now."""
        rows = self._by_tid.get(tid)
        if rows is None:
            return
        first = self._threaded[tid]
        last = first + int(np.searchsorted(self.touch["t_ns"][rows[first:]], t_ns, side="right"))
        if last > first:
            pid = int(self.touch["pid"][rows[first]])
            self.touch_thread[rows[first:last]] = self.thread(tid, pid, int(self.touch["t_ns"][rows[first]]))
            self._threaded[tid] = last

    def row(self, family: int, vma: Vma) -> int:
        """The number of a mapping as it stands now."""
        key = (family, vma)
        if key not in self.rows:
            self.rows[key] = len(self.row_list)
            self.row_list.append(key)
        return self.rows[key]

    # -- calls

    def caller(self, pid: int, t_ns: int) -> int:
        """The thread that made a call: the one of its process that touched last (the trace has only the pid)."""
        rows = self._by_pid.get(pid)
        if rows is not None:
            at = int(np.searchsorted(self.touch["t_ns"][rows], t_ns)) - 1
            tid = int(self.touch["tid"][rows[max(0, at)]])
            if tid in self.thread_of_tid:
                return self.thread_of_tid[tid]
        return self.thread(pid, pid, t_ns)

    def map(self, t_ns: int, pid: int, start: int, end: int, map_id: int, prot: int, flags: int, name: str) -> None:
        """A mapping is made, or changed by mprotect, or has grown."""
        self.catch_up(pid, t_ns)
        space = self.space(pid, t_ns)
        if self.basic:
            self._infer_unmap(t_ns, pid, space, start, end, prot, name)
        space.vmas.map(start, end, map_id, prot, flags, name)
        if NUMPY in name:
            self.numpy_mms.add(space.mm)
        vma = space.vmas.vmas[int(space.vmas.find(np.array([start], np.uint64))[0])]
        if _vma_flags(vma) & (ANON | WRITABLE) == ANON | WRITABLE and end - start <= POPULATABLE_BYTES:
            self.ranges[space.family].append((start, end))
            self.calls.add(
                t_ns,
                self.caller(pid, t_ns),
                MAP,
                vma=self.row(space.family, vma),
                start=start,
                end=end,
                arg=int(space.mm in self.numpy_mms),
                mm=space.mm,
            )

    def _infer_unmap(self, t_ns: int, pid: int, space: _Space, start: int, end: int, prot: int, name: str) -> None:
        """Without root: neighbours that would have merged into this mapping, and did not, are gone; so is its like."""
        for old in space.vmas.near(start, end):
            if old.is_file or (old.prot, old.name) != (prot, name):
                continue
            if (old.start, old.end) == (start, end):
                gone = [(start, end)]
            else:
                gone = [(old.start, min(old.end, start)), (max(old.start, end), old.end)]
            for first, last in gone:
                if first < last:
                    self.inferred["unmaps"] += 1
                    space.vmas.unmap(first, last)
                    self._unmap_event(t_ns, pid, space, first, last)
        self.made.append((t_ns, pid, space, start, end))

    def infer_reuse(self) -> None:
        """Without root: the span of pages that fault again after a mapping over them was made was unmapped before."""
        vpn = (self.touch["vaddr"] // BASE_PAGE_BYTES).astype(np.int64)
        order = np.lexsort((np.arange(self.nr), vpn, self.touch_mm))
        mm, page, row = self.touch_mm[order], vpn[order], self.touch_vma[order]
        again = np.flatnonzero((mm[1:] == mm[:-1]) & (page[1:] == page[:-1]) & (row[1:] != row[:-1])) + 1
        mm, page = mm[again], page[again]
        before_ns, again_ns = self.touch["t_ns"][order[again - 1]], self.touch["t_ns"][order[again]]
        for t_ns, pid, space, start, end in reversed(self.made):
            hit = (mm == space.mm) & (before_ns < t_ns) & (again_ns > t_ns)
            hit &= (page >= start // BASE_PAGE_BYTES) & (page < end // BASE_PAGE_BYTES)
            if not hit.any():
                continue
            self.inferred["unmaps"] += 1
            first, last = int(page[hit].min()) * BASE_PAGE_BYTES, (int(page[hit].max()) + 1) * BASE_PAGE_BYTES
            rows = self._by_pid[pid]
            caller = rows[max(0, int(np.searchsorted(self.touch["t_ns"][rows], t_ns)) - 1)]
            thread = int(self.touch_thread[caller])
            self.calls.add(t_ns - 1, thread, UNMAP, start=first, end=last, mm=space.mm)
            mm, page, before_ns, again_ns = mm[~hit], page[~hit], before_ns[~hit], again_ns[~hit]

    def unmap(self, t_ns: int, pid: int, start: int, end: int, how: str, to_start: int, to_end: int) -> None:
        """munmap, a shrinking brk, or mremap."""
        self.catch_up(pid, t_ns)
        space = self.space(pid, t_ns)
        if how != "mremap":
            space.vmas.unmap(start, end)
            self._unmap_event(t_ns, pid, space, start, end)
            return
        kept = min(end - start, to_end - to_start)
        space.vmas.move(start, end, to_start, to_end)
        if to_start != start:
            self.ranges[space.family] += [(start, end), (to_start, to_end)]
            self.calls.add(t_ns, self.caller(pid, t_ns), MOVE, start=start, end=start + kept, arg=to_start, mm=space.mm)
        if kept < end - start:
            self._unmap_event(t_ns, pid, space, start + kept, end)

    def _unmap_event(self, t_ns: int, pid: int, space: _Space, start: int, end: int) -> None:
        self.calls.add(t_ns, self.caller(pid, t_ns), UNMAP, start=start, end=end, mm=space.mm)

    def advice(self, t_ns: int, pid: int, start: int, end: int, advice: int) -> None:
        """madvise."""
        self.catch_up(pid, t_ns)
        space = self.space(pid, t_ns)
        space.vmas.advise(start, end, advice)
        if advice in (MADV_DONTNEED, MADV_DONTNEED_LOCKED):
            self._unmap_event(t_ns, pid, space, start, end)
        elif advice in (MADV_POPULATE_READ, MADV_POPULATE_WRITE):
            at = int(space.vmas.find(np.array([start], np.uint64))[0])
            if at >= 0:
                self.ranges[space.family].append((start, end))
                row = self.row(space.family, space.vmas.vmas[at])
                self.calls.add(t_ns, self.caller(pid, t_ns), POPULATE, vma=row, start=start, end=end, mm=space.mm)


def from_trace(trace: Trace) -> Workload:
    """The workload that a trace recorded. Raises FirsttouchError for one that was recorded with huge pages on."""
    if trace.meta["base_pages"] is False:
        raise FirsttouchError(
            f"{trace.path} was recorded with huge pages on (--as-is): touches behind them are missing",
            "record without --as-is",
        )
    walk = _Walk(trace)
    return _build(walk, trace, *_walk_trace(walk, trace))


def _walk_trace(walk: _Walk, trace: Trace) -> tuple[list[_Pause], list[_Moment], dict[int, list[_Moment]]]:
    """Pass 1. Returns stretches off the CPU, ends of threads, and for each thread who woke it."""
    maps, unmaps, advice, tasks = (trace.table(name) for name in ("map", "unmap", "advice", "task"))
    # At one time: forks and execs first, then unmaps, maps, advice, and ends last.
    order: list[tuple[int, int, str, int]] = []
    rank = {"fork": 0, "exec": 1, "run": 2, "sleep": 6, "preempt": 6, "exit": 7}
    order += [
        (int(t), rank.get(e, 2), "task", i) for i, (t, e) in enumerate(zip(tasks["t_ns"], tasks["event"], strict=True))
    ]
    for name, table, at in (("unmap", unmaps, 3), ("map", maps, 4), ("advice", advice, 5)):
        order += [(int(t), at, name, i) for i, t in enumerate(table["t_ns"])]
    order.sort()
    pid_of_tid: dict[int, int] = {}
    gone: dict[int, tuple[int, str]] = {}  # thread -> since when off the CPU, and why
    off_cpu: list[tuple[int, int, int, str]] = []
    exits: list[_Moment] = []
    wakes: dict[int, list[_Moment]] = defaultdict(list)
    for t_ns, _, name, i in order:
        if name == "map":
            walk.map(
                t_ns, int(maps["pid"][i]), int(maps["start"][i]), int(maps["end"][i]), int(maps["map_id"][i]),
                int(maps["prot"][i]), int(maps["flags"][i]), str(maps["name"][i]),
            )  # fmt: skip
        elif name == "unmap":
            walk.unmap(
                t_ns, int(unmaps["pid"][i]), int(unmaps["start"][i]), int(unmaps["end"][i]), str(unmaps["how"][i]),
                int(unmaps["to_start"][i]), int(unmaps["to_end"][i]),
            )  # fmt: skip
        elif name == "advice":
            walk.advice(
                t_ns, int(advice["pid"][i]), int(advice["start"][i]), int(advice["end"][i]), int(advice["advice"][i])
            )
        else:
            event, pid, tid = str(tasks["event"][i]), int(tasks["pid"][i]), int(tasks["tid"][i])
            if event == "fork":
                parent_tid = int(tasks["parent"][i])
                walk.fork(t_ns, pid, tid, parent_tid, pid_of_tid.get(parent_tid, parent_tid))
            elif event == "exec":
                walk.exec(t_ns, pid, tid)
            elif event in ("sleep", "preempt"):
                gone[walk.thread(tid, pid, t_ns)] = (t_ns, event)
            elif event == "run":
                thread = walk.thread(tid, pid, t_ns)
                if thread in gone:
                    since, why = gone.pop(thread)
                    off_cpu.append((thread, since, t_ns, why))
            elif event == "wake":
                waker = walk.thread_of_tid.get(int(tasks["parent"][i]), -1)
                if waker >= 0 and tid in walk.thread_of_tid:
                    wakes[walk.thread_of_tid[tid]].append((t_ns, waker))
            elif event == "exit":
                exits.append((t_ns, walk.thread(tid, pid, t_ns)))
                walk.exit(t_ns, pid, tid)
            else:
                walk.thread(tid, pid, t_ns)
            pid_of_tid[tid] = pid
    last_ns = np.iinfo(np.int64).max
    for pid in list(walk._by_pid):
        walk.catch_up(pid, last_ns)
    for tid in list(walk._by_tid):
        walk._name_threads(tid, last_ns)
    if walk.basic:
        walk.infer_reuse()
    return off_cpu, exits, wakes


def _build(
    walk: _Walk, trace: Trace, off_cpu: list[_Pause], exits: list[_Moment], wakes: dict[int, list[_Moment]]
) -> Workload:
    """Passes 2 and 3."""
    touch, calls = walk.touch, walk.calls
    if not walk.threads:
        walk.thread(1, 1, 0)
    vpn = (touch["vaddr"] // BASE_PAGE_BYTES).astype(np.int64)
    regions = _regions(walk, vpn)
    page = np.zeros(walk.nr, np.int64)
    for family, table in regions.items():
        mine = walk.touch_family == family
        page[mine] = _page_of(table, vpn[mine])

    end_ns = int(trace.meta["wall_ns"] or (touch["t_ns"][-1] if walk.nr else 0))
    _Waits(walk, off_cpu, exits, wakes).add()
    _begin_at_exec(walk)
    _part_strays(walk)
    for number, row in enumerate(walk.threads):
        stop = row["end_ns"] if row["end_ns"] >= 0 else max(end_ns, row["start_ns"])
        calls.add(stop, number, EXIT)

    op = np.array(calls.op, np.uint8)
    start, end = _call_pages(walk, regions, calls.start), _call_pages(walk, regions, calls.end)
    arg = np.where(op == MOVE, _call_pages(walk, regions, calls.arg), np.array(calls.arg, np.int64))
    pause_ns = np.array(calls.pause_ns, np.int64)
    start = np.where(op == SLEEP, pause_ns, start)
    vma_flags = np.array([_vma_flags(vma) for _, vma in walk.row_list] or [0], np.int32)
    kind, facts = _kinds(walk, page, vma_flags)

    nr_rows = len(walk.row_list)
    vma = walk.touch_vma.copy()
    # Touches outside every known mapping: two rows that no block fits in, one for anonymous memory, one for files.
    unknown = vma < 0
    vma[unknown] = np.where(touch["kind"][unknown] & schema.FILE, nr_rows + 1, nr_rows)

    t_ns = np.concatenate([touch["t_ns"].astype(np.int64), np.array(calls.t_ns, np.int64)])
    thread = np.concatenate([walk.touch_thread, np.array(calls.thread, np.int32)])
    last = np.concatenate([np.zeros(walk.nr, np.int8), (op == EXIT).astype(np.int8)])
    order = np.lexsort((t_ns, last, thread))  # an end comes last, whatever its time says
    nothing = np.zeros(walk.nr, np.int64)
    columns = Events(
        op=np.concatenate([np.full(walk.nr, TOUCH, np.uint8), op])[order],
        kind=np.concatenate([kind, np.zeros(len(op), np.uint8)])[order],
        vma=np.concatenate([vma, np.array(calls.vma, np.int32)])[order].astype(np.int32),
        page=np.concatenate([page, start])[order],
        end=np.concatenate([page + 1, end])[order],
        arg=np.concatenate([nothing, arg])[order],
        think_ns=np.zeros(len(order), np.int64),
    )
    t_ns, thread = t_ns[order], thread[order]
    until = _latest_of_thread(thread, t_ns + np.concatenate([nothing, pause_ns])[order])
    begin = np.searchsorted(thread, np.arange(len(walk.threads)))
    before = np.concatenate([[0], until[:-1]])
    before[begin] = [row["start_ns"] for row in walk.threads]
    columns.think_ns[:] = np.maximum(0, t_ns - before)
    return Workload(
        name=trace.path.stem,
        events=columns,
        threads=Threads(
            first=begin.astype(np.int64),
            end=np.searchsorted(thread, np.arange(len(walk.threads)), side="right").astype(np.int64),
            mm=np.array([row["mm"] for row in walk.threads], np.int32),
            parent=np.array([row["parent"] for row in walk.threads], np.int32),
            start_ns=np.array([row["start_ns"] for row in walk.threads], np.int64) - walk.threads[0]["start_ns"],
        ),
        vmas=_vma_table(walk, regions, vma_flags),
        mm_regions=np.array([len(regions.get(family, ())) for family in walk.mm_family], np.int64),
        page_bytes=int(trace.meta["page_bytes"] or BASE_PAGE_BYTES),
        recorded_fault_around_bytes=int(trace.meta["fault_around_bytes"] or 65536),
        recorded_level=str(trace.meta["level"] or "basic"),
        user_ns=int(trace.meta["user_ns"] or 0),
        system_ns=int(trace.meta["system_ns"] or 0),
        numpy_mms=tuple(sorted(walk.numpy_mms)),
        facts=facts,
    )


def _begin_at_exec(walk: _Walk) -> None:
    """The program begins at its exec, not when the recorder was ready."""
    first_ns = min((t for t, n in zip(walk.calls.t_ns, walk.calls.thread, strict=True) if n == 0), default=0)
    execs = [
        t for t, n, op in zip(walk.calls.t_ns, walk.calls.thread, walk.calls.op, strict=True) if n == 0 and op == EXEC
    ]
    if execs and execs[0] == first_ns and (walk.nr == 0 or walk.touch["t_ns"][0] >= first_ns):
        walk.threads[0]["start_ns"] = first_ns


def _part_strays(walk: _Walk) -> None:
    """Give a thread of its own to what a thread did in an address space that it is not in.

    In a whole trace there is none. Where rows are missing, a tid turns up in another process, or goes on after another
    thread's exec; page numbers of one address space mean nothing in another.
    """
    calls = walk.calls
    call_t_ns, call_thread, call_mm = np.array(calls.t_ns), np.array(calls.thread, np.int32), np.array(calls.mm)
    first_mm = np.array([row["mm"] for row in walk.threads])
    in_mm, calls_in_mm = first_mm[walk.touch_thread], first_mm[call_thread] if len(call_thread) else call_mm
    rank = np.empty(len(call_t_ns), np.int64)  # of a call in time order; at one time in the order of the walk
    rank[np.argsort(call_t_ns, kind="stable")] = np.arange(len(call_t_ns))
    execs: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for i, op in enumerate(calls.op):
        if op == EXEC:
            execs[calls.thread[i]].append((int(rank[i]), calls.t_ns[i], calls.arg[i]))
    by_thread = _group(walk.touch_thread) if execs else {}
    calls_by_thread = _group(call_thread) if execs else {}
    for thread, mine in execs.items():
        mine.sort()
        mms = np.array([first_mm[thread], *(mm for _, _, mm in mine)])
        rows = by_thread.get(thread, np.zeros(0, np.int64))
        in_mm[rows] = mms[np.searchsorted([t for _, t, _ in mine], walk.touch["t_ns"][rows], side="left")]
        rows = calls_by_thread[thread]
        calls_in_mm[rows] = mms[np.searchsorted([r for r, _, _ in mine], rank[rows], side="left")]
    strays: dict[tuple[int, int], int] = {}

    def stray(thread: int, mm: int, t_ns: int) -> int:
        key = (thread, int(mm))
        if key not in strays:
            strays[key] = len(walk.threads)
            walk.threads.append({**walk.threads[thread], "mm": int(mm), "parent": -1, "start_ns": t_ns, "end_ns": -1})
        return strays[key]

    for i in np.flatnonzero(walk.touch_mm != in_mm).tolist():
        walk.touch_thread[i] = stray(int(walk.touch_thread[i]), walk.touch_mm[i], int(walk.touch["t_ns"][i]))
    for i in np.flatnonzero((call_mm >= 0) & (call_mm != calls_in_mm)).tolist():
        calls.thread[i] = stray(calls.thread[i], call_mm[i], calls.t_ns[i])
    if strays:
        walk.inferred["strays"] += len(strays)


def _latest_of_thread(thread: NDArray[Any], t_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """[event] the latest of the times so far of the same thread; threads are together and ascend.

    A call whose thread is not known may be given to one that sleeps just then; its sleep does not end there.
    """
    apart = int(t_ns.max(initial=0)) + 1
    return np.maximum.accumulate(t_ns + thread.astype(np.int64) * apart) - thread.astype(np.int64) * apart


def _group(values: NDArray[Any]) -> dict[int, NDArray[np.int64]]:
    """For each distinct value the rows that have it, in order."""
    order = np.argsort(values, kind="stable")
    distinct, first = np.unique(values[order], return_index=True)
    return {int(v): rows for v, rows in zip(distinct, np.split(order, first[1:]), strict=True)} if len(values) else {}


def _regions(walk: _Walk, vpn: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
    """For each family the regions it touches or maps, in address order."""
    out = {}
    for family in range(walk.families):
        parts = [np.unique(vpn[walk.touch_family == family] >> PMD_ORDER)] if walk.nr else []
        spans = sorted(
            (start // BASE_PAGE_BYTES >> PMD_ORDER, (end - 1) // BASE_PAGE_BYTES >> PMD_ORDER)
            for start, end in walk.ranges[family]
        )
        upto = -1
        for first, last in spans:
            if last > upto:
                parts.append(np.arange(max(first, upto + 1), last + 1))
                upto = last
        out[family] = np.unique(np.concatenate(parts)).astype(np.int64) if parts else np.zeros(0, np.int64)
    return out


def _page_of(table: NDArray[np.int64], vpn: NDArray[np.int64]) -> NDArray[np.int64]:
    """Page numbers of vpns in a table of regions; where a region is missing, the start of the next one."""
    at = np.searchsorted(table, vpn >> PMD_ORDER)
    there = at < len(table)
    there[there] = table[at[there]] == vpn[there] >> PMD_ORDER
    return at * PMD_PAGES + np.where(there, vpn & (PMD_PAGES - 1), 0)


def _call_pages(walk: _Walk, regions: dict[int, NDArray[np.int64]], addresses: list[int]) -> NDArray[np.int64]:
    """Page numbers of calls' addresses (rounded up: ends are exclusive, starts are aligned); 0 for calls without."""
    family = np.array([walk.mm_family[mm] if mm >= 0 else -1 for mm in walk.calls.mm], np.int32)
    vpn = np.array([-(-a // BASE_PAGE_BYTES) for a in addresses], np.int64)
    out = np.zeros(len(vpn), np.int64)
    for number, table in regions.items():
        mine = family == number
        out[mine] = _page_of(table, vpn[mine])
    return out


def _vma_flags(vma: Vma) -> int:
    special = vma.name in ("[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]")
    return (
        (0 if vma.is_file or special else ANON)
        | (WRITABLE if vma.prot & PROT_WRITE else 0)
        | (SHARED if vma.flags & MAP_SHARED else 0)
        | (STACK if vma.name == "[stack]" or vma.flags & MAP_STACK else 0)
        | (NORESERVE if vma.flags & MAP_NORESERVE else 0)
        | (SHMEM if vma.is_shmem else 0)
        | (HEAP if vma.name == "[heap]" else 0)
        | (ADVISED if vma.advice == MADV_HUGEPAGE else 0)
        | (NOHUGE if vma.advice == MADV_NOHUGEPAGE else 0)
        | (RANDOM if vma.access == MADV_RANDOM else 0)
        | (SEQUENTIAL if vma.access == MADV_SEQUENTIAL else 0)
    )


def _vma_table(walk: _Walk, regions: dict[int, NDArray[np.int64]], flags: NDArray[np.int32]) -> Vmas:
    nr = len(walk.row_list)
    start, end = np.zeros(nr + 2, np.int64), np.zeros(nr + 2, np.int64)
    for i, (family, vma) in enumerate(walk.row_list):
        bounds = np.array([vma.start, vma.end], np.uint64) // BASE_PAGE_BYTES
        start[i], end[i] = _page_of(regions[family], bounds.astype(np.int64))
    return Vmas(
        start,
        end,
        np.concatenate([flags[:nr], [ANON | WRITABLE | NOHUGE, WRITABLE]]).astype(np.int32),
        np.full(len(start), NO_CACHE_PAGE, np.int64),  # a trace has no offsets in files
    )


class _Waits:
    """What each stretch off the CPU waited for, as far as the trace tells.

    A thread that was woken by another of the program waits for that one to come to the same point. The trace of level
    full says who woke whom, but for the end of a process; without it, whoever of the same process, its parent or its
    children was awake just then is taken to have done it. What nobody ended was a sleep: I/O, or a timer.
    """

    def __init__(
        self, walk: _Walk, off_cpu: list[_Pause], exits: list[_Moment], wakes: dict[int, list[_Moment]]
    ) -> None:
        self.walk, self.off_cpu, self.wakes = walk, off_cpu, wakes
        self.near: dict[int, set[int]] = defaultdict(set)  # thread -> those that may wake it
        threads_of_pid: dict[int, list[int]] = defaultdict(list)
        for number, row in enumerate(walk.threads):
            threads_of_pid[row["pid"]].append(number)
        for number, row in enumerate(walk.threads):
            self.near[number].update(threads_of_pid[row["pid"]])
            if row["parent"] >= 0:
                self.near[number].add(row["parent"])
                self.near[row["parent"]].add(number)
        self.ends: dict[int, list[_Moment]] = defaultdict(list)
        for t_ns, other in sorted(exits):
            for waiter in self.near[other] - {other}:
                if walk.threads[other]["parent"] == waiter or walk.threads[other]["pid"] == walk.threads[waiter]["pid"]:
                    self.ends[waiter].append((t_ns, other))
        self.sleeps: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for thread, since, until, why in off_cpu:
            if why == "sleep":
                self.sleeps[thread].append((since, until))

    def add(self) -> None:
        """Add a call for each stretch off the CPU."""
        calls, inferred = self.walk.calls, self.walk.inferred
        for thread, since, until, why in self.off_cpu:
            pause = until - since
            if why == "preempt":
                calls.add(since, thread, YIELD, pause_ns=pause)
                continue
            waker, at = self._last(self.wakes, thread, since, until)
            ended, _ = self._last(self.ends, thread, since, until)
            if waker < 0 and ended < 0 and self.walk.basic:
                waker, at = self._awake(thread, until)
            if waker >= 0:
                inferred["waits"] += 1
                calls.add(at, waker, WAKE, arg=thread)
                calls.add(since, thread, WAIT, pause_ns=pause)
            elif ended >= 0:
                inferred["waits"] += 1
                calls.add(since, thread, JOIN, arg=ended, pause_ns=pause)
            else:
                inferred["sleeps"] += 1
                inferred["sleep_ns"] += pause
                calls.add(since, thread, SLEEP, pause_ns=pause)

    def _last(self, moments: dict[int, list[_Moment]], thread: int, since: int, until: int) -> tuple[int, int]:
        """The other thread of the last moment of `thread` in a sleep, and when it was; (-1, 0) if there is none."""
        mine = moments.get(thread, [])
        at = bisect_right(mine, (until, len(self.walk.threads))) - 1
        if at < 0 or mine[at][0] < since:
            return -1, 0
        return mine[at][1], mine[at][0]

    def _awake(self, thread: int, at: int) -> tuple[int, int]:
        """A thread that may have woken `thread` because it was awake just before that time, and when; or (-1, 0)."""
        for other in self.near[thread] - {thread}:
            row = self.walk.threads[other]
            if row["start_ns"] < at and (row["end_ns"] < 0 or at <= row["end_ns"]):
                i = bisect_right(self.sleeps[other], (at, at)) - 1
                if i < 0 or self.sleeps[other][i][1] < at:
                    return other, at
                if self.sleeps[other][i][0] > at - WAKE_UP_NS:
                    return other, self.sleeps[other][i][0] - 1
        return -1, 0


def _kinds(
    walk: _Walk, page: NDArray[np.int64], vma_flags: NDArray[np.int32]
) -> tuple[NDArray[np.uint8], dict[str, Any]]:
    """The kind bits of each touch, and what the touches are in the terms of a report."""
    raw = walk.touch["kind"].astype(np.uint8)
    kind = (raw & KEPT_KIND_BITS) | RECORDED
    flags = np.where(
        walk.touch_vma >= 0,
        vma_flags[np.maximum(walk.touch_vma, 0)],
        np.where(raw & schema.FILE, WRITABLE, ANON | WRITABLE),
    )
    order = np.lexsort((np.arange(walk.nr), page, walk.touch_mm))
    again = np.zeros(walk.nr, bool)  # the row before, in `order`, is the same page of the same address space
    if walk.nr:
        mm, pg = walk.touch_mm[order], page[order]
        again[1:] = (mm[1:] == mm[:-1]) & (pg[1:] == pg[:-1])
    if walk.basic:
        _guess_access(walk, kind, flags, order, again)
    t_ns, thread = walk.touch["t_ns"][order], walk.touch_thread[order]
    raced = np.zeros(walk.nr, bool)
    if walk.nr:
        raced[1:] = again[1:] & (thread[1:] != thread[:-1]) & (t_ns[1:] - t_ns[:-1] < RACE_NS)
    raced &= kind[order] & PROTECTION == 0
    kind[order[raced]] |= RACED
    walk.inferred["raced"] += int(raced.sum())

    anon, write = flags & ANON != 0, kind & WRITE != 0
    copied = write & (kind & PROTECTION != 0) | write & ~anon & (flags & (SHARED | SHMEM) == 0)
    mix = {
        "zero_fill": int((anon & write & ~copied).sum()),
        "cow": int(copied.sum()),
        "zero_page": int((anon & ~write).sum()),
        "file": int((~anon & ~copied).sum()),
    }
    facts = {
        "touches": walk.nr,
        "mix": mix,
        "kernel_mode": int((raw & schema.KERNEL != 0).sum()),
        "inferred": dict(walk.inferred),
        "processes": len({row["pid"] for row in walk.threads}),
        "threads": len(walk.threads),
    }
    return kind.astype(np.uint8), facts


def _guess_access(
    walk: _Walk, kind: NDArray[Any], flags: NDArray[Any], order: NDArray[Any], again: NDArray[Any]
) -> None:
    """Without error codes: a touch writes where the mapping allows it; two on one page are a read, then a write."""
    kind[flags & WRITABLE != 0] |= WRITE
    vma = walk.touch_vma[order]
    same = again.copy()
    same[1:] &= vma[1:] == vma[:-1]
    first = np.zeros(len(order), bool)
    first[:-1] = same[1:] & ~same[:-1]
    second = np.zeros(len(order), bool)
    second[1:] = first[:-1]
    writable = flags[order] & WRITABLE != 0
    kind[order[first & writable]] &= ~np.uint8(WRITE)
    kind[order[second & writable]] |= PROTECTION
    walk.inferred["accesses"] += int((first & writable).sum())
