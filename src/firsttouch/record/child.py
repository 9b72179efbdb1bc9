"""The recorded program: forked early, held at a pipe until the events are open, then made to exec.

The child runs ctypes calls only. Just before exec it notes its own resource usage in a page shared with the parent,
so that what Python used up to there can be taken off the program's account.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import signal
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from firsttouch.errors import FirsttouchError

_PR_SET_THP_DISABLE = 41
_GET_PERSONALITY = 0xFFFFFFFF
_ADDR_NO_RANDOMIZE = 0x0040000
_RUSAGE_SELF = 0
_CLOCK_MONOTONIC = 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Usage:
    """Resource usage of a program and of the children that it waited for."""

    minflt: int
    majflt: int
    user_ns: int
    system_ns: int


@dataclass(frozen=True)
class Conditions:
    """What a program runs under, for runs that must be alike; by default as its parent does."""

    env: Mapping[str, str] | None = None  # the whole environment
    cwd: Path | None = None
    fixed_addresses: bool = False  # no address-space randomisation, for it and its descendants
    stderr: Path | None = None  # if set: stderr goes to this file, stdin and stdout are /dev/null

    @property
    def environment(self) -> dict[str, str]:
        """The environment, spelled out."""
        return dict(os.environ if self.env is None else self.env)


AS_PARENT = Conditions()


def fix_addresses() -> bool:
    """Switch address-space randomisation off for what this process will exec; False where that is not allowed."""
    now = _libc.personality(_GET_PERSONALITY)
    return bool(now >= 0 and _libc.personality(now | _ADDR_NO_RANDOMIZE) >= 0)


def find_program(name: str) -> str:
    """Path of the program as a shell would find it. Raises FirsttouchError when there is none that may run."""
    if "/" not in name:
        found = shutil.which(name)
        if found is None:
            raise FirsttouchError(
                f"cannot run {name!r}: no such program in PATH", "give its path, or check the spelling"
            )
        return found
    path = Path(name)
    if not path.exists():
        raise FirsttouchError(f"cannot run {name}: no such file", "give the path of a program")
    if path.is_dir() or not os.access(path, os.X_OK):
        raise FirsttouchError(f"cannot run {name}: permission denied", f"try: chmod +x {name}")
    return name


class Child:
    """A forked program that waits for `go()`."""

    def __init__(self, command: Sequence[str], *, thp_disable: bool, conditions: Conditions = AS_PARENT) -> None:
        path = find_program(command[0])
        self.command = list(command)
        self._usage = mmap.mmap(-1, mmap.PAGESIZE)
        usage = (ctypes.c_long * 18).from_buffer(self._usage)
        clock = (ctypes.c_long * 2).from_buffer(self._usage, ctypes.sizeof(usage))
        # every byte that exec needs is laid out now: the child must not fault in Python between usage and exec
        argv = [os.fsencode(word) for word in command]
        words = (ctypes.c_char_p * (len(argv) + 1))(*argv, None)
        shell = (ctypes.c_char_p * (len(argv) + 2))(b"/bin/sh", os.fsencode(path), *argv[1:], None)
        env = [os.fsencode(key) + b"=" + os.fsencode(value) for key, value in conditions.environment.items()]
        envp = (ctypes.c_char_p * (len(env) + 1))(*env, None)
        program = os.fsencode(path)
        go_read, self._go = os.pipe()
        self._error, error_write = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fork beside NumPy's idle threads: the child execs
            self.pid = os.fork()
        if self.pid == 0:
            try:
                for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
                    signal.signal(number, signal.SIG_DFL)
                os.close(self._go)
                _apply(conditions)
                if thp_disable:
                    _libc.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
                _libc.execve(b"", words, envp)  # fails, and has faulted in what the real call needs
                if os.read(go_read, 1) == b"g":
                    for _ in range(2):  # the second time faults no more
                        _libc.clock_gettime(_CLOCK_MONOTONIC, clock)
                        _libc.getrusage(_RUSAGE_SELF, usage)
                    _libc.execve(program, words, envp)
                    error = ctypes.get_errno()
                    if error == 8:  # ENOEXEC: a script without #!, which a shell would run itself
                        _libc.execve(b"/bin/sh", shell, envp)
                    os.write(error_write, error.to_bytes(4, "little"))
            finally:
                os._exit(127)
        os.close(go_read)
        os.close(error_write)
        self.pidfd = os.pidfd_open(self.pid)

    def go(self) -> None:
        """Let it exec. Raises FirsttouchError if that fails."""
        os.write(self._go, b"g")
        error = os.read(self._error, 4)
        if error:
            number = int.from_bytes(error, "little")
            raise FirsttouchError(
                f"cannot run {self.command[0]}: {os.strerror(number)}", "check the program and its arguments"
            )

    def abandon(self) -> None:
        """Be rid of a child that has not come to run the program."""
        self.close()
        os.waitpid(self.pid, 0)

    def wait(self, exec_ns: int | None) -> tuple[int, Usage]:
        """Its exit status as a shell shows it, and what it used since exec, which was at `exec_ns` if that is known.

        Between the note of usage and the exec event the kernel tears down the forked Python: system time that is
        not the program's.
        """
        _, status, used = os.wait4(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        before = (ctypes.c_long * 20).from_buffer_copy(self._usage)
        teardown_ns = max(0, exec_ns - before[18] * 10**9 - before[19]) if exec_ns else 0
        user_ns = round(used.ru_utime * 1e9) - before[0] * 10**9 - before[1] * 1000
        system_ns = round(used.ru_stime * 1e9) - before[2] * 10**9 - before[3] * 1000 - teardown_ns
        usage = Usage(
            minflt=max(0, used.ru_minflt - before[8]),
            majflt=max(0, used.ru_majflt - before[9]),
            user_ns=max(0, user_ns + min(0, system_ns)),  # the kernel splits the sum by ticks: keep the sum right
            system_ns=max(0, system_ns),
        )
        return (code if code >= 0 else 128 - code), usage

    def close(self) -> None:
        """Close the pipes; a child that still waits ends."""
        for fd in (self._go, self._error, self.pidfd):
            os.close(fd)


def _apply(conditions: Conditions) -> None:
    """In the child, before its usage is noted."""
    if conditions.fixed_addresses:
        fix_addresses()
    if conditions.cwd is not None:
        os.chdir(conditions.cwd)
    if conditions.stderr is not None:
        quiet = os.open(os.devnull, os.O_RDWR)
        errors = os.open(conditions.stderr, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for fd, to in ((quiet, 0), (quiet, 1), (errors, 2)):
            os.dup2(fd, to)
        for fd in (quiet, errors):
            os.close(fd)
