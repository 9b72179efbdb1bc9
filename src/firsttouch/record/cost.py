"""What recording adds to each fault of the recorded program, measured: the same touches with and without it."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from firsttouch.errors import NotHere
from firsttouch.machine import Cost

NR_PAIRS = 7
PAGES = 8192
ROUNDS = 6  # in one run; the first warms the memory, the fastest of the others counts
_PROGRAM = """
import ctypes, mmap, sys, time
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)
pages, rounds = int(sys.argv[1]), int(sys.argv[2])
page = mmap.PAGESIZE
times = []
for _ in range(rounds):
    memory = mmap.mmap(-1, pages * page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    begin = time.perf_counter_ns()
    for at in range(0, pages * page, page):
        memory[at] = 1
    times.append(time.perf_counter_ns() - begin)
    memory.close()
with open(sys.argv[3], "w") as file:
    file.write(str(min(times[1:]) / pages))
"""


def record_cost_ns(level: str) -> Cost | None:
    """Nanoseconds that recording at `level` ("basic" or "full") adds to a fault; None where it is not allowed.

    Runs with and without alternate; the cost is the median of the differences of neighbours, low and high their
    quartiles.
    """
    from firsttouch.record.recorder import record

    differences = []
    with tempfile.TemporaryDirectory(prefix="firsttouch-") as name:
        note = Path(name) / "ns"
        command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(PAGES), str(ROUNDS), str(note)]
        for _ in range(NR_PAIRS):
            subprocess.run(command, check=True)
            alone_ns = float(note.read_text())
            try:
                record(command, Path(name) / "cost.ftt", level=level, force=True)
            except NotHere:
                return None
            differences.append(float(note.read_text()) - alone_ns)
    low, median, high = (max(0.0, value) for value in statistics.quantiles(differences, n=4))
    source = f"measured: {NR_PAIRS} pairs of runs of {PAGES} faults, with and without, median and quartiles"
    return Cost(ns=median, low=low, high=high, source=source)
