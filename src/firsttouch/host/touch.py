"""Raw memory: touch pages and lines by address, zero them by each method, and time it, with the GIL released.

A kernel takes addresses as plain integers; `Region` makes and frees the mappings. What LLVM has no word for
(`rep stosb`, `clzero`) is inline assembly, on x86-64 only: `METHODS` names what this CPU can do. Every timed kernel
fills one array, the time of each chunk in ns, so that a preempted chunk is one outlier and not the whole measurement.

The kernels need the JIT: with FIRSTTOUCH_JIT=0 they cannot run at all, and `need_jit()` says so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from firsttouch._jit import JIT, kernel
from firsttouch._mapping import MADV_HUGEPAGE as MADV_HUGEPAGE
from firsttouch._mapping import MADV_NOHUGEPAGE as MADV_NOHUGEPAGE
from firsttouch._mapping import MADV_POPULATE_WRITE as MADV_POPULATE_WRITE
from firsttouch._mapping import Region as Region
from firsttouch._native import (
    BYTE,
    INT,
    LINE_BYTES,
    LONG,
    X86,
    add_shared,
    assembly,
    clock_ns,
    external,
    fill_zero,
    keep,
    load,
    store,
    store_fence,
    word,
    zero_past_caches,
)
from firsttouch.errors import FirsttouchError


def need_jit() -> None:
    """Raise FirsttouchError when kernels cannot run because the JIT is off."""
    if not JIT:
        raise FirsttouchError("memory cannot be touched by address with the JIT off", "unset FIRSTTOUCH_JIT")


# Primitives


@word
def enter_kernel(typing_context):  # type: ignore[no-untyped-def]
    """A trivial system call: getppid."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.call(external(builder, "getppid", INT, []), [])
        return context.get_dummy_value()

    return types.void(), generate


@word
def fill_zero_string(typing_context, address, nr_bytes):  # type: ignore[no-untyped-def]
    """`rep stosb` of zeros; x86-64 only."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        shape = ir.FunctionType(ir.LiteralStructType([LONG, LONG]), [LONG, LONG, BYTE])
        constraints = "={rdi},={rcx},0,1,{al},~{memory}"
        string = ir.InlineAsm(shape, "rep stosb", constraints, side_effect=True)
        builder.call(string, [arguments[0], arguments[1], ir.Constant(BYTE, 0)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@word
def establish_line(typing_context, address):  # type: ignore[no-untyped-def]
    """`clzero`: make the line at `address` zero without reading it; AMD only."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        assembly(builder, "clzero", "{rax},~{memory}", [arguments[0]])
        return context.get_dummy_value()

    return types.void(types.int64), generate


# Zeroing. Each takes a block aligned to a page, and leaves every byte of it zero and every store done.


@kernel
def zero_temporal(address: int, nr_bytes: int, page_bytes: int) -> None:
    """A page at a time through the caches, the last page first, as Linux up to 6.18 clears a large block."""
    for start in range(address + nr_bytes - page_bytes, address - 1, -page_bytes):
        fill_zero(start, page_bytes)
        keep()


@kernel
def zero_nontemporal(address: int, nr_bytes: int, page_bytes: int) -> None:
    """A line at a time past the caches."""
    zero_past_caches(address, nr_bytes)


@kernel
def zero_rep_stosb(address: int, nr_bytes: int, page_bytes: int) -> None:
    """The whole block in one instruction."""
    fill_zero_string(address, nr_bytes)
    keep()


@kernel
def zero_line_establish(address: int, nr_bytes: int, page_bytes: int) -> None:
    """A line at a time, each made zero without being read."""
    for start in range(address, address + nr_bytes, LINE_BYTES):
        establish_line(start)
    store_fence()


def _methods() -> dict[str, Callable[[int, int, int], None]]:
    methods: dict[str, Callable[[int, int, int], None]] = {"temporal": zero_temporal, "nontemporal": zero_nontemporal}
    if X86:
        methods["rep_stosb"] = zero_rep_stosb
        try:
            flags = Path("/proc/cpuinfo").read_text().partition("\nflags")[2].partition("\n")[0].split()
        except OSError:
            flags = []
        if "clzero" in flags:
            methods["line_establish"] = zero_line_establish
    return methods


METHODS = _methods()  # name -> kernel(address, nr_bytes, page_bytes), of what this CPU can do


# Timed kernels. `chunk_ns` is the result: one entry per chunk.


@kernel
def time_touch(address: int, nr_per_chunk: int, stride_bytes: int, write: bool, chunk_ns: NDArray[np.int64]) -> int:
    """Touch one word every `stride_bytes`, `nr_per_chunk` of them in each chunk. Returns the sum of what was read."""
    total = 0
    for chunk in range(chunk_ns.size):
        before = clock_ns()
        if write:
            for _ in range(nr_per_chunk):
                store(address, 1)
                address += stride_bytes
        else:
            for _ in range(nr_per_chunk):
                total += load(address)
                address += stride_bytes
        chunk_ns[chunk] = clock_ns() - before
    return total


@kernel
def time_touch_at(addresses: NDArray[np.int64], nr_per_chunk: int, write: bool, chunk_ns: NDArray[np.int64]) -> int:
    """Touch the word at each address, `nr_per_chunk` of them in each chunk. Returns the sum of what was read."""
    total = 0
    i = 0
    for chunk in range(chunk_ns.size):
        before = clock_ns()
        for _ in range(nr_per_chunk):
            if write:
                store(addresses[i], 1)
            else:
                total += load(addresses[i])
            i += 1
        chunk_ns[chunk] = clock_ns() - before
    return total


@kernel
def time_lines(
    pages: NDArray[np.int64], nr_per_chunk: int, page_bytes: int, step_bytes: int, chunk_ns: NDArray[np.int64]
) -> None:
    """Write one word of each line (every `step_bytes`) of each page, `nr_per_chunk` pages in each chunk."""
    i = 0
    for chunk in range(chunk_ns.size):
        before = clock_ns()
        for _ in range(nr_per_chunk):
            for line in range(pages[i], pages[i] + page_bytes, step_bytes):
                store(line, 1)
            i += 1
        keep()
        chunk_ns[chunk] = clock_ns() - before


@kernel
def time_lines_zeroed(
    address: int, nr_bytes: int, page_bytes: int, step_bytes: int, chunk_ns: NDArray[np.int64]
) -> None:
    """Zero the block through the caches, then time one write to each of its lines; each chunk does it once."""
    for chunk in range(chunk_ns.size):
        for start in range(address, address + nr_bytes, page_bytes):
            fill_zero(start, page_bytes)
        keep()
        store_fence()
        before = clock_ns()
        for line in range(address, address + nr_bytes, step_bytes):
            store(line, 1)
        keep()
        chunk_ns[chunk] = clock_ns() - before


@kernel
def read_lines(address: int, nr_bytes: int) -> int:
    """Read one word of each line, which brings the block into the caches. Returns the sum."""
    total = 0
    for line in range(address, address + nr_bytes, LINE_BYTES):
        total += load(line)
    return total


@kernel
def time_syscalls(nr_per_chunk: int, chunk_ns: NDArray[np.int64]) -> None:
    """Enter and leave the kernel `nr_per_chunk` times in each chunk."""
    for chunk in range(chunk_ns.size):
        before = clock_ns()
        for _ in range(nr_per_chunk):
            enter_kernel()
        chunk_ns[chunk] = clock_ns() - before


@kernel
def time_clock(chunk_ns: NDArray[np.int64]) -> None:
    """Two readings of the clock with nothing between, in each chunk: what every other chunk includes once."""
    for chunk in range(chunk_ns.size):
        before = clock_ns()
        chunk_ns[chunk] = clock_ns() - before


@kernel
def count_up(address: int) -> None:
    """Add 1 to the shared word at `address`."""
    add_shared(address, 1)


@kernel
def meet(address: int, nr_parties: int) -> bool:
    """Count up the shared word at `address` and spin until `nr_parties` have; False if they do not come in a second."""
    add_shared(address, 1)
    deadline = clock_ns() + 1_000_000_000
    while add_shared(address, 0) < nr_parties:
        if clock_ns() > deadline:
            return False
    return True


def _make_time_zero(zero: Callable[[int, int, int], None]) -> Callable[..., None]:
    @kernel
    def time_zero(
        blocks: NDArray[np.int64],
        nr_bytes: int,
        page_bytes: int,
        nr_per_chunk: int,
        warm: bool,
        chunk_ns: NDArray[np.int64],
    ) -> None:
        """Zero blocks in turn, `nr_per_chunk` in each chunk; `warm` stays on the first ones, read in before."""
        i = 0
        for chunk in range(chunk_ns.size):
            if warm:
                i = 0
                for k in range(nr_per_chunk):
                    read_lines(blocks[k], nr_bytes)
            keep()
            before = clock_ns()
            for _ in range(nr_per_chunk):
                zero(blocks[i], nr_bytes, page_bytes)
                i += 1
            chunk_ns[chunk] = clock_ns() - before

    return time_zero


TIME_ZERO = {method: _make_time_zero(zero) for method, zero in METHODS.items()}  # method -> timed kernel
