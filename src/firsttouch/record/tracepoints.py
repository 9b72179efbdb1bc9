"""Tracepoints: their numbers and the offsets of their fields, as this kernel's tracefs gives them.

Where tracefs is mounted it is read. Where it is not, a short-lived child mounts it in a mount namespace of its own,
so that nothing on the machine changes.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from firsttouch.errors import NotHere
from firsttouch.trace.decode import RAW_TID_WORD

# name -> fields in the order in which the decoding kernel wants them; those of a system call's entry are its arguments
WANTED = {
    "exceptions/page_fault_user": ("address", "ip", "error_code"),
    "exceptions/page_fault_kernel": ("address", "ip", "error_code"),
    "syscalls/sys_enter_munmap": ("addr", "len"),
    "syscalls/sys_enter_madvise": ("start", "len_in", "behavior"),
    "syscalls/sys_exit_brk": ("ret",),
    "syscalls/sys_enter_mremap": ("addr", "old_len", "new_len", "flags"),
    "syscalls/sys_exit_mremap": ("ret",),
    "syscalls/sys_enter_mmap": ("len", "flags"),
    "syscalls/sys_exit_mmap": ("ret",),
    "sched/sched_waking": ("pid",),
}
MOUNT_POINTS = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")

_CLONE_NEWNS = 0x20000
_MS_REC, _MS_PRIVATE = 1 << 14, 1 << 18
_FIELD = re.compile(r"field:[^;]*?(\w+)(?:\[\d*\])?;\s*offset:(\d+);\s*size:(\d+);")


@dataclass(frozen=True)
class Tracepoint:
    """One tracepoint: its number, and the byte offset of each wanted field in a raw sample."""

    name: str
    id: int
    offsets: tuple[int, ...]  # each field is 8 bytes, or 4 and not the last, at a multiple of 4
    names_thread: bool = True  # the thread is where `decode` looks for it


def mounted() -> Path | None:
    """Where tracefs is mounted and readable, or None."""
    for point in MOUNT_POINTS:
        if os.access(f"{point}/events/exceptions", os.R_OK | os.X_OK):
            return Path(point)
    return None


def read() -> dict[str, Tracepoint]:
    """The tracepoints of WANTED. Raises NotHere when they cannot be read, or this kernel lacks one."""
    point = mounted()
    formats = _formats(point) if point else _formats_in_namespace()
    found = {}
    for name, fields in WANTED.items():
        if name not in formats:
            raise NotHere(f"this kernel has no tracepoint {name}", "record with --level basic")
        found[name] = parse(name, formats[name], fields)
    return found


def parse(name: str, text: str, fields: tuple[str, ...]) -> Tracepoint:
    """A tracepoint from the text of its `format` file. Raises NotHere if a field is missing or of another width."""
    number = re.search(r"^ID: (\d+)$", text, re.MULTILINE)
    places = {field: (int(offset), int(size)) for field, offset, size in _FIELD.findall(text)}
    for field in fields:
        offset, size = places.get(field, (0, 0))
        last = max(place[0] for place in places.values()) if places else 0
        if number is None or offset % 4 or not (size == 8 or (size == 4 and offset < last)):
            raise NotHere(f"tracepoint {name} of this kernel has no field {field}", "record with --level basic")
    assert number is not None
    thread = places.get("common_pid") == (4 * RAW_TID_WORD, 4)
    return Tracepoint(name, int(number[1]), tuple(places[field][0] for field in fields), thread)


def _formats(point: Path) -> dict[str, str]:
    formats = {}
    for name in WANTED:
        try:
            formats[name] = (point / "events" / name / "format").read_text()
        except OSError:
            continue
    return formats


def _formats_in_namespace() -> dict[str, str]:
    """The `format` files, read by a child that mounts tracefs where nobody else sees it."""
    libc = ctypes.CDLL(None, use_errno=True)
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(out)
            point = MOUNT_POINTS[0].encode()
            if (
                libc.unshare(_CLONE_NEWNS) == 0
                and libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) == 0
                and libc.mount(b"tracefs", point, b"tracefs", 0, None) == 0
            ):
                with open(into, "w") as pipe:
                    json.dump(_formats(Path(MOUNT_POINTS[0])), pipe)
                status = 0
        finally:
            os._exit(status)
    os.close(into)
    with open(out) as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    if status != 0 or not text:
        hint = "try: sudo mount -t tracefs nodev /sys/kernel/tracing" if os.geteuid() == 0 else "run as root"
        raise NotHere("the kernel's tracepoints cannot be read: tracefs is not mounted, or not for this user", hint)
    formats: dict[str, str] = json.loads(text)
    return formats
