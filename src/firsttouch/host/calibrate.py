"""Measure this host's machine file.

Each measurement times whole faults (or whole blocks) in chunks and keeps the median chunk; `decompose` then takes them
apart into the costs of `machine.Costs`, which add up again to what was measured. `docs/model/costs.md` says what each
includes. All measurements are taken once per round, and rounds repeat: a value's spread is that over rounds, so slow
drifts of the machine show, and costs that are differences are taken between measurements of one round.

Memory is warmed first: what a hypervisor has not backed yet costs it a fault of its own, which is reported apart
(`host_cold_page`). Each measurement of a fault runs twice in a row, on memory that the first run has just used, and the
second run counts.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import mmap
import os
import resource
import signal
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from firsttouch import _jit
from firsttouch.errors import FirsttouchError
from firsttouch.host import knobs, probe, touch
from firsttouch.host.probe import HostFacts
from firsttouch.host.touch import Region
from firsttouch.machine import MACHINE_SCHEMA, Cost, Costs, Machine, ZeroCost, check
from firsttouch.units import format_ns

SPREAD_LIMIT_RATIO = 0.10
QUICK_S, FULL_S = 6.0, 40.0  # rounds stop after this long,
MIN_ROUNDS, MAX_ROUNDS = 5, 60  # within these bounds
TYPICAL_RECORD_NS = 600.0

# The measurements whose spread decides: every cost that matters is a difference of these.
KEY = ("read_fault", "write_fault", "file_fault", "cow_fault", "zero_page", "block_fault.9")

_CHUNK_BYTES = 2 << 20  # of faults per chunk: a fraction of a millisecond
_PMD_BYTES = 2 << 20
_FILE_BYTES, _COW_BYTES, _BLOCKS_BYTES = 32 << 20, 16 << 20, 16 << 20
_PAIR_CHUNKS, _PAIR_TRIES, _PAIR_REPEATS = 8, 10, 7
_FILE_REPEATS = 5
_CALL_BYTES = 2 << 20  # per munmap, or madvise that populates
_HOT_BYTES = 256 << 10  # per chunk of hot zeroing: less than an L2
_JUST_ZEROED_BYTES = 16 << 10  # half an L1
_MADV_DONTFORK = 10

Raw = dict[str, list[float]]  # measurement -> its value in each round, ns per fault, page, block, line or call
T = TypeVar("T")
Progress = Callable[[str, float], None]  # what is being done, share done


class Noisy(FirsttouchError):
    """The machine was too busy to measure."""

    exit_code = 1


class Plan(NamedTuple):
    """What will be measured and on how much memory."""

    page_bytes: int
    line_bytes: int
    region_bytes: int  # twice the last-level cache: cold when one gets back to its start
    window_pages: int  # that one read fault on a cached file maps
    orders: tuple[int, ...]  # of large blocks that this host can be made to allocate
    nr_threads: int  # that fault at once
    notes: dict[str, str]


def calibrate(
    *,
    quick: bool = False,
    accept_noise: bool = False,
    record_cost: Callable[[str], Cost | None] | None = None,
    progress: Progress | None = None,
) -> Machine:
    """Measure what first touches cost on this host.

    Parameters
    ----------
    quick
        Under 10 s instead of under 60 s, with wider intervals.
    accept_noise
        Return costs even if their spread over rounds is above 10 %.
    record_cost
        What recording at level "basic" or "full" adds to a fault, or None if that cannot be measured.
    progress
        Called with what is being done and the share done (0..1).

    Raises
    ------
    Noisy
        The spread is above 10 % and `accept_noise` is not set.
    FirsttouchError
        Memory cannot be mapped, or the JIT is off.
    """
    touch.need_jit()
    say = progress or (lambda what, share: None)
    facts = probe.facts()
    say("compiling, once" if not _jit.is_compiled() else "loading kernels", 0.0)
    with _knobs(facts) as (guard, notes):
        plan = _plan(facts, guard, notes)
        with Bench(plan, guard) as bench:
            bench.round()  # compiles what is left, and warms
            say("warming memory", 0.02)
            host_cold = bench.warm(1 << 28 if quick else 1 << 29)
            raw = _rounds(bench, QUICK_S if quick else FULL_S, say)
            if host_cold is not None:
                raw["host_cold_page"] = [host_cold]
            plan = bench.plan
    spread = spreads(raw)
    if not accept_noise:
        _refuse_noise(spread)
    say("measuring the cost of recording", 0.98)
    recording = {level: record_cost(level) if record_cost else None for level in ("basic", "full")}
    machine = decompose(raw, facts, plan, recording, quick)
    check(machine, "just measured")
    say("done", 1.0)
    return machine


def spreads(raw: Raw) -> dict[str, float]:
    """Of each key measurement: the interquartile range over rounds, as a share of the median."""
    found = {}
    for name in KEY:
        if name in raw:
            low, middle, high = np.percentile(raw[name], [25, 50, 75])
            found[name] = float((high - low) / middle)
    return found


def _refuse_noise(spread: dict[str, float]) -> None:
    name = max(spread, key=lambda key: spread[key])
    if spread[name] > SPREAD_LIMIT_RATIO:
        raise Noisy(
            f"this machine is too busy to measure: {name} varies by {spread[name]:.0%} between rounds "
            f"(limit {SPREAD_LIMIT_RATIO:.0%})",
            "stop what else runs and try again, or take it as it is: --accept-noise",
        )


def _rounds(bench: Bench, budget_s: float, say: Progress) -> Raw:
    raw: Raw = {}
    started = time.monotonic()
    for done in range(MAX_ROUNDS):
        share = min(0.99, max(done / MAX_ROUNDS, (time.monotonic() - started) / budget_s))
        if done >= MIN_ROUNDS and time.monotonic() - started > budget_s:
            break
        say(f"round {done + 1}", 0.05 + 0.92 * share)
        for name, value in bench.round().items():
            raw.setdefault(name, []).append(value)
    return raw


@contextlib.contextmanager
def _knobs(facts: HostFacts) -> Iterator[tuple[knobs.KnobGuard | None, dict[str, str]]]:
    """The right to switch huge page sizes, or None where this user has none; and a note that says so."""
    paths = [knobs.mthp_knob(int(size.removesuffix("kB")) * 1024) for size in facts.mthp]
    if not paths or not all(os.access(path, os.W_OK) for path in paths):
        why = "this kernel has no such sizes" if not paths else "switching sizes needs root"
        yield None, {"orders": why}
        return
    with knobs.guard_knobs(paths) as guard:
        yield guard, {}


def _plan(facts: HostFacts, guard: knobs.KnobGuard | None, notes: dict[str, str]) -> Plan:
    largest = max(32 << 20, min(256 << 20, facts.memory_bytes // 16 // _PMD_BYTES * _PMD_BYTES))
    region_bytes = min(largest, max(32 << 20, -(-2 * facts.llc_bytes // _CALL_BYTES) * _CALL_BYTES))
    if region_bytes < 2 * facts.llc_bytes:
        notes["cold"] = "the last-level cache is large for this memory: costs called cold are partly warm"
    sizes = [int(size.removesuffix("kB")) * 1024 for size in facts.mthp]
    orders = []
    for size in sizes or ([_PMD_BYTES] if facts.thp else []):
        allowed = guard is not None or (size == _PMD_BYTES and facts.thp in ("always", "madvise"))
        if allowed and size <= _PMD_BYTES and (size == _PMD_BYTES or facts.page_bytes == 4096):
            orders.append((size // facts.page_bytes).bit_length() - 1)
    return Plan(
        page_bytes=facts.page_bytes,
        line_bytes=facts.line_bytes,
        region_bytes=region_bytes,
        window_pages=0,
        orders=tuple(orders),
        nr_threads=min(2, len(os.sched_getaffinity(0))),
        notes=notes,
    )


# Measuring


class Bench:
    """The memory that measurements use over and over; a round takes every measurement once."""

    def __init__(self, plan: Plan, guard: knobs.KnobGuard | None) -> None:
        self.plan = plan
        self.guard = guard
        self.nr_per_chunk = _CHUNK_BYTES // plan.page_bytes
        clock = np.zeros(1000, np.int64)
        touch.time_clock(clock)
        self.clock_ns = float(np.median(clock))
        self.stack = contextlib.ExitStack()

    def __enter__(self) -> Bench:
        with contextlib.ExitStack() as stack:
            self.arena = stack.enter_context(Region(self.plan.region_bytes))
            self.arena.advise(touch.MADV_HUGEPAGE)  # like the kernel's own map of memory: few TLB misses
            self.arena.advise(_MADV_DONTFORK)
            self._touch(self.arena, self.plan.page_bytes, write=True)
            self.dense = stack.enter_context(_file(self.plan, 1))
            window_pages = self._window()
            self.plan = self.plan._replace(window_pages=window_pages)
            self.sparse = stack.enter_context(_file(self.plan, max(window_pages, 1)))
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def round(self) -> dict[str, float]:
        """Every measurement once."""
        found = {"syscall": self._syscall(), "read_fault": self._twice(self._read_fault)}
        found["write_fault"], found["unmap_page"] = self._twice(self._write_fault)
        found["populate_page"] = self._twice(self._populate)
        found["file_fault"] = self._file_fault(self.sparse)
        found["file_fault_window"] = self._file_fault(self.dense)
        found["cow_fault"] = self._cow_fault()
        for order in self.plan.orders:
            with self._only(order):
                block = self._twice(lambda order=order: self._blocks(order))  # type: ignore[misc]
            if block is not None:
                found[f"block_fault.{order}"], found[f"block_unmap.{order}"] = block
        page_bytes = self.plan.page_bytes
        for method, nr_bytes, hot in itertools.product(
            touch.METHODS, (page_bytes, 16 * page_bytes, _PMD_BYTES), (False, True)
        ):
            warmth = "hot" if hot else "cold"
            found[f"zero.{method}.{nr_bytes}.{warmth}"] = self._zero(method, nr_bytes, hot)
        found["zero_page"] = found[f"zero.temporal.{page_bytes}.cold"]
        found["line_hot"] = self._line_hot()
        found["line_cold"] = self._line_cold()
        if self.plan.nr_threads > 1:
            self._pair(processes=False)  # warms
            pairs = [(self._pair(processes=False), self._pair(processes=True)) for _ in range(_PAIR_REPEATS)]
            threads, processes = (np.array(times) for times in zip(*pairs, strict=True))
            both = ~np.isnan(threads + processes)
            found["fault_threads"] = float(np.median(threads[both])) if both.any() else math.nan
            found["fault_processes"] = float(np.median(processes[both])) if both.any() else math.nan
        return found

    def warm(self, nr_bytes: int) -> float | None:
        """Touch memory twice; what a host-cold page costs more, if the first time met any."""
        nr_bytes = min(nr_bytes, probe.memory_bytes() // 16) // _CHUNK_BYTES * _CHUNK_BYTES
        times = []
        for _ in range(2):
            with Region(nr_bytes) as region:
                region.advise(touch.MADV_NOHUGEPAGE)
                times.append(self._touch(region, self.plan.page_bytes, write=True) / self.nr_per_chunk)
        warm_ns = float(np.median(times[1]))
        cold = times[0][times[0] > 2 * warm_ns]
        return float(np.median(cold)) - warm_ns if cold.size >= 4 else None

    def _touch(self, region: Region, stride_bytes: int, write: bool) -> NDArray[np.int64]:
        """ns of each chunk of `_CHUNK_BYTES` (or one stride, if that is longer) of the region."""
        nr_per_chunk = max(1, _CHUNK_BYTES // stride_bytes)
        chunk_ns = np.zeros(region.nr_bytes // (nr_per_chunk * stride_bytes), np.int64)
        touch.time_touch(region.address, nr_per_chunk, stride_bytes, write, chunk_ns)
        return chunk_ns

    @staticmethod
    def _twice(measure: Callable[[], T]) -> T:
        measure()
        return measure()

    def _evict(self) -> None:
        touch.read_lines(self.arena.address, self.arena.nr_bytes)

    def _syscall(self) -> float:
        chunk_ns = np.zeros(20, np.int64)
        touch.time_syscalls(1000, chunk_ns)
        return float(np.median(chunk_ns)) / 1000

    def _read_fault(self) -> float:
        with Region(self.plan.region_bytes) as region:
            region.advise(touch.MADV_NOHUGEPAGE)
            return float(np.median(self._touch(region, self.plan.page_bytes, write=False))) / self.nr_per_chunk

    def _write_fault(self) -> tuple[float, float]:
        self._evict()
        with Region(self.plan.region_bytes) as region:
            region.advise(touch.MADV_NOHUGEPAGE)
            fault_ns = float(np.median(self._touch(region, self.plan.page_bytes, write=True))) / self.nr_per_chunk
            unmap_ns = []
            while region.nr_bytes:
                before = time.perf_counter_ns()
                region.unmap(_CALL_BYTES)
                unmap_ns.append(time.perf_counter_ns() - before)
        return fault_ns, statistics.median(unmap_ns) * self.plan.page_bytes / _CALL_BYTES

    def _populate(self) -> float:
        self._evict()
        with Region(self.plan.region_bytes) as region:
            region.advise(touch.MADV_NOHUGEPAGE)
            spent_ns = []
            for start in range(0, region.nr_bytes, _CALL_BYTES):
                before = time.perf_counter_ns()
                known = region.advise(touch.MADV_POPULATE_WRITE, start, _CALL_BYTES)
                spent_ns.append(time.perf_counter_ns() - before)
                if not known:
                    return math.nan
        return statistics.median(spent_ns) * self.plan.page_bytes / _CALL_BYTES

    def _window(self) -> int:
        """Pages that one read fault on a cached file maps."""
        with Region(_FILE_BYTES, self.dense, shared=True) as region:
            before = _faults()
            self._touch(region, self.plan.page_bytes, write=False)
            return round(_FILE_BYTES / self.plan.page_bytes / max(1, _faults() - before))

    def _file_fault(self, file: int) -> float:
        stride_bytes = self.plan.page_bytes * self.plan.window_pages
        times = []
        for _ in range(_FILE_REPEATS):  # few faults each
            with Region(_FILE_BYTES, file, shared=True) as region:
                times.append(self._touch(region, stride_bytes, write=False))
        return float(np.median(times)) / max(1, _CHUNK_BYTES // stride_bytes)

    def _cow_fault(self) -> float:
        with Region(_COW_BYTES) as region:
            region.advise(touch.MADV_NOHUGEPAGE)
            self._touch(region, self.plan.page_bytes, write=True)
            self._evict()
            with _sharer():
                return float(np.median(self._touch(region, self.plan.page_bytes, write=True))) / self.nr_per_chunk

    @contextlib.contextmanager
    def _only(self, order: int) -> Iterator[None]:
        """Advised memory gets blocks of this order, and of no larger one below the order of a superpage."""
        if self.guard is None:
            yield
            return
        size_bytes = self.plan.page_bytes << order
        # the sizes above stay away; a superpage cannot come where a page is mapped already (_blocks)
        wanted: dict[Path | str, str] = {
            path: "never" for path in self.guard.old if size_bytes < _size_of(path) < _PMD_BYTES
        }
        wanted[str(knobs.mthp_knob(size_bytes))] = "madvise"
        self.guard.set(wanted)
        try:
            yield
        finally:
            self.guard.set({path: self.guard.old[str(path)] for path in wanted})

    def _blocks(self, order: int) -> tuple[float, float] | None:
        """ns of a fault that maps a block of 2**order pages, and of unmapping it; None if smaller ones came."""
        block_bytes = self.plan.page_bytes << order
        with Region(_BLOCKS_BYTES) as region:
            starts = np.arange(region.address, region.address + region.nr_bytes, block_bytes, dtype=np.int64)
            nr_spoilt = 0
            if block_bytes < _PMD_BYTES:  # map one page of each superpage, so that no fault can take all of it
                region.advise(touch.MADV_NOHUGEPAGE)
                nr_spoilt = self._touch(region, _PMD_BYTES, write=True).size
                starts = starts[starts % _PMD_BYTES != 0]
            region.advise(touch.MADV_HUGEPAGE)
            self._evict()
            nr_per_chunk = max(1, (_PMD_BYTES // block_bytes) - 1)
            chunk_ns = np.zeros(starts.size // nr_per_chunk, np.int64)
            before = _faults()
            touch.time_touch_at(starts, nr_per_chunk, True, chunk_ns)
            if _faults() - before > 1.05 * starts.size + 2:
                return None
            before_ns = time.perf_counter_ns()
            region.unmap()
            unmap_ns = time.perf_counter_ns() - before_ns
        return float(np.median(chunk_ns)) / nr_per_chunk, unmap_ns / (starts.size + nr_spoilt / (1 << order))

    def _blocks_of(self, nr_bytes: int) -> NDArray[np.int64]:
        """The arena's blocks of a size, in no order: as frames come, and as no prefetcher can foresee."""
        order = np.random.default_rng(1).permutation(self.arena.nr_bytes // nr_bytes)
        return self.arena.address + order.astype(np.int64) * nr_bytes

    def _zero(self, method: str, nr_bytes: int, hot: bool) -> float:
        blocks = self._blocks_of(nr_bytes)
        chunk_bytes = max(nr_bytes, _HOT_BYTES if hot else _CHUNK_BYTES)
        nr_per_chunk = chunk_bytes // nr_bytes
        chunk_ns = np.zeros(40 if hot else self.arena.nr_bytes // chunk_bytes, np.int64)
        touch.TIME_ZERO[method](blocks, nr_bytes, self.plan.page_bytes, nr_per_chunk, hot, chunk_ns)
        return max(0.01, float(np.median(chunk_ns)) - self.clock_ns) / nr_per_chunk

    def _line_hot(self) -> float:
        chunk_ns = np.zeros(200, np.int64)
        nr_bytes = max(_JUST_ZEROED_BYTES, self.plan.page_bytes)
        touch.time_lines_zeroed(self.arena.address, nr_bytes, self.plan.page_bytes, self.plan.line_bytes, chunk_ns)
        return max(0.0, float(np.median(chunk_ns)) - self.clock_ns) * self.plan.line_bytes / nr_bytes

    def _line_cold(self) -> float:
        pages = self._blocks_of(self.plan.page_bytes)
        chunk_ns = np.zeros(self.arena.nr_bytes // _CHUNK_BYTES, np.int64)
        zero = touch.TIME_ZERO["nontemporal"]
        zero(pages, self.plan.page_bytes, self.plan.page_bytes, self.nr_per_chunk, False, chunk_ns)
        touch.time_lines(pages, self.nr_per_chunk, self.plan.page_bytes, self.plan.line_bytes, chunk_ns)
        return float(np.median(chunk_ns)) * self.plan.line_bytes / _CHUNK_BYTES

    def _pair(self, processes: bool) -> float:
        """ns of a write fault while another CPU takes some too, in this address space or in another one.

        Only a run in which neither was preempted says anything; nan if there was none.
        """
        return next((ns for ns in (self._pair_once(processes) for _ in range(_PAIR_TRIES)) if ns), math.nan)

    def _pair_once(self, processes: bool) -> float | None:
        nr_per_chunk = self.nr_per_chunk // _PAIR_CHUNKS
        cpus = sorted(os.sched_getaffinity(0))
        words = _shared_words(8 + 2 * _PAIR_CHUNKS)  # [0] the meeting place, [1] runs that count; times from [8]
        with Region(2 * _CHUNK_BYTES) as region:
            region.advise(touch.MADV_NOHUGEPAGE)

            def fault(party: int) -> None:
                os.sched_setaffinity(0, {cpus[party]})  # of this thread
                chunk_ns = words[8 + party * _PAIR_CHUNKS : 8 + (party + 1) * _PAIR_CHUNKS]
                address = region.address + party * _CHUNK_BYTES
                met = touch.meet(words.ctypes.data, 2)
                before = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
                touch.time_touch(address, nr_per_chunk, self.plan.page_bytes, True, chunk_ns)
                if met and resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw == before:
                    touch.count_up(words.ctypes.data + 8)

            child = _fork() if processes else 0
            if processes and child == 0:
                _run_and_exit(lambda: fault(1))
            threads = [threading.Thread(target=fault, args=(party,)) for party in range(1 if processes else 2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if child:
                os.waitpid(child, 0)
        return float(np.median(words[8:])) / nr_per_chunk if words[1] == 2 else None


def _size_of(knob: str) -> int:
    return int(Path(knob).parent.name.removeprefix("hugepages-").removesuffix("kB")) * 1024


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@contextlib.contextmanager
def _file(plan: Plan, every: int) -> Iterator[int]:
    """A file in memory with one page in `every`; the rest are holes, which a read fault elsewhere does not map."""
    file = os.memfd_create("firsttouch")
    try:
        os.truncate(file, _FILE_BYTES)
        page = bytes(plan.page_bytes - 1) + b"x"
        for start in range(0, _FILE_BYTES, plan.page_bytes * every):
            os.pwrite(file, page, start)
        yield file
    finally:
        os.close(file)


def _shared_words(count: int) -> NDArray[np.int64]:
    """Zeroed words that a child shares."""
    return np.frombuffer(mmap.mmap(-1, count * 8), np.int64)


def _fork() -> int:
    with warnings.catch_warnings():  # of threads: the child runs compiled code that is there already, and exits
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _run_and_exit(work: Callable[[], None]) -> None:
    try:
        work()
    finally:
        os._exit(0)


@contextlib.contextmanager
def _sharer() -> Iterator[None]:
    """A child that shares all pages of this process until the end of the block."""
    reading, writing = os.pipe()
    child = _fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        os.close(writing)
        _run_and_exit(lambda: (os.read(reading, 1), None)[1])  # until the parent closes its end, or dies
    try:
        yield
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(child, 0)


# Taking measurements apart


def decompose(
    raw: Raw, facts: HostFacts, plan: Plan, recording: dict[str, Cost | None], quick: bool = False
) -> Machine:
    """The machine file that the measurements make, round by round: see `docs/model/costs.md`.

    A cost that comes out below 0 is within the noise of what it was taken from; it becomes 0 and its source says so.
    """
    notes = dict(plan.notes)
    rounds = {name: np.array(values) for name, values in raw.items()}
    zero = _zero_costs(raw)
    trap = rounds["read_fault"]
    alloc = rounds["write_fault"] - trap - rounds["zero_page"]
    nr_orders = max([9, *plan.orders]) + 1
    alloc_large, unmap_large = _large(rounds, plan, zero, trap, alloc, nr_orders, notes)
    file_map = rounds["file_fault"] - trap
    if plan.window_pages > 1:
        entries = (rounds["file_fault_window"] - rounds["file_fault"]) / (plan.window_pages - 1)
        map_page = _cost(entries, f"a file fault that maps {plan.window_pages} pages against one, per page more")
    else:
        map_page = _cost(
            np.maximum(file_map, 0) / 4, "a quarter of file_map, as this kernel maps no page around a fault"
        )
    populate = rounds["populate_page"]
    if np.isnan(populate).any():
        populate, populate_source = alloc + rounds["zero_page"], "alloc and zeroing, as this kernel has no populate"
    else:
        populate_source = "MADV_POPULATE_WRITE on fresh memory, per page"
    if "fault_threads" not in rounds:
        handoff = Cost(ns=0.0, source="not measured: one CPU")
    else:
        apart = rounds["fault_threads"] - rounds["fault_processes"]
        apart = apart[~np.isnan(apart)]
        handoff = (
            _cost(apart, "two threads faulting in one address space against two processes, per fault")
            if apart.size
            else Cost(ns=0.0, source="not measured: two CPUs were never free at the same time")
        )
    host_cold = None
    if "host_cold_page" in rounds:
        host_cold = _cost(rounds["host_cold_page"], "first against second touch of guest memory, per page")
    cost = Costs(
        trap=_cost(trap, "read fault that the zero page serves"),
        alloc=_cost(alloc, "write fault on fresh memory, less trap and zeroing one cold page"),
        alloc_large=alloc_large,
        map_page=map_page,
        file_map=_cost(file_map, "read fault on a cached page between holes, less trap"),
        copy_page=_cost(
            rounds["cow_fault"] - trap - alloc, "write fault on a page shared by fork, less trap and alloc"
        ),
        unmap_page=_cost(rounds["unmap_page"], "munmap of 2 MiB touched by page, per page"),
        unmap_large=unmap_large,
        populate_page=_cost(populate, populate_source),
        line_hot=_cost(rounds["line_hot"], "writing each line of pages zeroed just now"),
        line_cold=_cost(rounds["line_cold"], "writing each line of pages zeroed past the caches"),
        lock_handoff=handoff,
        record_basic=recording.get("basic") or Cost(ns=TYPICAL_RECORD_NS, source="typical, not measured here"),
        record_full=recording.get("full") or Cost(ns=TYPICAL_RECORD_NS, source="typical, not measured here"),
        syscall=_cost(rounds["syscall"], "getppid"),
        host_cold_page=host_cold,
    )
    how = "quickly" if quick else "in full"
    where = f"on {facts.virtual}" if facts.virtual != "none" else "on bare metal"
    spread = spreads(raw)
    notes["spread"] = ", ".join(f"{name} {value:.1%}" for name, value in spread.items())
    if spread and max(spread.values()) > SPREAD_LIMIT_RATIO:
        notes["noise"] = "accepted: the machine was busy while it was measured"
    return Machine(
        schema=MACHINE_SCHEMA,
        name="this-host",
        summary=f"{facts.cpu}, {facts.nr_cpus} CPUs, {where}, Linux {facts.kernel}, measured {how}",
        nr_cpus=facts.nr_cpus,
        page_bytes=facts.page_bytes,
        line_bytes=facts.line_bytes,
        l2_bytes=facts.l2_bytes,
        llc_bytes=facts.llc_bytes,
        memory_bytes=facts.memory_bytes,
        cost=cost,
        zero=zero,
        fingerprint=facts.fingerprint,
        notes=notes,
    )


def _cost(values: NDArray[np.float64], source: str) -> Cost:
    low, middle, high = (round(float(value), 3) for value in np.percentile(values, [25, 50, 75]))
    if middle < 0:
        source += f"; came out at {middle:.0f} ns, taken as 0"
    return Cost(ns=max(0.0, middle), low=max(0.0, low), high=max(0.0, high), source=source)


def _zero_costs(raw: Raw) -> dict[str, ZeroCost]:
    costs = {}
    for method in dict.fromkeys(name.split(".")[1] for name in raw if name.startswith("zero.")):
        sizes = sorted({int(name.split(".")[2]) for name in raw if name.startswith(f"zero.{method}.")})
        median = {
            warmth: [round(statistics.median(raw[f"zero.{method}.{size}.{warmth}"]), 2) for size in sizes]
            for warmth in ("hot", "cold")
        }
        costs[method] = ZeroCost(
            bytes=sizes,
            hot_ns=median["hot"],
            cold_ns=median["cold"],
            source="every store done at the end of each block",
            leaves_cold=method in ("nontemporal", "line_establish"),  # clzero, which writes past the caches
        )
    return costs


def _large(
    rounds: dict[str, NDArray[np.float64]],
    plan: Plan,
    zero: dict[str, ZeroCost],
    trap: NDArray[np.float64],
    alloc: NDArray[np.float64],
    nr_orders: int,
    notes: dict[str, str],
) -> tuple[list[float], list[float]]:
    """alloc_large and unmap_large: measured orders, and between them lines in log-log."""
    alloc_at = {0: max(0.0, float(np.median(alloc)))}
    unmap_at = {0: float(np.median(rounds["unmap_page"]))}
    negative = []
    for order in plan.orders:
        fault = rounds.get(f"block_fault.{order}")
        if fault is None or not fault.size:
            continue
        zeroing = zero["temporal"].ns(plan.page_bytes << order, hot=False)
        rest = float(np.median(fault)) - float(np.median(trap)) - zeroing
        if rest < 0:
            negative.append(f"order {order} came out at {format_ns(rest)}, taken as 0")
        alloc_at[order] = max(0.0, rest)
        unmap_at[order] = float(np.median(rounds[f"block_unmap.{order}"]))
    measured = sorted(set(alloc_at) - {0})
    missing = [order for order in range(1, nr_orders) if order not in alloc_at]
    if missing:
        notes["alloc_large"] = (
            f"orders measured: {_span(measured)}; drawn between and beyond them: {_span(missing)}"
            if measured
            else "derived: as many base pages, allocated at once"
        )
    if negative:
        notes["alloc_large"] = "; ".join([*filter(None, [notes.get("alloc_large")]), *negative])
    if not measured:
        top = nr_orders - 1
        alloc_at[top] = alloc_at[0] * (1 << top) ** 0.5
        unmap_at[top] = unmap_at[0] * (1 << top)
    return _fill(alloc_at, nr_orders), _fill(unmap_at, nr_orders)


def _span(orders: Sequence[int]) -> str:
    return ", ".join(map(str, orders)) or "none"


def _fill(known: dict[int, float], nr_orders: int) -> list[float]:
    """Values of all orders from some, interpolated in the log of the value; the last known one beyond the end."""
    orders = sorted(known)
    logs = [math.log(max(known[order], 0.1)) for order in orders]
    drawn = np.exp(np.interp(range(nr_orders), orders, logs))
    return [round(known.get(order, float(drawn[order])), 2) for order in range(nr_orders)]
