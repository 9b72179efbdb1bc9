"""The ring buffer of one CPU: the kernel writes records at `head`, the reader frees them by moving `tail`."""

from __future__ import annotations

import mmap
import os

import numpy as np


class CannotPin(Exception):
    """This user may not pin so much memory."""


class Ring:
    """The ring of one CPU, mapped; `fd` is the event that owns it. Raises CannotPin."""

    def __init__(self, fd: int, nr_bytes: int) -> None:
        self.fd = fd
        self.nr_bytes = nr_bytes
        page = os.sysconf("SC_PAGESIZE")
        try:
            self._map = mmap.mmap(fd, page + nr_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        except (OSError, MemoryError):
            raise CannotPin from None
        self._head = np.frombuffer(self._map, np.uint64, 1, 1024)
        self._tail = np.frombuffer(self._map, np.uint64, 1, 1032)
        self._data = memoryview(self._map)[page : page + nr_bytes]

    def waiting(self) -> tuple[list[memoryview], int]:
        """What the kernel has written and nobody has taken, in one or two pieces of the ring itself, and its end."""
        head, tail = int(self._head[0]), int(self._tail[0])
        nr = head - tail
        at = tail % self.nr_bytes
        first = min(nr, self.nr_bytes - at)
        return [piece for piece in (self._data[at : at + first], self._data[: nr - first]) if len(piece)], head

    def free(self, end: int) -> None:
        """Give the kernel the room before `end` back; pieces that `waiting` gave are void."""
        self._tail[0] = end

    def close(self) -> None:
        """Unmap the ring."""
        self._data.release()
        del self._head, self._tail
        self._map.close()
