"""Traces written row by row, for tests of what is made of them."""

from collections import defaultdict

from handmade import PAGE_BYTES, rows

from firsttouch.trace import Trace, TraceWriter
from firsttouch.trace.schema import MAP_PRIVATE, NO_ID, PROT_READ, PROT_WRITE

RW = PROT_READ | PROT_WRITE
A = 0x1000_0000  # at a region's start, as is
B = 0x2000_0000


class Rows:
    """Rows of a trace. Ranges are an address and numbers of pages; pid 10 and its first thread are meant if not said."""

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
        path.unlink(missing_ok=True)
        values = {
            "command": ["x"], "level": level, "base_pages": True, "fault_around_bytes": 65536,
            "page_bytes": PAGE_BYTES, "host": {}, "start_monotonic_ns": 0, "start_unix_s": 0.0, "wall_ns": 1_000_000,
            "user_ns": 0, "system_ns": 0, "minflt": 0, "majflt": 0, "exit": 0, "lost": 0,
        }  # fmt: skip
        with TraceWriter(path) as writer:
            writer.meta(**{**values, **meta})
            writer.commit({name: rows(name, *values) for name, values in self.tables.items()})
        return Trace(path)
