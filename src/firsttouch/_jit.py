"""The one decorator for compiled code, and the folder its machine code is cached in.

Numba's `cache=True` looks at one file's time stamp only: it would run stale code after an edit of a callee, and it
ignores bounds checks. So the cache folder is named by a digest of the sources that kernels can depend on and of the
switches: an edit of any means a new folder. Only kernels of firsttouch are cached there; a program's own Numba
settings are left alone.

Switches (environment): FIRSTTOUCH_JIT=0 runs kernels as plain Python; FIRSTTOUCH_BOUNDSCHECK=1 checks every index.
"""

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

JIT = os.environ.get("FIRSTTOUCH_JIT", "1") != "0"
BOUNDSCHECK = os.environ.get("FIRSTTOUCH_BOUNDSCHECK", "0") == "1"
_KEPT_CACHES = 4  # and any used in the last day: several versions may be at work side by side
_DAY_S = 86400
_NO_KERNELS = ("cli", "report", "verify", "study")  # the upper rooms, which no kernel's room imports


def _digest() -> str:
    root = Path(__file__).parent
    digest = hashlib.sha256(f"boundscheck={BOUNDSCHECK}".encode())
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        if place.parts[0] not in _NO_KERNELS:
            digest.update(str(place).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def cache_dir() -> Path:
    """The folder of this version's machine code; made if missing, in the temporary folder if home is read-only."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for base in (home / "firsttouch" / "jit", Path(tempfile.gettempdir()) / f"firsttouch-jit-{os.getuid()}"):
        folder = base / _digest()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            os.utime(folder)
            _prune(base)
            return folder
    return Path(tempfile.mkdtemp(prefix="firsttouch-jit-"))


def _prune(base: Path) -> None:
    with suppress(OSError):  # another process prunes, too
        caches = sorted((path.stat().st_mtime, path) for path in base.iterdir())
        for used_s, old in caches[:-_KEPT_CACHES]:
            if used_s < time.time() - _DAY_S:
                shutil.rmtree(old, ignore_errors=True)


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
                with _light_load():
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
