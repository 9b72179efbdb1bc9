"""The clock of perf events, read from user space.

Samples carry the scheduler's clock: to have them carry CLOCK_MONOTONIC instead costs the recorded program some 20 ns a
fault. Nothing but the kernel reads that clock, so we have it read for us: a thread that gives itself the name it has
makes a COMM record, with its time.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import time

from firsttouch.record import perf_event as pe
from firsttouch.record.ring import Ring

_PR_SET_NAME, _PR_GET_NAME = 15, 16
_libc = ctypes.CDLL(None, use_errno=True)


class Clock:
    """The clock of perf events, for the thread that makes it. Raises OSError or CannotPin where it may not be read."""

    def __init__(self) -> None:
        flags = pe.COMM | pe.SAMPLE_ID_ALL | pe.EXCLUDE_KERNEL | pe.EXCLUDE_HV
        self._fd = pe.open_event(pe.Event(pe.TYPE_SOFTWARE, pe.SW_DUMMY, pe.SAMPLE_TIME, flags), 0, -1)
        try:
            self._ring = Ring(self._fd, mmap.PAGESIZE)
        except BaseException:
            os.close(self._fd)
            raise
        self._name = ctypes.create_string_buffer(16)
        looks = [(time.monotonic_ns(), self.now_ns(), time.monotonic_ns()) for _ in range(3)]
        before_ns, now_ns, after_ns = min(looks, key=lambda look: look[2] - look[0])
        self.monotonic_offset_ns = (before_ns + after_ns) // 2 - now_ns  # what CLOCK_MONOTONIC is ahead, to begin with

    def now_ns(self) -> int:
        """What a sample taken now would carry."""
        _libc.prctl(_PR_GET_NAME, self._name, 0, 0, 0)
        _libc.prctl(_PR_SET_NAME, self._name, 0, 0, 0)
        pieces, end = self._ring.waiting()
        (now_ns,) = struct.unpack("<q", bytes(pieces[-1][-8:]))  # records are of multiples of 8 bytes and end in it
        self._ring.free(end)
        return int(now_ns)

    def close(self) -> None:
        """Close the event."""
        self._ring.close()
        os.close(self._fd)
