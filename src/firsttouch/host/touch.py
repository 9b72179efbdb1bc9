"""Raw memory: touch pages and lines by address, zero them by each method, and time it, with the GIL released.

A kernel takes addresses as plain integers; `Region` makes and frees the mappings. What LLVM has no word for
(`rep stosb`, `clzero`) is inline assembly, on x86-64 only: `METHODS` names what this CPU can do. Every timed kernel
fills one array, the time of each chunk in ns, so that a preempted chunk is one outlier and not the whole measurement.

The kernels need the JIT: with FIRSTTOUCH_JIT=0 they cannot run at all, and `need_jit()` says so.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils as untyped_cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from firsttouch._jit import JIT, kernel
from firsttouch.errors import FirsttouchError

llvmlite.binding.initialize_native_asmparser()  # inline assembly

cgutils: Any = untyped_cgutils

X86 = platform.machine() in ("x86_64", "AMD64")
LINE_BYTES = 64  # of the wide stores below; a longer cache line takes several

MADV_HUGEPAGE, MADV_NOHUGEPAGE = 14, 15
MADV_POPULATE_WRITE = 23  # Linux 5.14
_MAP_ALIGN = 2 << 20  # no mapping of ours shares a page-table page with another
_PROT_NONE, _MAP_FIXED = 0, 0x10  # the mmap module lacks them

_BYTE, _INT, _LONG = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_VOID, _PTR = ir.VoidType(), ir.PointerType(ir.IntType(8))
_LINE = ir.VectorType(_LONG, LINE_BYTES // 8)


def need_jit() -> None:
    """Raise FirsttouchError when kernels cannot run because the JIT is off."""
    if not JIT:
        raise FirsttouchError("memory cannot be touched by address with the JIT off", "unset FIRSTTOUCH_JIT")


# Primitives


def _intrinsic(function: Any) -> Any:
    """A word of the compiler; `function` says its types and generates its code."""
    return intrinsic(function)


def _external(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    """The C function `name` of this process, by name: an address would not survive in the cache of machine code."""
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)


def _asm(builder: Any, text: str, constraints: str, arguments: list[Any]) -> None:
    shape = ir.FunctionType(_VOID, [argument.type for argument in arguments])
    builder.call(ir.InlineAsm(shape, text, constraints, side_effect=True), arguments)


@_intrinsic
def load(typing_context, address):  # type: ignore[no-untyped-def]
    """The 64-bit word at `address`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.PointerType(_LONG)), typ=_LONG)

    return types.int64(types.int64), generate


@_intrinsic
def store(typing_context, address, value):  # type: ignore[no-untyped-def]
    """Write the 64-bit word at `address`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], ir.PointerType(_LONG)))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@_intrinsic
def store_line_past_caches(typing_context, address):  # type: ignore[no-untyped-def]
    """Write 64 zero bytes at `address` (aligned to 64), without a place in the caches."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.PointerType(_LINE))
        written = builder.store(ir.Constant(_LINE, None), pointer, align=LINE_BYTES)
        written.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(_INT, 1)]))
        return context.get_dummy_value()

    return types.void(types.int64), generate


@_intrinsic
def store_fence(typing_context):  # type: ignore[no-untyped-def]
    """Order the stores before against the stores after, non-temporal ones too."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if X86:
            builder.call(_external(builder, "llvm.x86.sse.sfence", _VOID, []), [])
        else:
            builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@_intrinsic
def keep(typing_context):  # type: ignore[no-untyped-def]
    """Tell the compiler that memory may have been read here, so that it drops and moves no store."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _asm(builder, "", "~{memory}", [])
        return context.get_dummy_value()

    return types.void(), generate


@_intrinsic
def fill_zero(typing_context, address, nr_bytes):  # type: ignore[no-untyped-def]
    """C's memset to zero."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        memset = _external(builder, "memset", _PTR, [_PTR, _INT, _LONG])
        builder.call(memset, [builder.inttoptr(arguments[0], _PTR), ir.Constant(_INT, 0), arguments[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@_intrinsic
def clock_ns(typing_context):  # type: ignore[no-untyped-def]
    """CLOCK_MONOTONIC in ns."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        timespec = cgutils.alloca_once(builder, ir.ArrayType(_LONG, 2))
        clock_gettime = _external(builder, "clock_gettime", _INT, [_INT, _PTR])
        builder.call(clock_gettime, [ir.Constant(_INT, 1), builder.bitcast(timespec, _PTR)])
        seconds = builder.load(cgutils.gep_inbounds(builder, timespec, 0, 0), typ=_LONG)
        rest = builder.load(cgutils.gep_inbounds(builder, timespec, 0, 1), typ=_LONG)
        return builder.add(builder.mul(seconds, ir.Constant(_LONG, 1_000_000_000)), rest)

    return types.int64(), generate


@_intrinsic
def enter_kernel(typing_context):  # type: ignore[no-untyped-def]
    """A trivial system call: getppid."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.call(_external(builder, "getppid", _INT, []), [])
        return context.get_dummy_value()

    return types.void(), generate


@_intrinsic
def add_shared(typing_context, address, value):  # type: ignore[no-untyped-def]
    """Add to the word at `address` in one atomic step; returns what it held."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.atomic_rmw("add", builder.inttoptr(arguments[0], ir.PointerType(_LONG)), arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@_intrinsic
def fill_zero_string(typing_context, address, nr_bytes):  # type: ignore[no-untyped-def]
    """`rep stosb` of zeros; x86-64 only."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        shape = ir.FunctionType(ir.LiteralStructType([_LONG, _LONG]), [_LONG, _LONG, _BYTE])
        constraints = "={rdi},={rcx},0,1,{al},~{memory}"
        string = ir.InlineAsm(shape, "rep stosb", constraints, side_effect=True)
        builder.call(string, [arguments[0], arguments[1], ir.Constant(_BYTE, 0)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@_intrinsic
def establish_line(typing_context, address):  # type: ignore[no-untyped-def]
    """`clzero`: make the line at `address` zero without reading it; AMD only."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _asm(builder, "clzero", "{rax},~{memory}", [arguments[0]])
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
    for start in range(address, address + nr_bytes, LINE_BYTES):
        store_line_past_caches(start)
    store_fence()


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


# Mappings

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Region:
    """A mapping of `nr_bytes` from a 2 MiB boundary; `fd` -1 is anonymous memory. Unmapped at the end of `with`."""

    def __init__(self, nr_bytes: int, fd: int = -1, shared: bool = False) -> None:
        flags = (mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE) | (mmap.MAP_ANONYMOUS if fd < 0 else 0)
        prot = mmap.PROT_READ | mmap.PROT_WRITE
        self.nr_bytes = nr_bytes
        room = _map(0, nr_bytes + _MAP_ALIGN, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        self.address = -(-room // _MAP_ALIGN) * _MAP_ALIGN
        _unmap(room, self.address - room)
        _unmap(self.address + nr_bytes, room + _MAP_ALIGN - self.address)
        _map(self.address, nr_bytes, prot, flags | _MAP_FIXED, fd)  # over the room that is ours

    def advise(self, advice: int, start: int = 0, nr_bytes: int | None = None) -> bool:
        """madvise all, or `nr_bytes` from offset `start`; False where the kernel refuses it, or memory is short."""
        nr_bytes = self.nr_bytes if nr_bytes is None else nr_bytes
        return bool(_libc.madvise(self.address + start, nr_bytes, advice) == 0)

    def unmap(self, nr_bytes: int | None = None) -> None:
        """Unmap the first `nr_bytes`, or all that is left."""
        nr_bytes = self.nr_bytes if nr_bytes is None else nr_bytes
        _unmap(self.address, nr_bytes)
        self.address += nr_bytes
        self.nr_bytes -= nr_bytes

    def __enter__(self) -> Region:
        return self

    def __exit__(self, *_: object) -> None:
        self.unmap()


def _map(address: int, nr_bytes: int, prot: int, flags: int, fd: int) -> int:
    mapped = _libc.mmap(address, nr_bytes, prot, flags, fd, 0)
    if mapped is None or mapped == ctypes.c_void_p(-1).value:
        raise FirsttouchError(
            f"cannot map {nr_bytes} bytes: {os.strerror(ctypes.get_errno())}", "free some memory, or raise ulimit -v"
        )
    return int(mapped)


def _unmap(address: int, nr_bytes: int) -> None:
    if nr_bytes and _libc.munmap(address, nr_bytes):
        raise FirsttouchError(f"cannot unmap {nr_bytes} bytes: {os.strerror(ctypes.get_errno())}")
