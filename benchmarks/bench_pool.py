"""NumPy on the pool, on glibc as it is and tuned, and on other allocators: one process a configuration, interleaved.

    python benchmarks/bench_pool.py --idle --json docs/measured/pool.json   # all of it: half an hour, a quiet machine
    python benchmarks/bench_pool.py --quick                                 # four sizes, two rounds
    python benchmarks/bench_pool.py --only ops,busy --cpu                   # some parts; CPU time instead of wall time

`make pool-numbers` runs the first, and has `pool_page.py` put what it stored into docs/pool.md and README.md.

Each round runs every configuration once, in an order drawn anew; a configuration's figure is the median over rounds of
the median of its repetitions. A ratio above 1 is faster than glibc as it is. Peers are loaded by LD_PRELOAD where
Debian has put them: apt-get install libjemalloc2 libmimalloc2.0 libtcmalloc-minimal4.

ops     operands are made before the pool is installed; it has 2 GiB mapped and zeroed, as peers have what they keep.
        Every configuration rests before each operation and size, and then repeats it without rest, up to 1 GiB in all
never   64 MiB of zeros again and again, without any rest for a scrubber
small   arrays of ten numbers, the pool's functions and NumPy's own put in turn into one process
install what an install takes whose code is compiled already
busy    a foreground that never idles, in one process: with memory to be scrubbed, and without, in turn
program three programs from start to end, as they are and under `python -m firsttouch.pool`
idle    256 MiB of zeros after 15 s of sleep
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import platform
import statistics
import subprocess
import sys
import time

from turns import turns

MIB = 1 << 20
SIZES = (1, 2, 3, 4, 8, 16, 24, 32, 64, 256)
QUICK_SIZES = (3, 8, 32, 128)
OPS = ("zeros+touch", "zeros+fill", "a+b", "hypot")
PARTS = ("ops", "never", "small", "install", "busy", "program", "idle")
BUSY = ("stream", "llc", "matmul")
PROGRAMS = ("images", "sales", "waves")
HERE = os.path.dirname(os.path.abspath(__file__))
POPULATED = 2 << 30
REST_S = 0.15
GLIBC_TUNED = (
    "glibc.malloc.mmap_threshold=8589934592:glibc.malloc.trim_threshold=8589934592:glibc.malloc.top_pad=67108864"
)


def _library(name: str) -> str:
    found = sorted(glob.glob(f"/usr/lib/*/lib{name}.so*"))
    return found[0] if found else ""


def configurations() -> dict[str, dict[str, str]]:
    """Name -> environment."""
    out = {"glibc": {}, "glibc-tuned": {"GLIBC_TUNABLES": GLIBC_TUNED}}
    tuned = {
        "jemalloc": {"MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0"},
        "mimalloc": {"MIMALLOC_PURGE_DELAY": "-1", "MIMALLOC_RESET_DELAY": "-1"},
        "tcmalloc_minimal": {"TCMALLOC_RELEASE_RATE": "0"},
    }
    for name, extra in tuned.items():
        if library := _library(name):
            out[name] = {"LD_PRELOAD": library}
            out[f"{name}-tuned"] = {"LD_PRELOAD": library, **extra}
    out["pool"] = {"BENCH_POOL": "1"}
    return out


# In the child


def child(job: dict) -> dict:
    """Do what the job says; the results by name."""
    works = {"ops": _ops, "never": _never, "small": _small, "install": _install, "busy": _busy, "idle": _idle}
    return works[job["what"]](job)


def _pool(populate: int = POPULATED, **options):
    """The pool, with memory mapped and zeroed, where the configuration has one."""
    if "BENCH_POOL" not in os.environ:
        return None
    import firsttouch as ft

    pool = ft.pool.install(3 << 30, populate=populate, strict=True, **options)
    _until(lambda: pool.stats().free_zeroed_bytes >= populate)
    return pool


def _until(condition) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def _times(work, nr: int) -> tuple[float, float]:
    """Medians of wall and CPU time in ns."""
    walls, cpus = [], []
    for _ in range(nr):
        cpu, start = time.thread_time_ns(), time.perf_counter_ns()
        kept = work()
        walls.append(time.perf_counter_ns() - start)
        cpus.append(time.thread_time_ns() - cpu)
        del kept
    return statistics.median(walls), statistics.median(cpus)


def _touched(nr_bytes: int):
    import numpy as np

    array = np.zeros(nr_bytes, np.uint8)
    array[::4096] = 1
    return array


def _filled(nr_bytes: int):
    import numpy as np

    array = np.zeros(nr_bytes, np.uint8)
    array.fill(1)
    return array


def _ops(job: dict) -> dict:
    import numpy as np

    operands = {mib: (np.ones(mib * MIB // 8), np.ones(mib * MIB // 8)) for mib in job["sizes"]}
    pool = _pool()
    out = {}
    for mib, (a, b) in operands.items():
        works = (
            lambda nr_bytes=mib * MIB: _touched(nr_bytes),
            lambda nr_bytes=mib * MIB: _filled(nr_bytes),
            lambda a=a, b=b: a + b,
            lambda a=a, b=b: np.sqrt(a * a + b * b),
        )
        for name, work in zip(OPS, works, strict=True):
            time.sleep(REST_S)
            before = pool and pool.stats()
            work()
            out[f"{name} {mib}"], out[f"{name} {mib} cpu"] = _times(work, max(4, min(40, 1024 // mib)))
            if pool:
                after = pool.stats()
                for kind in ("hits", "hot", "misses"):
                    out[f"{name} {mib} {kind}"] = getattr(after, kind) - getattr(before, kind)
    return out


def _never(job: dict) -> dict:
    pool = _pool(**job.get("options", {}))
    out = {}
    for name, work in (("zeros+touch 64", _touched), ("zeros+fill 64", _filled)):
        for _ in range(60):
            work(64 * MIB)  # what was zeroed ahead before is used up
        out[name], out[f"{name} cpu"] = _times(lambda work=work: work(64 * MIB), 60)
    if pool:
        stats = pool.stats()
        out["hits"], out["misses"] = stats.hits, stats.misses
    return out


def _small(job: dict) -> dict:
    """Differences are of one process: how its memory happens to lie is worth more than what is measured."""
    import timeit

    import numpy as np

    pool = _pool(64 * MIB)
    allocator, word, s = pool._api.default.allocator, pool.arena.word, pool._s
    fields = ("ctx", "malloc", "calloc", "realloc", "free")
    ours = [getattr(allocator, field) for field in fields]
    theirs = [int(word[i]) for i in (s.NEXT_CTX, s.NEXT_MALLOC, s.NEXT_CALLOC, s.NEXT_REALLOC, s.NEXT_FREE)]
    out = {}
    for name in ("np.empty(10)", "np.zeros(10)", "small + small", "np.zeros(1000)"):
        timer = timeit.Timer(name, globals={"np": np, "small": np.ones(10)})
        plain, pooled = [], []
        for _ in range(60):
            for functions, times in ((ours, pooled), (theirs, plain)):
                for field, address in zip(fields, functions, strict=True):
                    setattr(allocator, field, address)
                times.append(timer.timeit(10_000) / 10_000 * 1e9)
        out[name] = statistics.median(plain)
        out[f"{name} more"] = statistics.median(b - a for a, b in zip(plain, pooled, strict=True))
    for field, address in zip(fields, ours, strict=True):
        setattr(allocator, field, address)
    return out


def _install(job: dict) -> dict:
    import resource

    import numpy  # noqa: F401

    before_kib, faults = _rss_kib(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    cpu, start = time.process_time(), time.perf_counter()
    import firsttouch as ft

    pool = ft.pool.install("3GiB", populate=0, strict=True)
    out = {"wall_ms": (time.perf_counter() - start) * 1e3, "cpu_ms": (time.process_time() - cpu) * 1e3}
    assert pool is not None
    out["faults"] = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    return out | {"rss_mib": (_rss_kib() - before_kib) / 1024}


def _rss_kib() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:"))


def _busy(job: dict) -> dict:
    """A foreground that never idles: slices with memory to be scrubbed, and without, in turn, in one process."""
    import numpy as np

    a, b, into = (np.ones(8 * MIB) for _ in range(3))
    small = np.ones(12 * MIB // 8)
    left, right = np.ones((400, 400)), np.ones((400, 400))
    pool = _pool(1 << 30, age="0ns", **job.get("options", {}))
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # this thread; the scrubber's may run anywhere
    works = {"stream": lambda: np.add(a, b, into), "llc": small.sum, "matmul": lambda: left @ right}
    out = {"scrubbed_bytes": 0.0}
    for name, work in works.items():
        walls: tuple[list[float], list[float]] = [], []
        cpus: tuple[list[float], list[float]] = [], []
        for turn in range(2 * job["turns"]):
            dirty = turn % 4 in (1, 2)  # without, with, with, without
            _until(lambda: pool.stats().free_unzeroed_bytes == 0)
            if dirty:
                np.ones(64 * MIB)  # 512 MiB to be scrubbed
            end, before = time.perf_counter() + 0.03, pool.stats().scrubbed_bytes
            while time.perf_counter() < end:
                work()
            nr = max(3, round(0.12 / max(1e-4, _times(work, 3)[0] / 1e9)))
            wall, cpu = _times(work, nr)
            walls[dirty].append(wall)
            cpus[dirty].append(cpu)
            if dirty:
                out["scrubbed_bytes"] += pool.stats().scrubbed_bytes - before
        out[name] = _slower(walls)
        out[f"{name} cpu"] = _slower(cpus)
    return out


def _slower(times: tuple[list[float], list[float]]) -> float:
    """Median over pairs of turns of how much slower the second kind is, as a share."""
    return statistics.median(dirty / clean - 1 for clean, dirty in zip(*times, strict=True))


def _idle(job: dict) -> dict:
    _pool()
    _touched(256 * MIB)
    walls = []
    for _ in range(2):
        time.sleep(job["seconds"])
        walls.append(_times(lambda: _touched(256 * MIB), 1)[0])
    return {"zeros+touch 256": statistics.median(walls)}


# In the parent


def run(environment: dict[str, str], job: dict) -> dict:
    """One process; its results, or {} where it could not be run."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("FIRSTTOUCH_POOL", "MALLOC_"))}
    if job["what"] == "program":
        return _run_program(env | environment, job)
    command = [sys.executable, __file__, "--child", json.dumps(job)]
    done = subprocess.run(command, env=env | environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr[-500:], file=sys.stderr)
        return {}
    return json.loads(done.stdout.splitlines()[-1])


def _run_program(env: dict[str, str], job: dict) -> dict:
    """A program from its start to its end, Python's own included."""
    under = ["-m", "firsttouch.pool"] if env.pop("BENCH_POOL", "") else []
    command = [sys.executable, *under, os.path.join(HERE, "programs", f"{job['name']}.py")]
    start = time.perf_counter()
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - start
    process.stdout.close()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        return {}
    return {
        "wall_s": wall_s,
        "user_s": usage.ru_utime,
        "system_s": usage.ru_stime,
        "faults": usage.ru_minflt,
        "peak_mib": usage.ru_maxrss / 1024,
        "said": said,
    }


def gather(names: dict[str, dict[str, str]], job: dict, rounds: int) -> dict[str, dict[str, float]]:
    """Configuration -> result -> median over rounds. What a program says has to be the same everywhere."""
    seen: dict[str, dict[str, list]] = {name: {} for name in names}
    for i, name in turns(list(names), rounds):
        print(f"\r{job['what']}: round {i + 1} of {rounds}, {name:24}", end="", file=sys.stderr, flush=True)
        for key, value in run(names[name], job).items():
            seen[name].setdefault(key, []).append(value)
    print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
    said = {text for each in seen.values() for text in each.pop("said", [])}
    assert len(said) <= 1, f"results differ: {said}"
    return {name: {key: statistics.median(values) for key, values in each.items()} for name, each in seen.items()}


def table(rows: dict[str, dict[str, float]], keys: list[str], cpu: bool = False) -> None:
    """Absolute for glibc, ratios for the rest, and the pool against the best of them."""
    end = " cpu" if cpu else ""
    names = [name for name in rows if name != "glibc" and rows[name]]
    print(f"{'':16}{'glibc':>10} ms" + "".join(f"{name[:12]:>13}" for name in names) + f"{'pool/best peer':>16}")
    for key in keys:
        base = rows["glibc"].get(key + end)
        if not base:
            continue
        ratios = {name: base / rows[name][key + end] for name in names if key + end in rows[name]}
        best = max([1.0, *(ratio for name, ratio in ratios.items() if not name.startswith("pool"))])
        line = f"{key:16}{base / 1e6:10.3f} ms" + "".join(f"{ratios.get(name, 0):12.2f}x" for name in names)
        print(line + f"{ratios.get('pool', 0) / best:15.2f}x")


def main() -> None:
    """All parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few sizes, two rounds")
    parser.add_argument("--idle", action="store_true", help="the part with sleeps of 15 s as well")
    parser.add_argument("--only", default="", help="some of: " + ", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--cpu", action="store_true", help="show CPU time: of use beside other work, too")
    parser.add_argument("--json", default="", help="store what was measured; parts not run stay as they are there")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(child(json.loads(arguments.child))))
        return
    sizes, rounds = (QUICK_SIZES, 2) if arguments.quick else (SIZES, arguments.rounds)
    wanted = arguments.only.split(",") if arguments.only else [p for p in PARTS if p != "idle" or arguments.idle]
    results: dict = {}
    if arguments.json and os.path.exists(arguments.json):
        with open(arguments.json) as file:
            results = json.load(file)
    run({"BENCH_POOL": "1"}, {"what": "install"})  # compiled before anything is timed
    for part in PARTS:
        if part in wanted:
            results |= measure(part, sizes, rounds)
            show(part, results, arguments.cpu)
            results["host"] = host()
            if arguments.json:
                with open(arguments.json, "w") as file:
                    json.dump(results, file, indent=1, sort_keys=True)


def host() -> dict[str, str]:
    """What the figures are of."""
    import numpy as np

    with open("/proc/cpuinfo") as file:
        cpu = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")
    return {"cpu": cpu, "cpus": str(os.cpu_count()), "kernel": platform.release(), "numpy": np.__version__}


def measure(part: str, sizes: tuple[int, ...], rounds: int) -> dict:
    """The results of one part, by key."""
    names = configurations()
    two = {name: names[name] for name in ("glibc", "pool")}
    if part == "ops":
        return {"ops": gather(names, {"what": "ops", "sizes": sizes}, rounds)}
    if part == "never":
        out = gather(names, {"what": "never"}, rounds)
        paced = gather({"pool": names["pool"]}, {"what": "never", "options": {"pace": "300us"}}, rounds)
        return {"never": out | {"pool, paced": paced["pool"]}}
    if part in ("small", "install"):
        return {part: gather({"pool": names["pool"]}, {"what": part}, max(3, rounds))["pool"]}
    if part == "busy":
        jobs = {"idle only": {}, "paced": {"pace": "500us"}}
        turns = 4 * rounds
        return {
            "busy": {
                name: gather({"pool": names["pool"]}, {"what": "busy", "turns": turns, "options": options}, 3)["pool"]
                for name, options in jobs.items()
            }
        }
    if part == "program":
        configured = two | {"glibc-tuned": names["glibc-tuned"]}
        return {"program": {name: gather(configured, {"what": part, "name": name}, rounds) for name in PROGRAMS}}
    return {"idle": gather(names, {"what": "idle", "seconds": 15}, max(2, rounds // 2))}


def show(part: str, results: dict, cpu: bool) -> None:
    """One part, for the terminal."""
    rows = results[part]
    print(f"\n{part}")
    if part in ("ops", "never", "idle"):
        keys = {key for key in rows["glibc"] if key.rpartition(" ")[2].isdigit()}
        order = sorted(keys, key=lambda key: (OPS.index(key.split()[0]), int(key.split()[1])))
        table(rows, order, cpu and part != "idle")
    elif part == "small":
        for key in rows:
            if f"{key} more" in rows:
                print(f"  {key:18}{rows[key]:9.1f} ns{rows[f'{key} more']:+9.1f} ns")
    elif part == "install":
        print(f"  {rows['wall_ms']:.0f} ms wall, {rows['cpu_ms']:.0f} ms CPU", end="")
        print(f", {rows['faults']:.0f} faults, {rows['rss_mib']:.1f} MiB")
    elif part == "busy":
        for name, row in rows.items():
            end = " cpu" if cpu else ""
            print(f"  {name:12}" + "".join(f"{key:>10}{row[key + end]:+7.2%}" for key in BUSY), end="")
            print(f"  {row['scrubbed_bytes'] / MIB:,.0f} MiB scrubbed meanwhile")
    else:
        for program, each in rows.items():
            for name, row in each.items():
                print(
                    f"  {program:8}{name:12}{row['wall_s']:8.3f} s wall{row['user_s']:8.3f} user"
                    f"{row['system_s']:8.3f} system{row['faults']:10,.0f} faults{row['peak_mib']:8,.0f} MiB"
                )


def test_install(benchmark):
    """What `make bench` keeps of it: the time of an install whose code is compiled, in a new process each."""
    environment = configurations()["pool"]
    run(environment, {"what": "install"})
    times = []
    benchmark.pedantic(lambda: times.append(run(environment, {"what": "install"})["wall_ms"]), rounds=3)
    benchmark.extra_info["install_ms"] = statistics.median(times)


if __name__ == "__main__":
    main()
