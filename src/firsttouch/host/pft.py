"""The page-fault test on this host, for real: see workload.generators.pft for what it is and what its rates mean.

A repetition is one child of this process. From its fork to its end the child runs compiled code only: it maps memory,
makes its threads, waits for them and exits, and takes hardly a fault that is not the test's. User and system time are
those of wait4; the wall time is CLOCK_MONOTONIC from before the first fork to after the last wait.

Two things differ from the test of 2004. This process is larger than that one was, so that a fork takes longer: what
`empty_s` says of a child that does nothing is inside the wall time of each repetition. And one repetition runs before
the first counted one, because a virtual machine's memory may first have to be supplied by its host.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import signal
import time
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from firsttouch._jit import kernel
from firsttouch._native import INT, LONG, PTR, VOID, external, load, store, word
from firsttouch.errors import FirsttouchError, NotHere
from firsttouch.host import probe
from firsttouch.host.touch import MADV_HUGEPAGE, MADV_NOHUGEPAGE, need_jit
from firsttouch.units import format_bytes
from firsttouch.workload.generators.pft import PftRow, PftTest, pft_row

REGION_BYTES = 2 << 20  # the mapping begins at a multiple of it, as in the workload
NO_MAPPING, NO_THREAD = 71, 72  # exit codes of the child
_NR_PART_WORDS = 5  # of one thread's orders: address, bytes, stride, lines, line bytes
_NR_EMPTY = 5


def _call(name: str, result: Any, arguments: list[Any], values: list[Any], builder: Any) -> Any:
    """Call a C function: words become pointers and ints as its arguments want them."""
    given = []
    for kind, value in zip(arguments, values, strict=True):
        if kind == PTR:
            value = builder.inttoptr(value, PTR)
        elif kind == INT:
            value = builder.trunc(value, INT)
        given.append(value)
    returned = builder.call(external(builder, name, result, arguments), given)
    if result == PTR:
        return builder.ptrtoint(returned, LONG)
    return builder.sext(returned, LONG) if result == INT else returned


@word
def fork_child(typing_context):  # type: ignore[no-untyped-def]
    """fork: 0 in the child, which must never come back to Python."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _call("fork", INT, [], [], builder)

    return types.int64(), generate


@word
def exit_child(typing_context, status):  # type: ignore[no-untyped-def]
    """_exit."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.call(external(builder, "_exit", VOID, [INT]), [builder.trunc(arguments[0], INT)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@word
def map_memory(typing_context, nr_bytes):  # type: ignore[no-untyped-def]
    """An anonymous private mapping: its address, or -1."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        prot = ir.Constant(LONG, mmap.PROT_READ | mmap.PROT_WRITE)
        flags = ir.Constant(LONG, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        zero, no_file = ir.Constant(LONG, 0), ir.Constant(LONG, -1)
        values = [zero, arguments[0], prot, flags, no_file, zero]
        return _call("mmap", PTR, [PTR, LONG, INT, INT, INT, LONG], values, builder)

    return types.int64(types.int64), generate


@word
def advise_memory(typing_context, address, nr_bytes, advice):  # type: ignore[no-untyped-def]
    """madvise; a kernel that refuses the advice has nothing to be told."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _call("madvise", INT, [PTR, LONG, INT], list(arguments), builder)

    return types.int64(types.int64, types.int64, types.int64), generate


@word
def make_thread(typing_context, handle, entry, argument):  # type: ignore[no-untyped-def]
    """pthread_create: 0, or an error. `handle`: address of a word; `entry`: address of a C function."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        handle, entry, argument = arguments
        values = [handle, ir.Constant(LONG, 0), entry, argument]
        return _call("pthread_create", INT, [PTR, PTR, PTR, PTR], values, builder)

    return types.int64(types.int64, types.int64, types.int64), generate


@word
def join_thread(typing_context, handle):  # type: ignore[no-untyped-def]
    """pthread_join of the thread whose handle has this value."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values = [arguments[0], ir.Constant(LONG, 0)]
        return _call("pthread_join", INT, [LONG, PTR], values, builder)

    return types.int64(types.int64), generate


@kernel
def touch_part(orders: int) -> int:
    """What one thread does: write `lines` lines every stride of its part. `orders`: address of its five words."""
    start, nr_bytes, stride_bytes = load(orders), load(orders + 8), load(orders + 16)
    lines, line_bytes = load(orders + 24), load(orders + 32)
    for page in range(start, start + nr_bytes, stride_bytes):
        for line in range(page, page + lines * line_bytes, line_bytes):
            store(line, 1)
    return 0


@kernel
def start_repetition(orders: int, handles: int, threads: int, entry: int, map_bytes: int, advice: int) -> int:
    """Fork a child that does one repetition; return its pid, or -1. With no `threads` it exits at once.

    `orders`: address of five words a thread, whose first is the offset of its part and becomes its address.
    """
    pid = fork_child()
    if pid != 0:
        return int(pid)
    if threads == 0:
        exit_child(0)
    mapped = map_memory(map_bytes + REGION_BYTES)
    if mapped == -1:
        exit_child(NO_MAPPING)
    start = (mapped + REGION_BYTES - 1) & ~(REGION_BYTES - 1)
    advise_memory(start, map_bytes, advice)
    for i in range(threads):
        store(orders + 40 * i, load(orders + 40 * i) + start)
        if make_thread(handles + 8 * i, entry, orders + 40 * i) != 0:
            exit_child(NO_THREAD)
    for i in range(threads):
        join_thread(load(handles + 8 * i))
    exit_child(0)
    return 0


@functools.cache
def _entry() -> Any:
    """`touch_part` as a C function that a thread can begin with."""
    touch: Any = touch_part
    return numba.cfunc(types.int64(types.int64))(touch.py_func)


class _Plan:
    """What each child is given, made before the first fork."""

    def __init__(self, test: PftTest, line_bytes: int, *, huge: bool) -> None:
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        part_bytes = -(-test.part_bytes // page_bytes) * page_bytes
        self.orders: NDArray[np.int64] = np.empty((test.threads, _NR_PART_WORDS), np.int64)
        self.orders[:] = (0, part_bytes, test.stride_bytes, test.lines, line_bytes)
        self.orders[:, 0] = np.arange(test.threads) * part_bytes
        self.handles = np.zeros(test.threads, np.int64)
        self.threads, self.map_bytes = test.threads, test.threads * part_bytes
        self.advice = MADV_HUGEPAGE if huge else MADV_NOHUGEPAGE

    def start(self, threads: int) -> int:
        """The pid of a new child."""
        return int(
            start_repetition(
                self.orders.ctypes.data, self.handles.ctypes.data, threads, _entry().address, self.map_bytes,
                self.advice,
            )
        )  # fmt: skip


class PftRun:
    """Runs the test; `empty_s` is the wall time of a child that does nothing."""

    def __init__(self) -> None:
        """Compile what children run, and measure an empty one. Raises FirsttouchError with the JIT off."""
        need_jit()
        self.page_bytes = os.sysconf("SC_PAGE_SIZE")
        self.line_bytes = probe.caches()[0]
        plan = _Plan(PftTest(self.page_bytes), self.line_bytes, huge=False)
        _repetition(plan, 1)  # compiles, and brings in what children share
        times = []
        for _ in range(_NR_EMPTY):
            before = time.monotonic_ns()
            _repetition(plan, 0)
            times.append(time.monotonic_ns() - before)
        self.empty_s = float(np.median(times)) / 1e9

    def check(self, test: PftTest, *, huge: bool = False) -> None:
        """Raise FirsttouchError for a test that cannot be, NotHere for one that this host has not the memory for."""
        test.check(self.page_bytes, self.line_bytes)
        need = test.nr_bytes if huge else test.touched_pages(self.page_bytes) // test.reps * self.page_bytes
        free = available_bytes()
        if need > free:
            raise NotHere(
                f"the test touches {format_bytes(need)} at a time, and this host has {format_bytes(free)} free",
                "a smaller --gib, or run it in the model: --machine M --policy P",
            )

    def row(self, test: PftTest, *, huge: bool = False) -> PftRow:
        """Run one row's test; `huge` asks for transparent huge pages, which are refused otherwise.

        Raises as `check`, and NotHere when this host will not make so many threads.
        """
        self.check(test, huge=huge)
        plan = _Plan(test, self.line_bytes, huge=huge)
        _repetition(plan, test.threads)
        user_s = system_s = 0.0
        faults = 0
        before = time.monotonic_ns()
        for _ in range(test.reps):
            used = _repetition(plan, test.threads)
            user_s, system_s, faults = user_s + used.ru_utime, system_s + used.ru_stime, faults + used.ru_minflt
        wall_s = (time.monotonic_ns() - before) / 1e9
        return pft_row(test, page_bytes=self.page_bytes, user_s=user_s, system_s=system_s, wall_s=wall_s, faults=faults)


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that a program can have without swapping."""
    for line in probe.read(root, "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return min(int(line.split()[1]) * 1024, probe.memory_bytes(root))
    return probe.memory_bytes(root)


def _repetition(plan: _Plan, threads: int) -> Any:
    """One child from fork to wait; its resource usage."""
    pid = plan.start(threads)
    if pid < 0:
        raise NotHere("cannot fork a child for the page-fault test", "free some memory, or raise ulimit -u")
    try:
        _, status, used = os.wait4(pid, 0)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    code = os.waitstatus_to_exitcode(status)
    if code == NO_MAPPING:
        raise NotHere(f"cannot map {format_bytes(plan.map_bytes)}", "a smaller --gib, or raise ulimit -v")
    if code == NO_THREAD:
        raise NotHere(f"this host does not make {threads} threads at once", "fewer --threads, or raise ulimit -u")
    if code != 0:
        why = f"signal {-code}" if code < 0 else f"status {code}"
        raise FirsttouchError(f"a child of the page-fault test died: {why}", "a smaller --gib, if memory ran out")
    return used
