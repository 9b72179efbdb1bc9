"""User and system time of a program, told apart by samples of what every CPU did.

Most kernels split the CPU time of a process by what their tick finds it doing, every 1 to 10 ms, and a process that
ends before its first tick counts as all user: the split of a short program is noise, that of a tree of short processes
wrong. Their sum is exact. So the sum is the kernel's, and its parts are those of finer samples: the CPU clock of perf
events interrupts each CPU every `PERIOD_NS`, whatever it runs, and says which process it met, in which mode.

The events belong to CPUs, not to the program: one that a process inherits begins its period anew in each child, and
would hardly ever meet children shorter than the period. Whose child a process is comes from the kernel's records of
forks, on the same rings.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from typing import NamedTuple

from firsttouch.record import perf_event as pe
from firsttouch.record.recorder import online_cpus
from firsttouch.record.ring import Ring

PERIOD_NS = 500_000  # costs about 1 %; half of it twice that
RING_BYTES = 1 << 20  # half a minute of a busy CPU
NEARLY_FULL_BYTES = 64  # a record that would not fit is not written
_LOST, _FORK, _SAMPLE = 2, 7, 9  # PERF_RECORD_...
_MODE_MASK, _KERNEL, _USER = 7, 1, 2  # PERF_RECORD_MISC_...
_HEADER = struct.Struct("<IHH")  # kind, misc, size
_PAIR = struct.Struct("<II")  # a sample's pid and tid; a fork's pid and its parent's
_EVENT = pe.Event(
    pe.TYPE_SOFTWARE, pe.SW_CPU_CLOCK, pe.SAMPLE_TID, pe.EXCLUDE_HV | pe.EXCLUDE_IDLE | pe.TASK, PERIOD_NS
)


class Split(NamedTuple):
    """Samples of a program by mode, each worth `PERIOD_NS` of one CPU."""

    user: int
    kernel: int


class SplitClock:
    """Samples every CPU from now on. Raises OSError or CannotPin where this user may not.

    That takes CAP_PERFMON, or a `kernel.perf_event_paranoid` of at most 0.
    """

    def __init__(self) -> None:
        self._fds: list[int] = []
        self._rings: list[Ring] = []
        try:
            for cpu in online_cpus():
                self._fds.append(pe.open_event(_EVENT, -1, cpu))
                self._rings.append(Ring(self._fds[-1], RING_BYTES))
        except BaseException:
            self.close()
            raise

    def read(self, ancestor: int) -> Split | None:
        """The samples, since the last call, of all processes that `ancestor` began since then, and of theirs.

        None if a ring was full: then some are missing.
        """
        found = []
        for ring in self._rings:
            pieces, end = ring.waiting()
            found.append(b"".join(pieces))
            ring.free(end)
        if any(len(data) > RING_BYTES - NEARLY_FULL_BYTES for data in found):
            return None
        return split_of(found, ancestor)

    def close(self) -> None:
        """Stop sampling."""
        for ring in self._rings:
            ring.close()
        for fd in self._fds:
            os.close(fd)
        self._rings, self._fds = [], []


def split_of(rings: Iterable[bytes], ancestor: int) -> Split | None:
    """What the records of some rings, in any order, say of the descendants of a process; see `SplitClock.read`.

    Raises ValueError for what is no row of whole records.
    """
    children: dict[int, set[int]] = {}
    samples: dict[int, list[int]] = {}  # by process: in user mode, in the kernel
    for data in rings:
        at = 0
        while at < len(data):
            if len(data) - at < _HEADER.size:
                raise ValueError(f"{len(data) - at} bytes where a record begins")
            kind, misc, size = _HEADER.unpack_from(data, at)
            if size < _HEADER.size or size > len(data) - at:
                raise ValueError(f"a record of {size} bytes where {len(data) - at} are left")
            if kind == _LOST:
                return None
            if kind in (_FORK, _SAMPLE):
                if size < _HEADER.size + _PAIR.size:
                    raise ValueError(f"a record of kind {kind} in {size} bytes")
                pid, other = _PAIR.unpack_from(data, at + _HEADER.size)
                mode = misc & _MODE_MASK
                if kind == _FORK and pid != other:  # else a thread
                    children.setdefault(other, set()).add(pid)
                elif kind == _SAMPLE and mode in (_USER, _KERNEL):
                    samples.setdefault(pid, [0, 0])[mode == _KERNEL] += 1
            at += size
    family: set[int] = set()
    waiting = [ancestor]
    while waiting:
        fresh = children.get(waiting.pop(), set()) - family
        family |= fresh
        waiting += fresh
    mine = [samples[pid] for pid in family & samples.keys()]
    return Split(sum(user for user, _ in mine), sum(kernel for _, kernel in mine))
