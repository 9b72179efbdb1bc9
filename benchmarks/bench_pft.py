"""How fast the model runs the page-fault test: one thread, eight threads on eight CPUs, and its cost as it grows.

`make bench`. Nothing here asserts a time. `extra_info` holds the rates: faults a second, where every touch is a fault
and every page is unmapped again; touches a second where pages are mapped already.
"""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from firsttouch import machine, policy
from firsttouch.mm.simulate import simulate
from firsttouch.workload import RECORDED, TOUCH, Workload
from firsttouch.workload.generators import pft
from firsttouch.workload.generators.builder import Builder

PAGE_BYTES = 4096
GIB = 1 << 30
HERE = machine.load("vm-2cpu-zen4")
EIGHT = msgspec.structs.replace(HERE, nr_cpus=8)


def touches(nr_bytes: int, passes: int) -> Workload:
    """One thread that touches each page once with a fault, then `passes` times without."""
    nr_pages = nr_bytes // PAGE_BYTES
    b = Builder("touches", PAGE_BYTES)
    root, vma = b.thread(b.space(nr_pages)), b.mapping(0, nr_pages)
    for _ in range(1 + passes):
        b.touch(root, vma, 0, nr_pages)
    return b.workload()


def run(benchmark, workload: Workload, here: machine.Machine, name: str, number: int, rounds: int = 3) -> None:
    rules = policy.load(name)
    simulate(pft(1 << 20, threads=here.nr_cpus), here, rules)  # compiles
    outcome = benchmark.pedantic(simulate, args=(workload, here, rules), rounds=rounds)
    assert not outcome.out_of_memory
    benchmark.extra_info["per_s"] = round(number / benchmark.stats.stats.median)
    benchmark.extra_info["faults"] = outcome.faults


@pytest.mark.parametrize("name", ["linux-6.18", "linux-6.18+thp", "linux-6.18+prezero-4k"])
def test_one_thread(benchmark, name: str) -> None:
    workload = pft(GIB, reps=8, stride_bytes=PAGE_BYTES)
    run(benchmark, workload, HERE, name, 8 * GIB // PAGE_BYTES)


def test_one_thread_touching_mapped_pages(benchmark) -> None:
    run(benchmark, touches(GIB, 15), HERE, "linux-6.18", 16 * GIB // PAGE_BYTES)


def recording(nr_pages: int) -> Workload:
    """A recording of one thread: one event for each page, in order."""
    b = Builder("recording", PAGE_BYTES)
    root, vma = b.thread(b.space(nr_pages)), b.mapping(0, nr_pages)
    for page in range(nr_pages):
        b.touch(root, vma, page, page + 1)
    workload = b.workload()
    kind = np.where(workload.events.op == TOUCH, workload.events.kind | RECORDED, workload.events.kind)
    return replace(workload, events=workload.events._replace(kind=kind.astype(np.uint8)), recorded_level="basic")


def test_one_thread_of_a_recording(benchmark) -> None:
    run(benchmark, recording(500_000), HERE, "linux-6.18", 500_000)


@pytest.mark.parametrize("name", ["linux-6.18", "linux-6.18+prezero-4k", "linux-2.6.10"])
def test_eight_threads_on_eight_cpus(benchmark, name: str) -> None:
    workload = pft(GIB, reps=8, threads=8, stride_bytes=PAGE_BYTES)
    run(benchmark, workload, EIGHT, name, 8 * GIB // PAGE_BYTES)


@pytest.mark.parametrize("millions", [1, 10, 100])
def test_cost_as_the_number_of_faults_grows(benchmark, millions: int) -> None:
    reps = round(millions * 1_000_000 * PAGE_BYTES / GIB)
    run(benchmark, pft(GIB, reps=reps, stride_bytes=PAGE_BYTES), HERE, "linux-6.18", reps * GIB // PAGE_BYTES, 1)
