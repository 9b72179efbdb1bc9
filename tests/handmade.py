"""A trace and a machine small enough to be checked by hand.

One process of one thread. It maps 4 MiB of anonymous memory at a 2 MiB boundary and writes every page of it in order,
one each 10 us; before that it reads one page of a file of 16 pages. Hence

    touches 1025: 1024 anonymous writes, 1 file read

and the faults that remain are 1025 with base pages (linux-6.18), 1024 / 16 + 1 = 65 with blocks of 64 KiB, 2 + 1 = 3
with superpages, 1 when the mapping is populated.
"""

from pathlib import Path

import numpy as np

from firsttouch.machine import Cost, Costs, Machine, ZeroCost, encode
from firsttouch.trace import TraceWriter
from firsttouch.trace.schema import FILE, MAP_PRIVATE, NO_ID, PROT_READ, PROT_WRITE, TABLES, WRITE

PID = 1000
PAGE_BYTES = 4096
ANON_START = 0x7F00_0000_0000
ANON_PAGES = 1024
FILE_START = 0x5600_0000_0000
FILE_PAGES = 16
STEP_NS = 10_000
FAULTS = {"linux-6.18": 1025, "linux-6.18+mthp-64k": 65, "linux-6.18+thp": 3, "linux-6.18+populate": 1}

_NUMPY = {
    "BIGINT": np.int64, "INTEGER": np.int32, "SMALLINT": np.int16, "UBIGINT": np.uint64, "UTINYINT": np.uint8,
    "VARCHAR": object,
}  # fmt: skip


def rows(table: str, *values: tuple[object, ...]) -> dict[str, np.ndarray]:
    """Columns of `table` from rows."""
    columns = list(TABLES[table].items())
    return {name: np.array([row[i] for row in values], dtype=_NUMPY[kind]) for i, (name, kind) in enumerate(columns)}


def touches(number: int = ANON_PAGES, stack_id: int = NO_ID) -> dict[str, np.ndarray]:
    """The file read, then `number` anonymous writes."""
    file_read = (STEP_NS, PID, PID, 0, FILE_START, 0x401000, FILE, 2, stack_id)
    writes = [
        (STEP_NS * (i + 2), PID, PID, 0, ANON_START + i * PAGE_BYTES, 0x401010, WRITE, 1, stack_id)
        for i in range(number)
    ]
    return rows("touch", file_read, *writes)


def write_trace(
    path: Path, *, comm: str = "hand", number: int = ANON_PAGES, stacks: bool = False, **meta: object
) -> Path:
    """The trace of this module's docstring; `meta` replaces values of its meta table."""
    wall_ns = STEP_NS * (number + 2)
    values = {
        "command": [f"./{comm}", "--of", "4MiB"],
        "level": "full",
        "base_pages": True,
        "fault_around_bytes": 65536,
        "page_bytes": PAGE_BYTES,
        "host": {"kernel": "6.18.0", "cpu": "Hand CPU", "nr_cpus": 2, "memory_bytes": 1 << 30, "virtual": "none"},
        "start_monotonic_ns": 0,
        "start_unix_s": 0.0,
        "wall_ns": wall_ns,
        "user_ns": wall_ns // 2,
        "system_ns": wall_ns // 2,
        "minflt": number + 1,
        "majflt": 0,
        "exit": 0,
        "lost": 0,
        **meta,
    }
    with TraceWriter(path) as writer:
        writer.meta(**values)
        chunks = {
            "task": rows(
                "task",
                (0, PID, PID, "exec", NO_ID, comm),
                (wall_ns, PID, PID, "exit", NO_ID, comm),
            ),
            "map": rows(
                "map",
                (
                    1,
                    PID,
                    0,
                    ANON_START,
                    ANON_START + ANON_PAGES * PAGE_BYTES,
                    PROT_READ | PROT_WRITE,
                    MAP_PRIVATE,
                    0,
                    "//anon",
                ),
                (
                    2,
                    PID,
                    0,
                    FILE_START,
                    FILE_START + FILE_PAGES * PAGE_BYTES,
                    PROT_READ,
                    MAP_PRIVATE,
                    0,
                    f"/opt/{comm}",
                ),
            ),
            "touch": touches(number, 0 if stacks else NO_ID),
        }
        if stacks:
            chunks["stack"] = rows("stack", (0, 0, 0x401010), (0, 1, 0x401000))
            chunks["symbol"] = rows(
                "symbol", (PID, 0x401010, "fill", "hand.c", 12), (PID, 0x401000, f"main_{comm}", "hand.c", 3)
            )
        writer.commit(chunks)
    return path


def machine(**changes: object) -> Machine:
    """A machine of round costs: a trap costs 500 ns, zeroing a page 200, and so on."""
    orders = [0.0] + [float(100 << order) for order in range(1, 10)]
    costs = {
        "trap": 500, "alloc": 300, "map_page": 20, "file_map": 300, "copy_page": 400, "unmap_page": 100,
        "populate_page": 600, "line_hot": 1, "line_cold": 5, "lock_handoff": 100, "record_basic": 500,
        "record_full": 900, "syscall": 100,
    }  # fmt: skip
    values = {
        "schema": 1, "name": "round", "summary": "round costs for tests", "nr_cpus": 2, "page_bytes": PAGE_BYTES,
        "line_bytes": 64, "l2_bytes": 1 << 20, "llc_bytes": 32 << 20, "memory_bytes": 1 << 30,
        "cost": Costs(
            alloc_large=orders, unmap_large=orders, **{name: Cost(ns=float(ns)) for name, ns in costs.items()}
        ),
        "zero": {
            method: ZeroCost(bytes=[4096, 2 << 20], hot_ns=[200.0, 102_400.0], cold_ns=[300.0, 153_600.0])
            for method in ("temporal", "nontemporal", "rep_stosb", "line_establish")
        },
    }  # fmt: skip
    return Machine(**{**values, **changes})


def write_machine(path: Path, **changes: object) -> Path:
    """That machine as a file."""
    path.write_bytes(encode(machine(**changes)))
    return path
