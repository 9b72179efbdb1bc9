"""Parts: code of the model that only some kernels have, compiled when a policy first asks for it.

Compiling all that the model knows for each first run would take minutes. So what linux-6.18 does not need is a part: a
state kernel `(w, a, b, c, d) -> int` over the world, marked `@part`, that the model calls by its address through
`call_part`. A policy without it has 0 at that place of `World.parts`, and nothing is compiled.

A part is also compiled once only, where a state kernel is compiled again with each of its callers. So what is large, or
called from many places, is a part for every kernel: one touch, the other events, taking a block and giving it back.

    @part
    def touch(w, cpu, t, e, limit_ns): ...

    if w.parts.touch != 0:
        return call_part(w.parts.touch, w, cpu, t, e, limit_ns) != 0

With the JIT off the place holds the function itself. `kernels.py` says which policy has which.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from firsttouch._jit import JIT

PartFunction = Callable[[Any, int, int, int, int], int]


if JIT:
    from firsttouch._jit import callback
    from firsttouch._packed import PackedType, ir

    types: Any = import_module("numba").types
    intrinsic: Any = import_module("numba.extending").intrinsic

    @intrinsic
    def call_part(typing_context, address, w, a, b, c, d):  # type: ignore[no-untyped-def]
        """Call the part at `address` with the world and four integers."""

        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            word = ir.IntType(64)
            function = ir.FunctionType(word, [word] * 5).as_pointer()
            return builder.call(builder.inttoptr(arguments[0], function), list(arguments[1:]))

        if not isinstance(w, PackedType):
            return None
        return types.int64(types.int64, w, types.int64, types.int64, types.int64, types.int64), generate

else:

    def call_part(address: Any, w: Any, a: int, b: int, c: int, d: int) -> int:
        """Call a part with the world and four integers."""
        return int(address(w, a, b, c, d))


class Part:
    """A function to be compiled for the layouts of world it is asked for; lives as long as the process."""

    def __init__(self, function: PartFunction) -> None:
        self.function = function
        self._compiled: dict[Any, Any] = {}

    def place(self, packed_world: Any) -> Any:
        """What to put into `World.parts`: the address of machine code for this layout, or the function (JIT off)."""
        if not JIT:
            return self.function
        layout = packed_world.numba_type
        if layout not in self._compiled:
            signature = types.int64(layout, types.int64, types.int64, types.int64, types.int64)
            self._compiled[layout] = callback(signature)(self.function)
        return self._compiled[layout].address


def part(function: PartFunction) -> Part:
    """Mark a function of the world and four integers as a part; it returns an integer (a truth is 0 or 1)."""
    return Part(function)


class Parts(NamedTuple):
    """For each part the model has a place for: its address (JIT off: the function), or 0."""

    take_block: Any  # cpu, order, whether zeroed: 2 * pfn + zero state, or below 0
    free_folio: Any  # cpu, pfn of its head
    next_block: Any  # in place of scrub.next_block: the pfn, and the order from bit 32 on
    block_done: Any  # in place of scrub.done
    promote_step: Any  # one step of the daemon that promotes
    promote_in_fault: Any  # after a fault has mapped a page of its own
    promote_fork: Any  # after fork has copied page tables
    neighbours: Any  # beside fault.install: map pages around
    fork_tables: Any  # in place of pmap.fork_tables
    table_needed: Any  # in a fault, before its page table is looked at
    table_freed: Any  # at the end of an address space, for each of its page tables
    spin: Any  # in place of locks.acquire for the lock of page tables: cpu, lock, hold_ns; how long the CPU is kept
    touch: Any  # one touch: cpu, thread, event, limit_ns; whether it is done. Every kernel has one
    look_for_threads: Any  # looks of idle CPUs up to now_ns: 0 if one pulled, else when the next is due
    other_event: Any  # simulate.other_event: the same; whether the thread keeps its CPU
    event: Any  # in place of simulate's MAP, POPULATE, UNMAP, MOVE, of copying at FORK, of teardown: the same


NO_PARTS = Parts(*[0] * len(Parts._fields))
