"""Words of the machine for compiled code: loads and stores by address, stores past the caches, atomics, clocks, system
calls, and calls by address.

An address is a plain integer. What LLVM has no word for is inline assembly. Nothing here works with the JIT off.
"""

from __future__ import annotations

import platform
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils as untyped_cgutils
from numba.extending import intrinsic

from firsttouch._jit import kernel

llvmlite.binding.initialize_native_asmparser()  # without it, inline assembly ends the process

cgutils: Any = untyped_cgutils

X86 = platform.machine() in ("x86_64", "AMD64")
LINE_BYTES = 64  # of the wide stores below; a longer cache line takes several

BYTE, INT, LONG = ir.IntType(8), ir.IntType(32), ir.IntType(64)
VOID, PTR = ir.VoidType(), ir.PointerType(ir.IntType(8))
LINE = ir.VectorType(LONG, LINE_BYTES // 8)
_FUTEX = {"x86_64": 202, "AMD64": 202, "aarch64": 98, "riscv64": 98}.get(platform.machine(), -1)  # system call number
_FUTEX_WAIT_PRIVATE, _FUTEX_WAKE_PRIVATE = 128, 129


def word(function: Any) -> Any:
    """A word of the compiler; `function` says its types and generates its code."""
    return intrinsic(function)


class Entry:
    """A function for C code to call: what it does, and its signature. `pool/build.py` compiles it."""

    def __init__(self, function: Any, signature: Any) -> None:
        self.function, self.signature = function, signature
        self.__doc__ = function.__doc__


def entry(signature: Any) -> Any:
    """Make the decorated function an `Entry` of a signature."""
    return lambda function: Entry(function, signature)


def c_function(name: str, result: Any, *arguments: Any) -> Any:
    """The C function `name` of this process, to be called from a kernel."""
    return types.ExternalFunction(name, result(*arguments))


def external(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    """The C function `name` of this process, by name: an address would not survive in the cache of machine code."""
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)


def assembly(builder: Any, text: str, constraints: str, arguments: list[Any]) -> None:
    """Inline assembly without a result."""
    shape = ir.FunctionType(VOID, [argument.type for argument in arguments])
    builder.call(ir.InlineAsm(shape, text, constraints, side_effect=True), arguments)


@word
def load(typing_context, address):  # type: ignore[no-untyped-def]
    """The 64-bit word at `address`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.PointerType(LONG)), typ=LONG)

    return types.int64(types.int64), generate


@word
def store(typing_context, address, value):  # type: ignore[no-untyped-def]
    """Write the 64-bit word at `address`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], ir.PointerType(LONG)))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@word
def store_line_past_caches(typing_context, address):  # type: ignore[no-untyped-def]
    """Write 64 zero bytes at `address` (aligned to 64), without a place in the caches."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.PointerType(LINE))
        written = builder.store(ir.Constant(LINE, None), pointer, align=LINE_BYTES)
        written.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(INT, 1)]))
        return context.get_dummy_value()

    return types.void(types.int64), generate


@word
def store_fence(typing_context):  # type: ignore[no-untyped-def]
    """Order the stores before against the stores after, non-temporal ones too."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if X86:
            builder.call(external(builder, "llvm.x86.sse.sfence", VOID, []), [])
        else:
            builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@word
def keep(typing_context):  # type: ignore[no-untyped-def]
    """Tell the compiler that memory may have been read here, so that it drops and moves no store."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        assembly(builder, "", "~{memory}", [])
        return context.get_dummy_value()

    return types.void(), generate


@word
def fill_zero(typing_context, address, nr_bytes):  # type: ignore[no-untyped-def]
    """C's memset to zero."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        memset = external(builder, "memset", PTR, [PTR, INT, LONG])
        builder.call(memset, [builder.inttoptr(arguments[0], PTR), ir.Constant(INT, 0), arguments[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _clock(builder: Any, which: int) -> Any:
    timespec = cgutils.alloca_once(builder, ir.ArrayType(LONG, 2))
    clock_gettime = external(builder, "clock_gettime", INT, [INT, PTR])
    builder.call(clock_gettime, [ir.Constant(INT, which), builder.bitcast(timespec, PTR)])
    seconds = builder.load(cgutils.gep_inbounds(builder, timespec, 0, 0), typ=LONG)
    rest = builder.load(cgutils.gep_inbounds(builder, timespec, 0, 1), typ=LONG)
    return builder.add(builder.mul(seconds, ir.Constant(LONG, 1_000_000_000)), rest)


@word
def clock_ns(typing_context):  # type: ignore[no-untyped-def]
    """CLOCK_MONOTONIC in ns."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _clock(builder, 1)

    return types.int64(), generate


@word
def process_cpu_ns(typing_context):  # type: ignore[no-untyped-def]
    """CLOCK_PROCESS_CPUTIME_ID in ns. Of other threads that run it knows only up to their last tick."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _clock(builder, 2)

    return types.int64(), generate


@word
def add_shared(typing_context, address, value):  # type: ignore[no-untyped-def]
    """Add to the word at `address` in one atomic step; returns what it held."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.atomic_rmw("add", builder.inttoptr(arguments[0], ir.PointerType(LONG)), arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@word
def exchange(typing_context, address, value):  # type: ignore[no-untyped-def]
    """Put `value` at `address` in one atomic step; returns what it held."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.PointerType(LONG))
        return builder.atomic_rmw("xchg", pointer, arguments[1], "acq_rel")

    return types.int64(types.int64, types.int64), generate


@word
def compare_exchange(typing_context, address, expected, value):  # type: ignore[no-untyped-def]
    """Put `value` at `address` if it holds `expected`, in one atomic step; returns what it held."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.PointerType(LONG))
        return builder.extract_value(builder.cmpxchg(pointer, arguments[1], arguments[2], "acq_rel", "acquire"), 0)

    return types.int64(types.int64, types.int64, types.int64), generate


@word
def load_acquire(typing_context, address):  # type: ignore[no-untyped-def]
    """The word at `address`; what was stored before it was released there is seen after this."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(arguments[0], ir.PointerType(LONG)), "acquire", 8, typ=LONG)

    return types.int64(types.int64), generate


@word
def store_release(typing_context, address, value):  # type: ignore[no-untyped-def]
    """Write the word at `address` after all stores before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store_atomic(arguments[1], builder.inttoptr(arguments[0], ir.PointerType(LONG)), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@word
def relax(typing_context):  # type: ignore[no-untyped-def]
    """Tell the CPU that this is a spin loop."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if X86:
            builder.call(external(builder, "llvm.x86.sse2.pause", VOID, []), [])
        return context.get_dummy_value()

    return types.void(), generate


@word
def copy_bytes(typing_context, to, source, nr_bytes):  # type: ignore[no-untyped-def]
    """C's memcpy."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        memcpy = external(builder, "memcpy", PTR, [PTR, PTR, LONG])
        to, source = (builder.inttoptr(each, PTR) for each in arguments[:2])
        builder.call(memcpy, [to, source, arguments[2]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@word
def call_2(typing_context, function, first, second):  # type: ignore[no-untyped-def]
    """Call the C function at an address with two words; returns its word."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.FunctionType(LONG, [LONG] * 2).as_pointer())
        return builder.call(pointer, list(arguments[1:]))

    return types.int64(*[types.int64] * 3), generate


@word
def call_3(typing_context, function, first, second, third):  # type: ignore[no-untyped-def]
    """Call the C function at an address with three words; returns its word (no meaning where it returns nothing)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.FunctionType(LONG, [LONG] * 3).as_pointer())
        return builder.call(pointer, list(arguments[1:]))

    return types.int64(*[types.int64] * 4), generate


@word
def sleep_us(typing_context, nr_us):  # type: ignore[no-untyped-def]
    """Leave the CPU for at least so many microseconds, below a million."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        usleep = external(builder, "usleep", INT, [INT])
        builder.call(usleep, [builder.trunc(arguments[0], INT)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@word
def advise(typing_context, address, nr_bytes, advice):  # type: ignore[no-untyped-def]
    """madvise; 0 when the kernel did it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        madvise = external(builder, "madvise", INT, [PTR, LONG, INT])
        pointer = builder.inttoptr(arguments[0], PTR)
        return builder.sext(builder.call(madvise, [pointer, arguments[1], builder.trunc(arguments[2], INT)]), LONG)

    return types.int64(types.int64, types.int64, types.int64), generate


@word
def thread_self(typing_context):  # type: ignore[no-untyped-def]
    """pthread_self: a number of the calling thread."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.call(external(builder, "pthread_self", LONG, []), [])

    return types.int64(), generate


def _futex(builder: Any, address: Any, operation: int, value: Any, timeout: Any) -> None:
    """The variadic `syscall` of the C library; here words are passed to it as if it were not variadic."""
    syscall = external(builder, "syscall", LONG, [LONG] * 7)
    nothing = ir.Constant(LONG, 0)
    number, what = ir.Constant(LONG, _FUTEX), ir.Constant(LONG, operation)
    builder.call(syscall, [number, address, what, value, timeout, nothing, nothing])


@word
def wait_while(typing_context, address, value, timeout_ns):  # type: ignore[no-untyped-def]
    """Sleep while the low half of the word at `address` is `value`, until `wake_one`, a signal, or the time is over."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        timespec = cgutils.alloca_once(builder, ir.ArrayType(LONG, 2))
        billion = ir.Constant(LONG, 1_000_000_000)
        builder.store(builder.sdiv(arguments[2], billion), cgutils.gep_inbounds(builder, timespec, 0, 0))
        builder.store(builder.srem(arguments[2], billion), cgutils.gep_inbounds(builder, timespec, 0, 1))
        _futex(builder, arguments[0], _FUTEX_WAIT_PRIVATE, arguments[1], builder.ptrtoint(timespec, LONG))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@word
def wake_one(typing_context, address):  # type: ignore[no-untyped-def]
    """Wake a thread that waits at `address`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _futex(builder, arguments[0], _FUTEX_WAKE_PRIVATE, ir.Constant(LONG, 1), ir.Constant(LONG, 0))
        return context.get_dummy_value()

    return types.void(types.int64), generate


@kernel
def zero_past_caches(address: int, nr_bytes: int) -> None:
    """Zero a block aligned to a line, a line at a time past the caches; every store is done when this returns."""
    for start in range(address, address + nr_bytes, LINE_BYTES):
        store_line_past_caches(start)
    store_fence()
