"""Settings of the running kernel: read them, and set them so that they always come back.

A setting ("knob") is a small file under /sys or /proc. Some list the choices, with the one in force in brackets.

Nothing is changed before the old values are on disk (in `knobs.json`) and a guard is running: a separate process that
holds the reading end of a pipe. When the pipe closes, because we are done or because we were killed, it restores every
knob and empties the file. An exclusive lock on the file, shared with the guard, says that one of the two is alive;
a file that nobody has locked was left behind by a crash of both, and the next start restores from it.

Invariants:
  K1  a knob differs from its old value only while `knobs.json` holds that old value
  K2  `knobs.json` is locked while its writer or the writer's guard lives
  K3  one process at a time has knobs changed
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from firsttouch.errors import FirsttouchError, NotHere

_ROOT = Path("/")
_THP = "sys/kernel/mm/transparent_hugepage"

_GUARD = """
import fcntl, json, os, signal, sys
for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"):
    signal.signal(getattr(signal, name), signal.SIG_IGN)
lock = int(sys.argv[1])
old = json.loads(sys.stdin.buffer.readline())
sys.stdout.write("ready\\n")
sys.stdout.flush()
sys.stdin.buffer.read()
failed = []
for knob, value in old.items():
    try:
        with open(knob, "w") as file:
            file.write(value)
    except OSError as error:
        failed.append(f"{knob}: {error.strerror}")
if failed:
    sys.stdout.write("; ".join(failed))
    sys.exit(1)
os.ftruncate(lock, 0)
"""


def choice(text: str) -> str:
    """The choice in force: the word in brackets, or all of the text where nothing is bracketed."""
    match = re.search(r"\[(\S+)\]", text)
    return match[1] if match else text.strip()


def read_knob(path: Path | str) -> str:
    """The value of a knob, as it may be written back. Raises NotHere when it cannot be read."""
    try:
        return choice(Path(path).read_text())
    except OSError as error:
        raise NotHere(
            f"cannot read {path}: {error.strerror}", "this kernel may not have it, or root is needed"
        ) from None


def read_or_empty(path: Path) -> str:
    """The value of a knob, or "" where it cannot be read."""
    try:
        return read_knob(path)
    except NotHere:
        return ""


def thp_enabled(root: Path = _ROOT) -> str:
    """Transparent huge pages: always, madvise, never; "" where the kernel has none."""
    return read_or_empty(root / _THP / "enabled")


def thp_defrag(root: Path = _ROOT) -> str:
    """How hard a fault tries for a huge page: always, defer, defer+madvise, madvise, never; "" where there is none."""
    return read_or_empty(root / _THP / "defrag")


def mthp(root: Path = _ROOT) -> dict[str, str]:
    """Each size of huge page, as the kernel writes it ("64kB"), smallest first: always, inherit, madvise, never."""
    sizes = {}
    for folder in (root / _THP).glob("hugepages-*kB"):
        value = read_or_empty(folder / "enabled")  # 8kB has none: it is for shared memory only
        if value:
            sizes[int(folder.name[len("hugepages-") : -len("kB")])] = value
    return {f"{size}kB": sizes[size] for size in sorted(sizes)}


def mthp_knob(size_bytes: int, root: Path = _ROOT) -> Path:
    """The knob that switches huge pages of this size."""
    return root / _THP / f"hugepages-{size_bytes // 1024}kB" / "enabled"


def state_dir() -> Path:
    """Where old values are kept while knobs are changed; it need not outlive a reboot, as the knobs do not."""
    if os.geteuid() == 0 and Path("/run").is_dir():
        return Path("/run/firsttouch")
    return Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"firsttouch-{os.getuid()}"


class KnobGuard:
    """The right to change some knobs until `guard_knobs` ends; `old` has their values from before."""

    def __init__(self, old: dict[str, str]) -> None:
        self.old = old

    def set(self, values: Mapping[Path | str, str]) -> None:
        """Write knobs, in order. Raises KeyError for a knob that is not guarded, NotHere when the kernel refuses."""
        for path, value in values.items():
            if str(path) not in self.old:
                raise KeyError(f"{path} is not guarded")
            _write(str(path), value)


def _write(path: str, value: str) -> None:
    try:
        Path(path).write_text(value)
    except OSError as error:
        raise NotHere(f"cannot set {path} to {value!r}: {error.strerror}", f"as root: echo {value} > {path}") from None


@contextlib.contextmanager
def guard_knobs(paths: Iterable[Path | str], state: Path | None = None) -> Iterator[KnobGuard]:
    """Let the block change these knobs; whatever happens to it or to this process, they are restored.

    `state` is the folder of `knobs.json`. Restores first what an earlier run left behind.

    Raises
    ------
    NotHere
        A knob cannot be read or written by this user.
    FirsttouchError
        Another process has knobs changed; or a knob could not be restored (the message names it).
    """
    with _locked(state or state_dir()) as handle:
        _recover(handle)
        old = {str(path): read_knob(path) for path in paths}
        for path in old:
            if not os.access(path, os.W_OK):
                raise NotHere(f"cannot write {path}: it needs root", "run it with sudo")
        text = json.dumps(old).encode() + b"\n"
        os.pwrite(handle, text, 0)
        os.fsync(handle)
        guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD, str(handle)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(handle,),
            start_new_session=True,  # Ctrl-C at the terminal reaches us, not the guard
        )
        assert guard.stdin is not None and guard.stdout is not None
        try:
            guard.stdin.write(text)
            guard.stdin.flush()
            if guard.stdout.readline() != b"ready\n":
                raise NotHere(
                    "the process that restores settings did not start", "see whether the machine is out of memory"
                )
            yield KnobGuard(old)
        finally:
            with contextlib.suppress(BrokenPipeError):
                guard.stdin.close()
            failed = guard.stdout.read().decode()
            guard.stdout.close()
            if guard.wait() != 0:
                if failed:
                    raise FirsttouchError(
                        f"could not restore {failed}", "its old value is in " + str(state or state_dir())
                    )
                _recover(handle)  # the guard itself was killed


@contextlib.contextmanager
def set_knobs(values: Mapping[Path | str, str], state: Path | None = None) -> Iterator[KnobGuard]:
    """Set knobs for the block, and restore them after it as `guard_knobs` does."""
    with guard_knobs(values, state) as guard:
        guard.set(values)
        yield guard


def recover(state: Path | None = None) -> list[str]:
    """Restore what a crashed run left changed; returns the knobs restored. Does nothing while their owner is alive."""
    folder = state or state_dir()
    if not (folder / "knobs.json").is_file():
        return []
    try:
        with _locked(folder) as handle:
            return _recover(handle)
    except Busy:
        return []


class Busy(FirsttouchError):
    """Another process has knobs changed."""

    exit_code = 1


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[int]:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.geteuid():
            raise NotHere(f"{folder} belongs to another user", "remove it")
        handle = os.open(folder / "knobs.json", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise NotHere(f"cannot keep old settings in {folder}: {error.strerror}", "set XDG_RUNTIME_DIR") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy("another firsttouch has settings of this kernel changed", "wait until it ends") from None
        yield handle
    finally:
        os.close(handle)


def _recover(handle: int) -> list[str]:
    """Restore from `knobs.json` and empty it. A torn file was never acted upon (K1), so it is only emptied."""
    try:
        old = json.loads(os.pread(handle, os.fstat(handle).st_size, 0) or b"{}")
    except ValueError:
        old = {}
    for path, value in old.items():
        _write(path, value)
    os.ftruncate(handle, 0)
    return list(old)
