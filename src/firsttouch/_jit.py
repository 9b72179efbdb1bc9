"""The one decorator for compiled code, and the folder its machine code is cached in.

Numba's `cache=True` looks at one file's time stamp only: it would run stale code after an edit of a callee, and it
ignores bounds checks. So the cache folder is named by the sources that kernels can depend on and by the switches, which
are in `_code_folder.py`. Only kernels of firsttouch are cached there; a program's own Numba settings are left alone.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from firsttouch._code_folder import BOUNDSCHECK as BOUNDSCHECK
from firsttouch._code_folder import JIT as JIT
from firsttouch._code_folder import PACKAGE, code_folder

F = TypeVar("F", bound=Callable[..., Any])

_NO_KERNELS = ("cli", "report", "verify", "study")  # the upper rooms, which no kernel's room imports


def cache_dir() -> Path:
    """The folder of this version's kernels."""
    sources = PACKAGE.rglob("*.py")
    return code_folder("jit", (path for path in sources if path.relative_to(PACKAGE).parts[0] not in _NO_KERNELS))


def is_compiled(kernel: str = "") -> bool:
    """Whether machine code of this version is on disk, so that a caller can announce the first compile.

    `kernel` is `file.function`, e.g. `simulate.run`; "" asks for any.
    """
    return not JIT or any(cache_dir().rglob(f"{kernel}*.nbc"))


if JIT:
    from importlib import import_module

    numba: Any = import_module("numba")  # its stubs know neither its config nor all its options
    types: Any = numba.types
    _CACHE_DIR = str(cache_dir())

    def _widest(kind: Any) -> Any:
        """The type that an argument is compiled for: constants and narrow signed integers become int64."""
        kind = types.unliteral(kind)
        return types.int64 if isinstance(kind, types.Integer) and kind.signed else kind

    def _compile(function: F, **options: bool) -> F:
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = _CACHE_DIR
        try:
            compiled: Any = numba.njit(cache=True, nogil=True, error_model="numpy", boundscheck=BOUNDSCHECK, **options)(
                function
            )
        finally:
            numba.config.CACHE_DIR = before
        # Numba compiles a callee once for each constant it is called with; once is enough, and compiling is slow.
        resolve = compiled.get_call_template
        compiled.get_call_template = lambda args, kws: resolve(
            tuple(map(_widest, args)), {name: _widest(kind) for name, kind in kws.items()}
        )
        result: F = compiled
        return result

    def kernel(function: F) -> F:
        """Compile `function` with Numba: GIL released, machine code cached, C's arithmetic. Runs unchanged without."""
        return _compile(function)

    def state_kernel(function: F) -> F:
        """`kernel` for code that allocates nothing: no reference counts, which are most of the time of a short kernel
        that passes many arrays on."""
        return _compile(function, _nrt=False)

    def inlined(function: F) -> F:
        """`state_kernel` that becomes part of its callers. For short hot paths: a call with a whole state costs tens of
        nanoseconds, one word for each pointer, length and stride of each array."""
        return _compile(function, _nrt=False, forceinline=True)

    _COMPILING = threading.RLock()  # Numba's own lock does not cover what _light_load changes

    @contextmanager
    def _light_load() -> Iterator[None]:
        """Let the first look into the cache of machine code go without all of Numba's libraries.

        Numba loads every implementation of every NumPy function, and SciPy with them, before it looks there; code that
        is found needs none of that, and it takes most of a second. What is not found is compiled as ever.
        """
        context: Any = getattr(import_module("numba.core.registry").cpu_target, "target_context", None)
        refresh = getattr(context, "refresh", None)
        if refresh is None:
            yield
            return
        looked: list[bool] = []

        def refresh_when_compiling() -> None:
            if looked:
                refresh()
            looked.append(True)

        context.refresh = refresh_when_compiling
        try:
            yield
        finally:
            del context.refresh  # the class's own is seen again

    def callback(signature: Any) -> Callable[[F], Any]:
        """A compiled function that C code can call, at `.address`. Compiled here and now, cached; allocates nothing."""

        def compile_callback(function: F) -> Any:
            before = numba.config.CACHE_DIR
            numba.config.CACHE_DIR = _CACHE_DIR
            try:
                with _COMPILING, _light_load():
                    return numba.cfunc(
                        signature, cache=True, nopython=True, error_model="numpy", boundscheck=BOUNDSCHECK, _nrt=False
                    )(function)
            finally:
                numba.config.CACHE_DIR = before

        return compile_callback

else:

    def kernel(function: F) -> F:
        """Plain Python: the JIT is off."""
        return function

    state_kernel = inlined = kernel
