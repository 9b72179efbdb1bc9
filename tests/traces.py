"""Traces written row by row, for tests of what is made of them."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from handmade import PAGE_BYTES, rows

from firsttouch.trace import Trace, TraceWriter
from firsttouch.trace.schema import MAP_PRIVATE, NO_ID, PROT_READ, PROT_WRITE, TABLES

RW = PROT_READ | PROT_WRITE
A = 0x1000_0000  # at a region's start, as is
B = 0x2000_0000
META = {
    "command": ["x"], "base_pages": True, "fault_around_bytes": 65536, "page_bytes": PAGE_BYTES, "host": {},
    "start_monotonic_ns": 0, "start_unix_s": 0.0, "wall_ns": 1_000_000, "user_ns": 0, "system_ns": 0, "minflt": 0,
    "majflt": 0, "exit": 0, "lost": 0,
}  # fmt: skip


class Rows:
    """Rows of a trace. Ranges are an address and a number of pages; pid 10 and its first thread if not said."""

    def __init__(self):
        self.tables = defaultdict(list)
        self.nr_maps = 0

    def touch(self, t_ns, vaddr, kind=0, pid=10, tid=None):
        self.tables["touch"].append((t_ns, pid, tid or pid, 0, vaddr, 0x400, kind, NO_ID, NO_ID))

    def map(self, t_ns, start, nr, *, prot=RW, flags=MAP_PRIVATE, name="//anon", pid=10):
        self.nr_maps += 1
        self.tables["map"].append((self.nr_maps, pid, t_ns, start, start + nr * PAGE_BYTES, prot, flags, 0, name))

    def unmap(self, t_ns, start, nr, how="munmap", to=0, to_nr=0, pid=10):
        row = (pid, t_ns, start, start + nr * PAGE_BYTES, how, to, to + to_nr * PAGE_BYTES)
        self.tables["unmap"].append(row)

    def advice(self, t_ns, start, nr, advice, pid=10):
        self.tables["advice"].append((pid, t_ns, start, start + nr * PAGE_BYTES, advice))

    def task(self, t_ns, event, *, pid=10, tid=None, parent=0):
        self.tables["task"].append((t_ns, pid, tid or pid, event, parent, "x"))

    def trace(self, path, level="full", **meta):
        """The rows as a file."""
        path.unlink(missing_ok=True)
        with TraceWriter(path) as writer:
            writer.meta(**{**META, "level": level, **meta})
            writer.commit({name: rows(name, *values) for name, values in self.tables.items()})
        return Trace(path)

    def in_memory(self, level="full", **meta):
        """The rows as what a Trace would return, a hundred times as fast."""
        return InMemory({name: rows(name, *self.tables[name]) for name in TABLES}, {**META, "level": level, **meta})


@dataclass
class InMemory:
    """The part of `Trace` that a workload is made from."""

    tables: dict
    meta: dict
    path: Path = Path("memory.ftt")

    def table(self, name, order_by=""):
        columns = self.tables[name]
        order = np.argsort(columns[order_by], kind="stable") if order_by else slice(None)
        return {column: values[order] for column, values in columns.items()}
