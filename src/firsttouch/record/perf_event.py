"""perf_event_open(2) by hand: the attribute structure, the call, and what a refusal means.

Only what recording page faults and sampling CPUs need. Numbers are those of the kernel's <linux/perf_event.h>, which
never change.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from dataclasses import dataclass
from pathlib import Path

from firsttouch.errors import FirsttouchError, NotHere
from firsttouch.trace.raw import SAMPLE_ADDR as SAMPLE_ADDR
from firsttouch.trace.raw import SAMPLE_CALLCHAIN as SAMPLE_CALLCHAIN
from firsttouch.trace.raw import SAMPLE_IP as SAMPLE_IP
from firsttouch.trace.raw import SAMPLE_RAW as SAMPLE_RAW
from firsttouch.trace.raw import SAMPLE_TID as SAMPLE_TID
from firsttouch.trace.raw import SAMPLE_TIME as SAMPLE_TIME

TYPE_HARDWARE, TYPE_SOFTWARE, TYPE_TRACEPOINT = 0, 1, 2
HW_CPU_CYCLES = 0
SW_CPU_CLOCK = 0
SW_PAGE_FAULTS = 2
SW_DUMMY = 9  # never happens: an event for side-band records only

# attr's bit field
DISABLED = 1 << 0
INHERIT = 1 << 1
EXCLUDE_KERNEL = 1 << 5
EXCLUDE_HV = 1 << 6
EXCLUDE_IDLE = 1 << 7
MMAP = 1 << 8
COMM = 1 << 9
ENABLE_ON_EXEC = 1 << 12
TASK = 1 << 13
WATERMARK = 1 << 14
MMAP_DATA = 1 << 17
SAMPLE_ID_ALL = 1 << 18
EXCLUDE_CALLCHAIN_KERNEL = 1 << 21
MMAP2 = 1 << 23
COMM_EXEC = 1 << 24
CONTEXT_SWITCH = 1 << 26
SIDE_BAND = MMAP | COMM | TASK | MMAP_DATA | MMAP2 | COMM_EXEC | CONTEXT_SWITCH  # on one event per CPU only

FORMAT_LOST = 1 << 4  # read(2) gives the records that this event lost (Linux 6.0)

IOC_ENABLE = 0x2400
IOC_DISABLE = 0x2401
IOC_SET_OUTPUT = 0x2405

FLAG_FD_CLOEXEC = 8
_CALL = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}
_ATTR = struct.Struct("<IIQQQQQIIQQQQIiQIHH")  # up to sample_max_stack: 112 bytes
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Event:
    """One event to open: what it counts and what each of its samples holds."""

    kind: int  # TYPE_...
    config: int  # of that type: SW_PAGE_FAULTS, or the id of a tracepoint
    sample_type: int  # SAMPLE_... bits
    flags: int  # bits of attr
    period: int = 1  # a sample each so many; of a clock: ns

    def attr(self, watermark_bytes: int, read_format: int) -> bytes:
        """`struct perf_event_attr`; a reader is woken when `watermark_bytes` of the ring are filled."""
        return _ATTR.pack(
            self.kind, _ATTR.size, self.config, self.period, self.sample_type, read_format, self.flags,
            watermark_bytes, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        )  # fmt: skip


def open_event(event: Event, pid: int, cpu: int, watermark_bytes: int = 0) -> int:
    """File descriptor of `event` for `pid` on `cpu`. Raises OSError with the kernel's errno."""
    number = _CALL.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    for read_format in (FORMAT_LOST, 0):
        attr = event.attr(watermark_bytes, read_format)
        fd = _libc.syscall(number, attr, pid, cpu, -1, FLAG_FD_CLOEXEC)
        if fd >= 0:
            return int(fd)
        if ctypes.get_errno() != errno.EINVAL:
            break
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def lost_records(fd: int) -> int | None:
    """Records of this event, and of those that inherit it, that found the ring full; None before Linux 6.0."""
    try:
        value = os.read(fd, 16)
    except OSError:
        return None
    return int(struct.unpack("<QQ", value)[1]) if len(value) == 16 else None


def paranoid() -> int | None:
    """`kernel.perf_event_paranoid`, or None where the kernel has no perf events."""
    return read_int("/proc/sys/kernel/perf_event_paranoid")


def mlock_bytes() -> int:
    """Ring memory that an ordinary user may pin per CPU, on top of RLIMIT_MEMLOCK."""
    return (read_int("/proc/sys/kernel/perf_event_mlock_kb") or 516) * 1024


def read_int(path: str) -> int | None:
    """The integer in a file of /proc or /sys, or None."""
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None


def in_container() -> bool:
    """Whether this looks like a container: its seccomp filter may refuse what the kernel would allow."""
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        return True
    return "Seccomp:\t2" in _status()


def _is_mine(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}").stat().st_uid == os.geteuid()
    except OSError:
        return True


def _status() -> str:
    try:
        return Path("/proc/self/status").read_text()
    except OSError:
        return ""


def refusal(error: OSError, what: str, pid: int | None = None) -> FirsttouchError:
    """What to tell the user when the kernel refused to open `what`, of process `pid` if that was there before."""
    level = paranoid()
    reason = f"cannot open {what}: {error.strerror}"
    if level is None or error.errno == errno.ENOSYS:
        return NotHere(
            f"{reason}; this kernel, or the container's seccomp filter, has no perf events",
            "in a container: docker run --security-opt seccomp=unconfined --cap-add PERFMON ...",
        )
    if error.errno in (errno.EPERM, errno.EACCES):
        if level > 2 and os.geteuid() != 0:
            return NotHere(
                f"{reason}; perf_event_paranoid is {level}, and recording needs 2 or lower",
                "try: sudo sysctl kernel.perf_event_paranoid=2",
            )
        if pid is not None and not _is_mine(pid):
            return NotHere(f"{reason}; that process belongs to another user", "run this as that user, or as root")
        if in_container():
            return NotHere(
                f"{reason}; a seccomp filter is active, as in a container",
                "try: docker run --security-opt seccomp=unconfined --cap-add PERFMON ...",
            )
        return NotHere(f"{reason}; the kernel gives no reason", "see: firsttouch doctor")
    if error.errno == errno.ESRCH:
        return FirsttouchError(f"{reason}; there is no such process", "see what runs: ps -e")
    if error.errno == errno.EMFILE:
        return NotHere(f"{reason}; one is needed per thread, CPU and event", "try: ulimit -n 65536")
    return NotHere(f"{reason} (errno {error.errno})", "see: firsttouch doctor")
