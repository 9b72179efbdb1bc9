"""What a user waits for: `whatif` the first time and after, `--help`; and how fast the model replays.

`make bench`. Nothing here asserts a time; README quotes the figures with the machine they were measured on.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from firsttouch import machine, policy
from firsttouch.mm.simulate import simulate
from firsttouch.trace import Trace, TraceWriter
from firsttouch.trace.schema import MAP_PRIVATE, NO_ID, PROT_READ, PROT_WRITE, TABLES, WRITE
from firsttouch.workload.from_trace import from_trace

NR_TOUCHES = 200_000
PAGE_BYTES = 4096
START = 0x7F00_0000_0000
MACHINE = "vm-2cpu-zen4"
POLICIES = (
    "linux-6.18,+thp-madvise,+thp,+mthp-16k,+mthp-32k,+mthp-64k,+mthp-128k,+mthp-256k,+mthp-512k,+mthp-1024k,+populate,"
    "+prezero-4k"
)
FIRSTTOUCH = [sys.executable, "-m", "firsttouch"]


def write_trace(path: Path, number: int) -> Path:
    """`number` pages of one mapping, written in order by one thread, 2 us apart."""
    wall_ns = 2000 * (number + 2)
    with TraceWriter(path) as writer:
        writer.meta(
            command=["bench"], level="full", base_pages=True, fault_around_bytes=65536, page_bytes=PAGE_BYTES, host={},
            start_monotonic_ns=0, start_unix_s=0.0, wall_ns=wall_ns, user_ns=wall_ns // 2, system_ns=wall_ns // 2,
            minflt=number, majflt=0, exit=0, lost=0,
        )  # fmt: skip
        one, step = np.ones(number, np.int32), np.arange(number, dtype=np.uint64)
        touch = {
            "t_ns": (step.astype(np.int64) + 1) * 2000, "pid": one, "tid": one, "cpu": 0 * one.astype(np.int16),
            "vaddr": np.uint64(START) + step * np.uint64(PAGE_BYTES), "ip": 0 * step,
            "kind": np.full(number, WRITE, np.uint8), "map_id": one, "stack_id": NO_ID * one,
        }  # fmt: skip
        end = START + number * PAGE_BYTES
        mapping = (1, 1, 0, START, end, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0, "//anon")
        task = [(0, 1, 1, "exec", NO_ID, "bench"), (wall_ns, 1, 1, "exit", NO_ID, "bench")]
        writer.commit({"touch": touch, "map": rows("map", [mapping]), "task": rows("task", task)})
    return path


def rows(table: str, values: list[tuple[object, ...]]) -> dict[str, np.ndarray]:
    unsigned = {name for name, kind in TABLES[table].items() if kind.startswith("U")}
    columns = {}
    for i, name in enumerate(TABLES[table]):
        column = [row[i] for row in values]
        columns[name] = np.array(
            column, np.uint64 if name in unsigned else object if isinstance(column[0], str) else np.int64
        )
    return columns


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trace(tmp_path_factory.mktemp("bench") / "bench.ftt", NR_TOUCHES)


def whatif(trace: Path, cache: Path | None = None) -> None:
    environment = {**os.environ, **({"XDG_CACHE_HOME": str(cache)} if cache else {})}
    command = [*FIRSTTOUCH, "whatif", str(trace), "--machine", MACHINE, "--policies", POLICIES]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)


def test_whatif_first_run_with_compilation(benchmark, trace: Path, tmp_path: Path) -> None:
    benchmark.pedantic(whatif, args=(trace, tmp_path / "cache"), rounds=1)


def test_whatif_later_runs(benchmark, trace: Path) -> None:
    benchmark.pedantic(whatif, args=(trace,), rounds=3, warmup_rounds=1)


def test_help(benchmark) -> None:
    benchmark.pedantic(lambda: subprocess.run([*FIRSTTOUCH, "--help"], check=True, capture_output=True), rounds=5)


def test_replay_of_linux_6_18(benchmark, trace: Path) -> None:
    with Trace(trace) as opened:
        workload = from_trace(opened)
    here, base = machine.load(MACHINE), policy.load("linux-6.18")
    benchmark.pedantic(simulate, args=(workload, here, base), rounds=5, warmup_rounds=1)
    benchmark.extra_info["touches_per_s"] = round(workload.nr_touches / benchmark.stats.stats.median)
