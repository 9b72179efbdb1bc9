"""From decoded rows of all rings to the tables of a trace.

Rows of a flush are put in time order; those newer than the time the look at the rings began are held back for the
next flush, because another ring may still give older ones. A sample that names only its thread gets the process that
the records before it give that thread. Each touch then gets the mapping it falls in: one VmaMap per process follows
the mappings in time, and the touches between two changes are looked up together.

Invariants:
  A1  a row is in exactly one flush, and flushes are in time order
  A2  a map_id is given out once; a touch's map_id names the last map row that covers it, or is NO_ID
  A3  off-CPU rows come in pairs (sleep or preempt, then run) of at least OFF_CPU_NS, or not at all
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firsttouch.trace import decode
from firsttouch.trace.decode import Chunk, Rows, join, pick, record_bytes
from firsttouch.trace.raw import Header, Mapping, Process
from firsttouch.trace.schema import FILE, MAP_STACK, NO_ID, TABLES
from firsttouch.trace.stacks import Place, StackTable, stack_ids
from firsttouch.trace.vma import MADV_NOHUGEPAGE, VmaMap

OFF_CPU_NS = 20_000  # shorter absences are not written
STACK_EXPAND_BYTES = 128 << 10  # exec grows the new stack by this much and tells nobody (setup_arg_pages)
_END_OF_TIME = np.iinfo(np.int64).max
_MAP_BODY = struct.Struct("<QQQ")
_DTYPES = {
    "BIGINT": np.int64, "INTEGER": np.int32, "SMALLINT": np.int16, "UBIGINT": np.uint64, "UTINYINT": np.uint8,
    "VARCHAR": object,
}  # fmt: skip


class Assembler:
    """Collects chunks; `take()` gives the rows to commit."""

    def __init__(self, header: Header) -> None:
        self.start_ns = header.start_ns
        self.page_bytes = header.page_bytes
        self.stacks = StackTable() if header.stacks else None
        self.nr_touches = 0
        self.nr_pending = 0  # rows of `touch` not taken yet
        self.threads: set[int] = set()
        self.alive: dict[int, int] = {}  # pid -> live threads
        self.exec_ns: dict[int, int] = {}  # pid -> first exec
        self.exit_ns: dict[int, int] = {}  # tid -> exit
        self._stack_bytes = header.stack_bytes
        self._texts: dict[int, Any] = {}
        self._next_text = 0
        self._held: list[Rows] = []
        self._off: Rows | None = None
        self._spaces: dict[int, VmaMap] = {}
        self._brk: dict[int, int] = {}
        self._fresh: set[int] = set()  # exec'd, and the stack's mapping not seen yet
        self._mremap: dict[int, list[int]] = {}
        self._stack_maps: dict[int, int] = {}  # tid -> length of the mmap(MAP_STACK) it is in
        self._pid_of: dict[int, int] = {}  # tid -> pid
        self._pgoff: list[tuple[int, int]] = []  # [map_id] (start, pgoff_bytes)
        self._lists: dict[str, list[tuple[Any, ...]]] = {name: [] for name in TABLES}
        self._touches: list[dict[str, NDArray[Any]]] = []

    def take_chunk(self, chunk: Chunk) -> Rows:
        """Rows that no longer need the chunk's bytes."""
        rows = chunk.rows
        for i in np.flatnonzero((rows.what == decode.MMAP) | (rows.what == decode.COMM)).tolist():
            record = record_bytes(chunk.words, int(rows.args[i, 0]))
            text = parse_mmap2(record) if rows.what[i] == decode.MMAP else parse_comm(record)
            self._texts[self._next_text] = text
            rows.args[i, 0] = self._next_text
            self._next_text += 1
        if self.stacks:
            self.stacks.number(chunk)
        return rows

    def flush(self, batch: Iterable[Rows], cut_ns: int = _END_OF_TIME) -> None:
        """Assemble all rows up to `cut_ns` and hold the others back."""
        parts = [part for part in (*self._held, *batch) if len(part.t_ns)]
        if not parts:
            return
        rows = join(parts)
        order = np.argsort(rows.t_ns, kind="stable")
        nr = int(np.searchsorted(rows.t_ns[order], cut_ns, side="right"))
        self._held = [pick(rows, order[nr:])] if nr < len(order) else []
        order = order[:nr]
        self._assemble(pick(rows, order))

    def add_process(self, t_ns: int, process: Process) -> None:
        """A process that runs already; told of it again, what is new of its mappings and threads."""
        pid = process.pid
        known = {(vma.start, vma.end, vma.name) for vma in self._spaces[pid].vmas} if pid in self._spaces else set()
        for mapping in process.mappings:
            if (mapping[0], mapping[1], mapping[5]) not in known:
                self._map(pid, t_ns, mapping)
        for tid, comm in process.threads:
            if tid not in self._pid_of:
                self.threads.add(tid)
                self._pid_of[tid] = pid
                self.alive[pid] = self.alive.get(pid, 0) + 1
                self._task(t_ns, pid, tid, "comm", 0, comm)

    def take(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Rows assembled since the last call, as the trace writer wants them."""
        if self.stacks:
            self._lists["stack"] += self.stacks.take_new()
        chunks = {name: columns_of(name, rows) for name, rows in self._lists.items() if rows}
        if self._touches:
            chunks["touch"] = {name: np.concatenate([part[name] for part in self._touches]) for name in TABLES["touch"]}
        self._lists = {name: [] for name in TABLES}
        self._touches = []
        self.nr_pending = 0
        return chunks

    def take_symbols(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Rows of table `symbol`, at the end."""
        rows = self.stacks.symbols() if self.stacks else []
        return {"symbol": columns_of("symbol", rows)} if rows else {}

    def _assemble(self, rows: Rows) -> None:
        self._name_processes(rows)
        touch = np.flatnonzero((rows.what == decode.TOUCH) & (rows.pid > 0))
        ids = stack_ids(rows.args[touch, 2]) if self.stacks else np.full(len(touch), NO_ID, np.int32)
        finder = _Finder(self, rows, touch, ids)
        state = np.flatnonzero(rows.what >= decode.MMAP)
        columns = zip(
            state.tolist(), rows.what[state].tolist(), rows.t_ns[state].tolist(), rows.pid[state].tolist(),
            rows.tid[state].tolist(), rows.args[state].tolist(), strict=True,
        )  # fmt: skip
        for at, what, t_ns, pid, tid, args in columns:
            if pid > 0:
                self._change(finder, at, what, t_ns, pid, tid, args)
        finder.finish()
        if len(touch):
            self._add_touches(rows, touch, finder)
        self._off_cpu(rows)

    def _name_processes(self, rows: Rows) -> None:
        """Put the process into rows of samples that name only their thread; one nobody told of is its own leader."""
        unknown = np.flatnonzero(rows.pid == decode.NO_PID)
        if not len(unknown):
            return
        told = np.flatnonzero((rows.pid > 0) & (rows.tid > 0))
        told = told[np.argsort(rows.tid[told], kind="stable")]  # of each thread, in time order
        nr = len(rows.pid) + 1
        tids = rows.tid[unknown].astype(np.int64)
        last = np.searchsorted(rows.tid[told] * np.int64(nr) + told, tids * nr + unknown) - 1
        before, at = np.unique(tids, return_inverse=True)
        rows.pid[unknown] = np.array([self._pid_of.get(tid, tid) for tid in before.tolist()], np.int32)[at]
        if len(told):
            here = (last >= 0) & (rows.tid[told[last]] == tids)
            rows.pid[unknown[here]] = rows.pid[told[last[here]]]

    def _add_touches(self, rows: Rows, touch: NDArray[np.int64], finder: _Finder) -> None:
        self._touches.append(
            {
                "t_ns": rows.t_ns[touch] - self.start_ns, "pid": rows.pid[touch], "tid": rows.tid[touch],
                "cpu": rows.cpu[touch], "vaddr": rows.args[touch, 0], "ip": rows.args[touch, 1],
                "kind": rows.kind[touch] | finder.file_bit, "map_id": finder.map_id, "stack_id": finder.stack_id,
            }
        )  # fmt: skip
        self.nr_touches += len(touch)
        self.nr_pending += len(touch)
        self.threads.update(np.unique(rows.tid[touch]).tolist())

    def _change(self, finder: _Finder, at: int, what: int, t_ns: int, pid: int, tid: int, args: list[int]) -> None:
        """One record that changes mappings or tasks, in time order."""
        if what == decode.MMAP:
            finder.upto(pid, at)
            self._map(pid, t_ns, self._texts.pop(args[0]))
        elif what == decode.COMM:
            comm = self._texts.pop(args[0])
            self._begin(pid, tid)
            if args[1] & decode.MISC_COMM_EXEC:
                finder.upto(pid, at)
                self._spaces[pid] = VmaMap()
                self._brk.pop(pid, None)
                self._fresh.add(pid)
                self.alive[pid] = 1
                self.exec_ns.setdefault(pid, t_ns)
                self._task(t_ns, pid, tid, "exec", 0, comm)
            else:
                self._task(t_ns, pid, tid, "comm", 0, comm)
        elif what == decode.FORK:
            self._fork(finder, at, t_ns, pid, tid, args[0], args[1])
        elif what == decode.EXIT:
            self._exit(finder, at, t_ns, pid, tid, args[1])
        else:
            self._syscall(finder, at, what, t_ns, pid, tid, args)

    def _fork(self, finder: _Finder, at: int, t_ns: int, pid: int, tid: int, ppid: int, parent: int) -> None:
        self._task(t_ns, pid, tid, "fork", parent, "")
        if pid != ppid:
            finder.upto(pid, at)  # a pid used before
            self.alive[pid] = 0
            if ppid in self._spaces:
                self._spaces[pid] = self._spaces[ppid].copy()
            if ppid in self._brk:
                self._brk[pid] = self._brk[ppid]
        self._begin(pid, tid)
        if pid == ppid:
            self.alive[pid] = self.alive.get(pid, 0) + 1

    def _begin(self, pid: int, tid: int) -> None:
        self.threads.add(tid)
        self._pid_of[tid] = pid
        self.exit_ns.pop(tid, None)
        if self.alive.get(pid, 0) == 0:
            self.alive[pid] = 1

    def _exit(self, finder: _Finder, at: int, t_ns: int, pid: int, tid: int, parent: int) -> None:
        self._task(t_ns, pid, tid, "exit", parent, "")
        self.exit_ns[tid] = t_ns
        self.alive[pid] = self.alive.get(pid, 1) - 1
        if self.alive[pid] <= 0:
            finder.upto(pid, at)
            del self.alive[pid]
            self._spaces.pop(pid, None)
            self._brk.pop(pid, None)

    def _syscall(self, finder: _Finder, at: int, what: int, t_ns: int, pid: int, tid: int, args: list[int]) -> None:
        if what == decode.MUNMAP:
            self._unmap(finder, at, t_ns, pid, args[0], self._page_up(args[0] + args[1]), "munmap")
        elif what == decode.MADVISE:
            end = self._page_up(args[0] + args[1])
            if end < 1 << 63:
                self._lists["advice"].append((pid, t_ns - self.start_ns, args[0], end, args[2] & 0x7FFFFFFF))
        elif what == decode.BRK:
            before = self._page_up(self._brk.get(pid, 0))
            after = self._page_up(args[0])
            self._brk[pid] = args[0]
            if after < before:
                self._unmap(finder, at, t_ns, pid, after, before, "brk")
        elif what == decode.MMAP_CALL:
            if args[1] & MAP_STACK:
                self._stack_maps[tid] = args[0]
        elif what == decode.MMAP_EXIT:
            length = self._stack_maps.pop(tid, 0)
            if length and args[0] < 1 << 63:
                # The kernel makes such a mapping VM_NOHUGEPAGE, as madvise would.
                end = self._page_up(args[0] + length)
                self._lists["advice"].append((pid, t_ns - self.start_ns, args[0], end, MADV_NOHUGEPAGE))
        elif what == decode.WAKING:
            woken = args[0] & 0x7FFFFFFF
            if woken in self._pid_of and woken != tid:
                self._task(t_ns, self._pid_of[woken], woken, "wake", tid, "")
        elif what == decode.MREMAP:
            self._mremap[tid] = args
        elif what == decode.MREMAP_EXIT:
            old = self._mremap.pop(tid, None)
            if old is not None and old[1] and args[0] < 1 << 63:
                to = (args[0], self._page_up(args[0] + old[2]))
                self._unmap(finder, at, t_ns, pid, old[0], self._page_up(old[0] + old[1]), "mremap", to)

    def _unmap(
        self,
        finder: _Finder,
        at: int,
        t_ns: int,
        pid: int,
        start: int,
        end: int,
        how: str,
        to: tuple[int, int] = (0, 0),
    ) -> None:
        if not start < end < 1 << 63:
            return
        finder.upto(pid, at)
        self._lists["unmap"].append((pid, t_ns - self.start_ns, start, end, how, *to))
        space = self._spaces.get(pid)
        if space is None:
            return
        if how == "mremap":
            space.move(start, end, *to)
        else:
            space.unmap(start, end)

    def _map(self, pid: int, t_ns: int, mapping: Mapping) -> None:
        start, end, pgoff, prot, flags, name = mapping
        if name == "[stack]" and pid in self._fresh:
            self._fresh.discard(pid)
            start -= STACK_EXPAND_BYTES
        map_id = len(self._pgoff)
        self._pgoff.append((start, pgoff))
        self._spaces.setdefault(pid, VmaMap()).map(start, end, map_id, prot, flags, name)
        self._lists["map"].append((map_id, pid, t_ns - self.start_ns, start, end, prot, flags, pgoff, name))

    def _task(self, t_ns: int, pid: int, tid: int, event: str, parent: int, comm: str) -> None:
        self._lists["task"].append((t_ns - self.start_ns, pid, tid, event, parent, comm))

    def _page_up(self, address: int) -> int:
        return -(-address // self.page_bytes) * self.page_bytes

    def _place(self, pid: int, address: int) -> Place | None:
        """The file and the offset in it at an address of a process."""
        space = self._spaces.get(pid) if 0 < address < 1 << 63 else None
        at = int(space.find(np.array([address], np.uint64))[0]) if space else -1
        if space is None or at < 0 or not space.vmas[at].name.startswith("/") or not space.vmas[at].is_file:
            return None
        start, pgoff = self._pgoff[space.vmas[at].map_id]
        return space.vmas[at].name, address - start + pgoff

    def locate(self, pid: int, ids: NDArray[np.int32]) -> None:
        """Note where the addresses of the call chains `ids` of a process lie, as it is mapped now."""
        if self.stacks:
            self.stacks.locate(pid, ids[ids >= 0], self._place)

    def find(self, pid: int, t_ns: int, addresses: NDArray[np.uint64]) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """map_id and FILE bit of addresses of one process at one time; a stack grows downwards to what it is asked."""
        space = self._spaces.get(pid)
        if space is None:
            return np.full(len(addresses), NO_ID, np.int32), np.zeros(len(addresses), np.uint8)
        at = space.find(addresses)
        if np.any(at < 0) and self._grow_stack(space, pid, t_ns, addresses[at < 0]):
            at = space.find(addresses)
        map_id = np.array([*(vma.map_id for vma in space.vmas), NO_ID], np.int32)
        is_file = np.array([*(FILE if vma.is_file else 0 for vma in space.vmas), 0], np.uint8)
        return map_id[at], is_file[at]

    def _grow_stack(self, space: VmaMap, pid: int, t_ns: int, addresses: NDArray[np.uint64]) -> bool:
        """The kernel grows the main stack down to a touch that has it as the next mapping above."""
        for i, vma in enumerate(space.vmas):
            if vma.name == "[stack]":
                below = max(space.vmas[i - 1].end if i else 0, vma.end - self._stack_bytes)
                mine = addresses[(addresses >= np.uint64(below)) & (addresses < np.uint64(vma.start))]
                if not len(mine):
                    return False
                start = int(mine.min()) // self.page_bytes * self.page_bytes
                self._map(pid, t_ns, (start, vma.end, 0, vma.prot, vma.flags, vma.name))
                return True
        return False

    def _off_cpu(self, rows: Rows) -> None:
        """Pairs of leaving a CPU and being on one again, per thread, that were far enough apart."""
        switch = np.flatnonzero((rows.what == decode.SWITCH) & (rows.tid > 0))
        part = pick(rows, switch)
        if self._off is not None:
            part = join((self._off, part))
        if not len(part.t_ns):
            return
        order = np.lexsort((part.t_ns, part.tid))
        tid, kind, t_ns, pid = part.tid[order], part.kind[order], part.t_ns[order], part.pid[order]
        same = tid[:-1] == tid[1:]
        pair = np.flatnonzero(
            same & (kind[:-1] != decode.RUN) & (kind[1:] == decode.RUN) & (t_ns[1:] - t_ns[:-1] >= OFF_CPU_NS)
        )
        names = {decode.SLEEP: "sleep", decode.PREEMPT: "preempt"}
        out = []
        for p, k, left, back, process in zip(
            tid[pair].tolist(), kind[pair].tolist(), t_ns[pair].tolist(), t_ns[pair + 1].tolist(), pid[pair].tolist(),
            strict=True,
        ):  # fmt: skip
            out.append((left - self.start_ns, process, p, names[k], 0, ""))
            out.append((back - self.start_ns, process, p, "run", 0, ""))
        self._lists["task"] += out
        last = np.append(~same, True) & (kind != decode.RUN)
        for i in np.flatnonzero(last).tolist():
            last[i] = int(tid[i]) not in self.exit_ns
        self._off = pick(part, order[last])


class _Finder:
    """Looks up the touches of one flush, each process's up to its next change of mappings."""

    def __init__(self, assembler: Assembler, rows: Rows, touch: NDArray[np.int64], stack_id: NDArray[np.int32]) -> None:
        self.stack_id = stack_id
        self._assembler = assembler
        self._rows = rows
        self._touch = touch
        self.map_id = np.full(len(touch), NO_ID, np.int32)
        self.file_bit = np.zeros(len(touch), np.uint8)
        pids = rows.pid[touch]
        self._of = {int(pid): np.flatnonzero(pids == pid) for pid in np.unique(pids)}
        self._done = dict.fromkeys(self._of, 0)

    def upto(self, pid: int, at: int) -> None:
        """Look up what `pid` touched before row `at`."""
        mine = self._of.get(pid)
        if mine is None:
            return
        done = self._done[pid]
        if done == len(mine) or self._touch[mine[done]] >= at:
            return
        end = int(np.searchsorted(self._touch[mine], at)) if at < len(self._rows.t_ns) else len(mine)
        part = mine[done:end]
        rows = self._touch[part]
        t_ns = int(self._rows.t_ns[rows[0]])
        self.map_id[part], self.file_bit[part] = self._assembler.find(pid, t_ns, self._rows.args[rows, 0])
        self._assembler.locate(pid, self.stack_id[part])
        self._done[pid] = end

    def finish(self) -> None:
        """Look up the rest."""
        for pid in self._of:
            self.upto(pid, len(self._rows.t_ns))


def columns_of(table: str, rows: list[tuple[Any, ...]]) -> dict[str, NDArray[Any]]:
    """Arrays of a table's columns from tuples in the order of the schema."""
    columns: dict[str, NDArray[Any]] = {}
    for (name, kind), values in zip(TABLES[table].items(), zip(*rows, strict=True), strict=True):
        columns[name] = np.array(values, _DTYPES[kind])
    return columns


def parse_mmap2(record: bytes) -> Mapping:
    """Body of a PERF_RECORD_MMAP2."""
    start, size, pgoff = _MAP_BODY.unpack_from(record, 16)
    prot, flags = struct.unpack_from("<II", record, 64)
    return start, start + size, pgoff, prot, flags, _text(record[72:])


def parse_comm(record: bytes) -> str:
    """Name in a PERF_RECORD_COMM."""
    return _text(record[16:])


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "replace")
