"""Mappings of memory at a superpage boundary."""

from __future__ import annotations

import ctypes
import mmap
import os

from firsttouch.errors import FirsttouchError

MADV_DONTNEED, MADV_HUGEPAGE, MADV_NOHUGEPAGE = 4, 14, 15
MADV_POPULATE_WRITE = 23  # Linux 5.14
_MAP_ALIGN = 2 << 20  # no mapping of ours shares a page-table page with another
_PROT_NONE, _MAP_FIXED = 0, 0x10  # the mmap module lacks them

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Region:
    """A mapping of `nr_bytes` from a 2 MiB boundary; `fd` -1 is anonymous memory. Unmapped at the end of `with`."""

    def __init__(self, nr_bytes: int, fd: int = -1, shared: bool = False) -> None:
        flags = (mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE) | (mmap.MAP_ANONYMOUS if fd < 0 else 0)
        prot = mmap.PROT_READ | mmap.PROT_WRITE
        self.nr_bytes = nr_bytes
        room = _map(0, nr_bytes + _MAP_ALIGN, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        self.address = -(-room // _MAP_ALIGN) * _MAP_ALIGN
        _unmap(room, self.address - room)
        _unmap(self.address + nr_bytes, room + _MAP_ALIGN - self.address)
        _map(self.address, nr_bytes, prot, flags | _MAP_FIXED, fd)  # over the room that is ours

    def advise(self, advice: int, start: int = 0, nr_bytes: int | None = None) -> bool:
        """madvise all, or `nr_bytes` from offset `start`; False where the kernel refuses it, or memory is short."""
        nr_bytes = self.nr_bytes if nr_bytes is None else nr_bytes
        return bool(_libc.madvise(self.address + start, nr_bytes, advice) == 0)

    def make_code(self) -> None:
        """What is in it is machine code, to be run and no longer to be written. Raises FirsttouchError."""
        if _libc.mprotect(self.address, self.nr_bytes, mmap.PROT_READ | mmap.PROT_EXEC):
            raise FirsttouchError(
                f"cannot make {self.nr_bytes} bytes executable: {os.strerror(ctypes.get_errno())}",
                "the system forbids machine code made at run time",
            )

    def unmap(self, nr_bytes: int | None = None) -> None:
        """Unmap the first `nr_bytes`, or all that is left."""
        nr_bytes = self.nr_bytes if nr_bytes is None else nr_bytes
        _unmap(self.address, nr_bytes)
        self.address += nr_bytes
        self.nr_bytes -= nr_bytes

    def __enter__(self) -> Region:
        return self

    def __exit__(self, *_: object) -> None:
        self.unmap()


def _map(address: int, nr_bytes: int, prot: int, flags: int, fd: int) -> int:
    mapped = _libc.mmap(address, nr_bytes, prot, flags, fd, 0)
    if mapped is None or mapped == ctypes.c_void_p(-1).value:
        raise FirsttouchError(
            f"cannot map {nr_bytes} bytes: {os.strerror(ctypes.get_errno())}", "free some memory, or raise ulimit -v"
        )
    return int(mapped)


def _unmap(address: int, nr_bytes: int) -> None:
    if nr_bytes and _libc.munmap(address, nr_bytes):
        raise FirsttouchError(f"cannot unmap {nr_bytes} bytes: {os.strerror(ctypes.get_errno())}")
