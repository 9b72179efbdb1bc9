"""What recording costs the recorded program, next to perf, in one run: python benchmarks/bench_record.py [ROUNDS].

The program touches fresh memory as fast as it can, on every CPU. "perf record" is of the event page-faults, as level
basic records it; "the tracepoint" is perf's record of exceptions:page_fault_user, which level full has beside others.
Runs are interleaved in an order drawn anew each round (`turns.py`), so that a disturbance of the machine, and what a
run leaves behind, falls on all of them; the figures are medians. The wall time is by the program's own clock.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from turns import turns

from firsttouch.errors import FirsttouchError
from firsttouch.record.recorder import record

MIB_PER_CPU = 400
ROUNDS = 5
PROGRAM = """
import mmap, os, sys, time
begin = time.perf_counter()
for _ in range(os.cpu_count()):
    if os.fork() == 0:
        for _ in range(4):
            memory = mmap.mmap(-1, {mib} << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            for at in range(0, {mib} << 20, 4096):
                memory[at] = 1
            memory.close()
        os._exit(0)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
open(sys.argv[1], "w").write(str(time.perf_counter() - begin))
"""
COMMAND = [sys.executable, "-I", "-S", "-c", PROGRAM.format(mib=MIB_PER_CPU)]
NO_THP = "import ctypes, os, sys; ctypes.CDLL(None).prctl(41, 1, 0, 0, 0); os.execvp(sys.argv[1], sys.argv[1:])"
TRACEFS = ["unshare", "-m", "sh", "-c", 'mount -t tracefs nodev /sys/kernel/tracing && exec "$@"', "sh"]


def wall_s(run: Callable[[list[str]], None], folder: Path) -> float:
    """Wall time by the program's own clock, when `run` has run it."""
    note = folder / "wall"
    run([*COMMAND, str(note)])
    return float(note.read_text())


def bare(command: list[str]) -> None:
    """With THP off, as `record` runs it."""
    subprocess.run([sys.executable, "-I", "-S", "-c", NO_THP, *command], check=True, capture_output=True)


def under(prefix: list[str], command: list[str]) -> None:
    """With THP off, beneath another program."""
    bare([*prefix, *command])


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    perf = shutil.which("perf")
    walls: dict[str, list[float]] = {}
    lost: dict[str, int] = {}
    faults = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if perf is None:
            print("no perf on this machine: no comparison with it")
        perf_record = ["perf", "record", "-c", "1", "-d", "-o", str(folder / "perf.data"), "-e"]
        perfs = {"perf record": [*perf_record, "page-faults", "--"]}
        if os.geteuid() == 0:
            perfs["the tracepoint"] = [*TRACEFS, *perf_record, "exceptions:page_fault_user", "--"]
        wall_s(bare, folder)  # warm what the host may have taken back
        names = ["bare", *(perfs if perf is not None else []), "basic", "full"]
        for _, name in turns(names, rounds):
            try:
                if name in ("basic", "full"):
                    done = record([*COMMAND, str(folder / "wall")], folder / "bench.ftt", level=name, force=True)
                    wall = float((folder / "wall").read_text())
                    lost[name] = lost.get(name, 0) + done.lost
                    faults = done.minflt
                else:
                    wall = wall_s(partial(under, perfs.get(name, [])), folder)
            except FirsttouchError as error:
                print(f"{name}: {error.message}")
            except (subprocess.CalledProcessError, ValueError) as error:
                print(f"{name}: perf does not run here: {error}")
            else:
                walls.setdefault(name, []).append(wall)
    alone = statistics.median(walls["bare"])
    print(f"{faults} faults on {os.cpu_count()} CPUs, {rounds} rounds, medians")
    print(f"{'':15} {'wall_s':>8} {'x bare':>8} {'x perf':>8} {'added_ns':>9} {'lost':>6}   low..high")
    reference = statistics.median(walls["perf record"]) if walls.get("perf record") else float("nan")
    for name in names:
        if not (values := walls.get(name)):
            continue
        median = statistics.median(values)
        added_ns = (median - alone) * 1e9 * (os.cpu_count() or 1) / max(1, faults)
        print(
            f"{name:15} {median:8.3f} {median / alone:8.3f} {median / reference:8.3f} {added_ns:9.0f} "
            f"{lost.get(name, 0):6}   {min(values):.3f}..{max(values):.3f}"
        )


if __name__ == "__main__":
    main()
