"""NumPy on the pool, on glibc as it is and tuned, and on other allocators: one process a configuration, interleaved.

    python benchmarks/bench_pool.py            # all of it, about ten minutes on a quiet machine
    python benchmarks/bench_pool.py --quick    # three sizes, two rounds
    python benchmarks/bench_pool.py --idle     # also what comes after 15 s of sleep

Each round runs every configuration once, in an order that turns; a configuration's figure is the median over rounds of
the median of its repetitions. A ratio above 1 is faster than glibc as it is. Peers are loaded by LD_PRELOAD where
Debian has put them: apt-get install libjemalloc2 libmimalloc2.0 libtcmalloc-minimal4.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import statistics
import subprocess
import sys
import time

MIB = 1 << 20
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
QUICK_SIZES = (2, 8, 64)
OPS = ("zeros+touch", "zeros+fill", "a+b", "hypot")
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
    out["pool"] = {"BENCH_POOL": "2GiB"}
    return out


# In the child


def child(job: dict) -> dict:
    """Do what the job says; the results by name."""
    import numpy as np

    out: dict = {}
    pool = None
    if limit := os.environ.get("BENCH_POOL"):
        import firsttouch as ft

        start = time.perf_counter()
        pool = ft.pool.install("3GiB", populate=limit, strict=True, **job.get("options", {}))
        out["install_ms"] = (time.perf_counter() - start) * 1e3
        deadline = time.monotonic() + 60
        ready = pool.stats().free_unfaulted_bytes
        while job["what"] in ("ops", "idle", "busy") and ready - pool.stats().free_unfaulted_bytes < 2 << 30:
            assert time.monotonic() < deadline, "the pool was not populated"
            time.sleep(0.02)
    out |= {"ops": _ops, "small": _small, "idle": _idle, "busy": _busy, "program": _program}[job["what"]](np, job)
    if pool is not None:
        stats = pool.stats()
        out["hits"], out["misses"], out["hot"] = stats.hits, stats.misses, stats.hot
    return out


def _median_ns(work, nr: int) -> float:
    times = []
    for _ in range(nr):
        start = time.perf_counter_ns()
        kept = work()
        times.append(time.perf_counter_ns() - start)
        del kept
    return statistics.median(times)


def _ops(np, job: dict) -> dict:
    out = {}
    for mib in job["sizes"]:
        nr_bytes = mib * MIB
        a, b = np.ones(nr_bytes // 8), np.ones(nr_bytes // 8)

        def touch(nr_bytes=nr_bytes):
            array = np.zeros(nr_bytes, np.uint8)
            array[::4096] = 1
            return array

        def fill(nr_bytes=nr_bytes):
            array = np.zeros(nr_bytes, np.uint8)
            array.fill(1)
            return array

        works = (touch, fill, lambda a=a, b=b: a + b, lambda a=a, b=b: np.sqrt(a * a + b * b))
        nr = max(5, min(40, 1024 // mib))
        for name, work in zip(OPS, works, strict=True):
            work()
            out[f"{name} {mib}"] = _median_ns(work, nr)
            time.sleep(0.05)
    return out


def _small(np, job: dict) -> dict:
    import timeit

    out = {}
    for name in ("np.empty(10)", "np.zeros(10)", "small + small", "np.zeros(32768)"):
        timer = timeit.Timer(name, globals={"np": np, "small": np.ones(10)})
        out[name] = min(timer.repeat(7, 100_000 if "32768" not in name else 10_000)) * 1e9
        out[name] /= 100_000 if "32768" not in name else 10_000
    return out


def _idle(np, job: dict) -> dict:
    def touch():
        array = np.zeros(256 * MIB, np.uint8)
        array[::4096] = 1
        return array

    touch()
    times = []
    for _ in range(2):
        time.sleep(job["seconds"])
        times.append(_median_ns(touch, 1))
    return {"zeros+touch 256": statistics.median(times)}


def _busy(np, job: dict) -> dict:
    """A foreground that never idles, beside memory that could be scrubbed."""
    a, b, into = (np.ones(8 * MIB) for _ in range(3))
    dirty = np.ones(128 * MIB) if job["dirty"] else None
    del dirty
    return {"add into 64": _median_ns(lambda: np.add(a, b, into) is None, 200)}


def _program(np, job: dict) -> dict:
    """The image pipeline of the examples, pass after pass in one process; the first is not counted."""
    import contextlib
    import io
    import resource
    import runpy

    walls, systems, faults = [], [], []
    for _ in range(6):
        before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(os.path.join(os.path.dirname(__file__), "../examples/pipeline.py"), run_name="__main__")
        walls.append(time.perf_counter() - start)
        after = resource.getrusage(resource.RUSAGE_SELF)
        systems.append(after.ru_stime - before.ru_stime)
        faults.append(after.ru_minflt - before.ru_minflt)
    medians = (statistics.median(each[1:]) for each in (walls, systems, faults))
    return dict(zip(("wall_s", "system_s", "faults"), medians, strict=True))


# In the parent


def run(environment: dict[str, str], job: dict) -> dict:
    """One process; its results, or {} where it could not be run."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("FIRSTTOUCH_POOL", "MALLOC_"))}
    command = [sys.executable, __file__, "--child", json.dumps(job)]
    done = subprocess.run(command, env=env | environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr[-500:], file=sys.stderr)
        return {}
    return json.loads(done.stdout.splitlines()[-1])


def gather(names: dict[str, dict[str, str]], job: dict, rounds: int) -> dict[str, dict[str, float]]:
    """Configuration -> result -> median over rounds."""
    seen: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    order = list(names)
    for i in range(rounds):
        for name in order[i % len(order) :] + order[: i % len(order)]:
            print(f"\r{job['what']}: round {i + 1} of {rounds}, {name:24}", end="", file=sys.stderr, flush=True)
            for key, value in run(names[name], job).items():
                seen[name].setdefault(key, []).append(value)
    print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
    return {name: {key: statistics.median(values) for key, values in each.items()} for name, each in seen.items()}


def table(rows: dict[str, dict[str, float]], keys: list[str], unit_ns: float = 1e6, unit: str = "ms") -> None:
    """Absolute for glibc, ratios for the rest, and the pool against the best of them."""
    names = [name for name in rows if name != "glibc" and rows[name]]
    print(f"{'':16}{'glibc':>10} {unit}" + "".join(f"{name[:17]:>18}" for name in names) + f"{'pool/best peer':>16}")
    for key in keys:
        base = rows["glibc"].get(key)
        if not base:
            continue
        ratios = {name: base / rows[name][key] for name in names if key in rows[name]}
        peers = [ratio for name, ratio in ratios.items() if name != "pool"] + [1.0]
        line = f"{key:16}{base / unit_ns:10.3f} {unit}" + "".join(f"{ratios.get(name, 0):17.2f}x" for name in names)
        print(line + f"{ratios.get('pool', 0) / max(peers):15.2f}x")


def main() -> None:
    """All tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--idle", action="store_true")
    parser.add_argument("--json", default="")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(child(json.loads(arguments.child))))
        return
    sizes, rounds = (QUICK_SIZES, 2) if arguments.quick else (SIZES, 5)
    names = configurations()
    two = {name: names[name] for name in ("glibc", "pool")}
    run(names["pool"], {"what": "small"})  # compiled before anything is timed
    results = {"ops": gather(names, {"what": "ops", "sizes": sizes}, rounds)}
    table(results["ops"], [f"{op} {mib}" for op in OPS for mib in sizes])
    results["small"] = gather(two, {"what": "small"}, rounds)
    print("\nsmall arrays, ns a call")
    for key in results["small"]["glibc"]:
        plain, pooled = (results["small"][name][key] for name in two)
        print(f"  {key:18}{plain:9.1f}{pooled:9.1f}  {pooled - plain:+.1f}")
    print(f"\ninstall, cached: {results['small']['pool']['install_ms']:.0f} ms")
    print("\na busy foreground, ns for one addition of 64 MiB")
    for name, dirty, options in (("nothing to scrub", 0, {}), ("idle only", 1, {}), ("paced", 1, {"pace": "500us"})):
        job = {"what": "busy", "dirty": dirty, "options": options}
        busy = gather({"pool": names["pool"]}, job, rounds)["pool"]
        results[f"busy {name}"] = {"pool": busy}
        print(f"  {name:18}{busy['add into 64']:14,.0f}")
    plain = {"glibc": {}, "pool": {"BENCH_POOL": "64MiB"}}  # as `firsttouch run` has it
    results["program"] = gather(plain, {"what": "program"}, rounds)
    print("\nexamples/pipeline.py, one pass in a process that runs on")
    for name, row in results["program"].items():
        print(f"  {name:8}{row['wall_s']:8.3f} s wall{row['system_s']:8.3f} s system{row['faults']:10,.0f} faults")
    if arguments.idle:
        results["idle"] = gather(names, {"what": "idle", "seconds": 15}, 2)
        print("\nafter 15 s of sleep")
        table(results["idle"], ["zeros+touch 256"])
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=1)


def test_install(benchmark):
    """What `make bench` keeps of it: the time of an install whose code is cached, in a new process each."""
    environment = configurations()["pool"]
    run(environment, {"what": "small"})
    times = []
    benchmark.pedantic(lambda: times.append(run(environment, {"what": "small"})["install_ms"]), rounds=3)
    benchmark.extra_info["install_ms"] = statistics.median(times)


if __name__ == "__main__":
    main()
