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
| scrub | the policy's scrubber has an idle CPU | orders: bits of those of which its node has unzeroed blocks; free_pages, zeroed_pages of the node; load: 1-minute average, in hundredths; now_ms since midnight; last: order of its last block since it woke, or -1 | order of the block to zero; -1: sleep until memory is freed; -n: ask again in n ms | up to 10; where there is no such block, the next higher one, else it sleeps |
| lock | a fault locks page tables | page; mm: number of the address space; start, end of the mapping; cpu; nr_locks | which lock | 0 to nr_locks - 1, others modulo nr_locks |
| promote | the policy's daemon looks at a region that may become a superpage, or a fault has mapped a page of one | mapped, touched, shared: pages of the region; page: its first; free_blocks of order 9 on all nodes; in_fault: 1 or 0 | 1 to promote, 0 not to | 0, 1 |

An answer out of bounds is brought inside, and counted: `Outcome.answers_bounded`. A function that raises ends the
simulation with an error that names it, what it was asked, and the line; so does, before, one that does not return an
integer.
"""  # noqa: E501

from __future__ import annotations

import runpy
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from firsttouch._hook import ARGUMENTS, MARK, NAMES, NR_ARGUMENTS
from firsttouch._jit import JIT, inlined
from firsttouch.errors import FirsttouchError
from firsttouch.policy import Policy


class Hooks(NamedTuple):
    """For each hook the address of its compiled function (JIT off: the function), or 0 for the model's own rule."""

    window: Any
    order: Any
    scrub: Any
    lock: Any
    promote: Any


class Answers(NamedTuple):
    """What became of the answers. Rows are hooks, in the order of Hooks."""

    bounded: NDArray[np.int64]  # [hook] brought inside
    failed: NDArray[np.int64]  # [hook] raised
    asked: NDArray[np.int64]  # [hook, argument] of the first that raised


NO_HOOKS = Hooks(0, 0, 0, 0, 0)
WINDOW, ORDER, SCRUB, LOCK, PROMOTE = range(len(NAMES))
FAILED = int(np.iinfo(np.int64).min)  # the answer of a function that raised
NR_USER_LOCKS = 4096


def make_answers() -> Answers:
    """None yet."""
    return Answers(
        np.zeros(len(NAMES), np.int64), np.zeros(len(NAMES), np.int64), np.zeros((len(NAMES), NR_ARGUMENTS), np.int64)
    )


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


@inlined
def settle(n: Answers, hook: int, answer: int, low: int, high: int) -> int:
    """Bring an answer inside [low, high], and count it if it was not; `low` for one that raised."""
    if low <= answer <= high:
        return answer
    n.bounded[hook] += answer != FAILED
    return low if answer < low else high


@inlined
def note_failure(n: Answers, hook: int, answer: int, a: int, b: int, c: int, d: int, e: int, f: int) -> None:
    """Keep what a function was asked when it raised first."""
    if answer != FAILED:
        return
    n.failed[hook] += 1
    if n.failed[hook] == 1:
        n.asked[hook, 0], n.asked[hook, 1], n.asked[hook, 2] = a, b, c
        n.asked[hook, 3], n.asked[hook, 4], n.asked[hook, 5] = d, e, f


def blame(path: str, answers: Answers) -> None:
    """Raise FirsttouchError if a function of the policy file raised in a simulation: which, what it was asked, why."""
    for hook, name in enumerate(NAMES):
        if not answers.failed[hook]:
            continue
        function = _functions(path)[name]
        numbers = [int(value) for value in answers.asked[hook]]
        asked = ", ".join(f"{key}={value}" for key, value in zip(ARGUMENTS[name], numbers, strict=True))
        try:
            why = f"returned {function(*numbers)!r}"
        except Exception as error:
            why = f"raised {_where(error, path)}"
        raise FirsttouchError(
            f"policy {path}: {name} ({function.__name__}) {why}, when asked with {asked}",
            "a hook must answer whatever it is asked with an integer",
        )


def check_hooks(policy: Policy, hooks: Hooks) -> None:
    """Raise FirsttouchError for a hook that the rest of the policy would never ask, saying what is missing."""
    if hooks.scrub != 0 and policy.zero.scrub in ("none", "pagezero", "scrubd-v8"):
        raise FirsttouchError(
            f"policy {policy.name}: the hook scrub of {policy.hooks} steers a scrubd, and zero.scrub is "
            f"{policy.zero.scrub}",
            "put one before it: linux-6.18+prezero-4k+" + policy.hooks,
        )
    if hooks.promote != 0 and policy.superpage.thp == "never":
        raise FirsttouchError(
            f"policy {policy.name}: the hook promote of {policy.hooks} needs mappings that may have superpages, and "
            "superpage.thp is never",
            "put one before it: linux-6.18+promote-100+" + policy.hooks,
        )


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
    marked: dict[str, Callable[..., int]] = {
        getattr(value, MARK): value for value in names.values() if callable(value) and hasattr(value, MARK)
    }
    if not marked:
        raise FirsttouchError(f"policy {path} has no hook", f"decorate a function with @hook, of {', '.join(NAMES)}")
    _FUNCTIONS[path] = marked
    return NO_HOOKS._replace(**{name: _compiled(path, name, function) for name, function in marked.items()})


def _functions(path: str) -> dict[str, Callable[..., int]]:
    """The functions of a policy file that was loaded, by hook."""
    return _FUNCTIONS[path]


_FUNCTIONS: dict[str, dict[str, Callable[..., int]]] = {}
_COMPILED: list[Any] = []  # compiled hooks live as long as the process: kernels hold their addresses


def _compiled(path: str, name: str, function: Callable[..., int]) -> Any:
    """`function`, with FAILED for its answer when it raises."""
    if not JIT:
        return _guarded(function)
    numba = import_module("numba")
    signature = types.int64(*[types.int64] * NR_ARGUMENTS)
    try:
        answer = numba.njit(error_model="python")(function)
        answer.compile(signature.args)
        kind = answer.nopython_signatures[0].return_type
        if not isinstance(kind, types.Integer | types.Boolean):
            raise FirsttouchError(
                f"policy {path}: {name} ({function.__name__}) returns {kind}, not an integer on every path",
                "use int(), // for whole division, and a return at the end",
            )

        def guarded(a, b, c, d, e, f):  # type: ignore[no-untyped-def]
            try:
                return int(answer(a, b, c, d, e, f))
            except Exception:
                return FAILED

        compiled = numba.cfunc(signature)(guarded)
    except numba.core.errors.NumbaError as error:
        reason = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
        raise FirsttouchError(
            f"policy {path}: {name} ({function.__name__}) cannot be compiled: {reason[:300]}",
            "a hook takes and returns integers; use numbers, if, while, min and max only",
        ) from None
    _COMPILED.append(compiled)
    return compiled.address


def _guarded(function: Callable[..., int]) -> Callable[..., int]:
    def guarded(*asked: int) -> int:
        try:
            answer = function(*(int(value) for value in asked))
        except Exception:
            return FAILED
        return int(answer) if isinstance(answer, int | np.integer) else FAILED

    return guarded


def _where(error: BaseException, path: str) -> str:
    """The error and the line of the file it came from."""
    line = getattr(error, "lineno", None)
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"{type(error).__name__}: {error}" + (f" (line {line})" if line else "")
