"""Where compiled code is kept on disk, by what it was made from; known without loading a compiler.

A folder is named by a digest of the sources that its code depends on: an edit of any means a new folder.

Switches (environment): FIRSTTOUCH_JIT=0 runs kernels as plain Python; FIRSTTOUCH_BOUNDSCHECK=1 checks every index.
"""

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

JIT = os.environ.get("FIRSTTOUCH_JIT", "1") != "0"
BOUNDSCHECK = os.environ.get("FIRSTTOUCH_BOUNDSCHECK", "0") == "1"
PACKAGE = Path(__file__).parent
_KEPT = 4  # and any used in the last day: several versions may be at work side by side
_DAY_S = 86400


def code_folder(kind: str, sources: Iterable[Path]) -> Path:
    """The folder of one kind of code; made if missing, in the temporary folder if home is read-only."""
    digest = hashlib.sha256(f"boundscheck={BOUNDSCHECK}".encode())
    for path in sorted(sources):
        digest.update(str(path.relative_to(PACKAGE)).encode())
        digest.update(path.read_bytes())
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for base in (home / "firsttouch" / kind, Path(tempfile.gettempdir()) / f"firsttouch-{kind}-{os.getuid()}"):
        folder = base / digest.hexdigest()[:16]
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK) and base.stat().st_uid == os.getuid():  # else another may have put code there
            os.utime(folder)
            _prune(base)
            return folder
    return Path(tempfile.mkdtemp(prefix=f"firsttouch-{kind}-"))


def _prune(base: Path) -> None:
    with suppress(OSError):  # another process prunes, too
        folders = sorted((path.stat().st_mtime, path) for path in base.iterdir())
        for used_s, old in folders[:-_KEPT]:
            if used_s < time.time() - _DAY_S:
                shutil.rmtree(old, ignore_errors=True)
