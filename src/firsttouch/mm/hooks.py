"""Decisions: where kernels differ by choice, the model calls a function. A user's own goes through the same door.

A policy of one's own is a Python file with decorated functions:

    from firsttouch import hook

    @hook("window")
    def window(run, last, page, start, end, free_pages):
        return min(32, 1 << run)

It is named like any diff: `linux-6.18+./mine.py`. Each function takes six integers, returns one, and is compiled by
Numba: numbers, `if`, `while`, `min`, `max`; no objects. Pages are page numbers; ranges are [start, end).

| hook | asked when | arguments | answer | bounds |
|---|---|---|---|---|
| window | a write fault on anonymous memory is to map one base page | run: faults of this task that came in order, each where the last window ended; last: pages of that window; page; start, end of the mapping; free_pages of the fault's node | pages to map, from the faulting one on | at least 1; inside the mapping and the page-table page |
| order | the same, before anything is allocated | allowed: bits of the orders that the policy gives this mapping; room: the highest order whose aligned block is inside the mapping and maps nothing; page; start, end; free_pages | the order to try | 0 to room; where memory has no such block, lower ones follow |

An answer out of bounds is brought inside.
"""  # noqa: E501

from __future__ import annotations

import runpy
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from firsttouch._hook import MARK, NAMES, NR_ARGUMENTS
from firsttouch._jit import JIT
from firsttouch.errors import FirsttouchError


class Hooks(NamedTuple):
    """For each hook the address of its compiled function (JIT off: the function), or 0 for the model's own rule."""

    window: Any
    order: Any


NO_HOOKS = Hooks(0, 0)

if JIT:
    ir: Any = import_module("llvmlite.ir")
    types: Any = import_module("numba").types
    intrinsic: Any = import_module("numba.extending").intrinsic

    @intrinsic
    def call(typing_context, address, a, b, c, d, e, f):  # type: ignore[no-untyped-def]
        """Call the function at `address` with six integers."""

        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            word = ir.IntType(64)
            function = ir.FunctionType(word, [word] * NR_ARGUMENTS).as_pointer()
            return builder.call(builder.inttoptr(arguments[0], function), list(arguments[1:]))

        return types.int64(*[types.int64] * (NR_ARGUMENTS + 1)), generate

else:

    def call(address: Any, a: int, b: int, c: int, d: int, e: int, f: int) -> int:
        """Call a hook with six integers."""
        return int(address(a, b, c, d, e, f))


def load_hooks(path: str) -> Hooks:
    """The hooks of a policy file ("" for none). It is run as a program; only what @hook marks is taken.

    Raises FirsttouchError when it cannot be run, marks nothing, or a function cannot be compiled: what, where, and why.
    """
    if not path:
        return NO_HOOKS
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise FirsttouchError(f"cannot read policy {path}: {error}", "see docs/howto/your-own-policy.md") from None
    return _load(path, text)


@lru_cache(maxsize=64)
def _load(path: str, _text: str) -> Hooks:
    try:
        names = runpy.run_path(path)
    except (Exception, SystemExit) as error:
        raise FirsttouchError(f"policy {path}: {_where(error, path)}", "it must run as a Python program") from None
    marked = {getattr(value, MARK): value for value in names.values() if callable(value) and hasattr(value, MARK)}
    if not marked:
        raise FirsttouchError(f"policy {path} has no hook", f"decorate a function with @hook, of {', '.join(NAMES)}")
    return NO_HOOKS._replace(**{name: _compiled(path, name, function) for name, function in marked.items()})


_COMPILED: list[Any] = []  # compiled hooks live as long as the process: kernels hold their addresses


def _compiled(path: str, name: str, function: Callable[..., int]) -> Any:
    if not JIT:
        return function
    numba = import_module("numba")
    try:
        compiled = numba.cfunc(types.int64(*[types.int64] * NR_ARGUMENTS), error_model="numpy")(function)
    except numba.core.errors.NumbaError as error:
        reason = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
        raise FirsttouchError(
            f"policy {path}: {name} ({function.__name__}) cannot be compiled: {reason[:300]}",
            "a hook takes and returns integers; use numbers, if, while, min and max only",
        ) from None
    _COMPILED.append(compiled)
    return compiled.address


def _where(error: BaseException, path: str) -> str:
    """The error and the line of the file it came from."""
    line = getattr(error, "lineno", None)
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"{type(error).__name__}: {error}" + (f" (line {line})" if line else "")
