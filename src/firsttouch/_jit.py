"""The one decorator for compiled code, and the folder its machine code is cached in.

Numba's `cache=True` looks at one file's time stamp only: it would run stale code after an edit of a callee, and it
ignores bounds checks. So the cache folder is named by a digest of every source file of this package and of the
switches: an edit anywhere means a new folder. Only kernels of firsttouch are cached there; a program's own Numba
settings are left alone.

Switches (environment): FIRSTTOUCH_JIT=0 runs kernels as plain Python; FIRSTTOUCH_BOUNDSCHECK=1 checks every index.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

JIT = os.environ.get("FIRSTTOUCH_JIT", "1") != "0"
BOUNDSCHECK = os.environ.get("FIRSTTOUCH_BOUNDSCHECK", "0") == "1"
_KEPT_CACHES = 4


def _digest() -> str:
    root = Path(__file__).parent
    digest = hashlib.sha256(f"boundscheck={BOUNDSCHECK}".encode())
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode())
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
    caches = sorted(base.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in caches[_KEPT_CACHES:]:
        shutil.rmtree(old, ignore_errors=True)


def is_compiled() -> bool:
    """Whether machine code of this version is already on disk, so that a caller can announce the first compile."""
    return not JIT or any(cache_dir().rglob("*.nbc"))


if JIT:
    import numba

    _CACHE_DIR = str(cache_dir())

    def kernel(function: F) -> F:
        """Compile `function` with Numba: GIL released, machine code cached, C's arithmetic. Runs unchanged without."""
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = _CACHE_DIR
        try:
            compiled: F = numba.njit(cache=True, nogil=True, error_model="numpy", boundscheck=BOUNDSCHECK)(function)
        finally:
            numba.config.CACHE_DIR = before
        return compiled

else:

    def kernel(function: F) -> F:
        """Plain Python: the JIT is off."""
        return function
