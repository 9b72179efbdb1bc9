"""`NAME.ftt.raw`: what the kernel wrote while a trace is being recorded, as it wrote it.

Recording must not take CPU time from a program that uses every CPU, and building tables does. So what is found in the
rings goes into this file first, at the cost of one write. It is folded into the trace when a CPU is idle, when the
program has ended, or, if the recorder was killed, when the trace is next opened; then it is removed.

The file is a line that says what it is, a line of JSON (`Header`), and blocks. A block is a head (what, bytes, time)
and that many bytes: a look at the rings (for each ring a length, then their contents), or a process that ran before.

Invariants:
  W1  a block is complete or it is the last: what follows an incomplete one was never written
  W2  records of a look are older than its time, or may come again in the next (see `assemble`)
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from firsttouch.errors import FirsttouchError

# What a sample holds, as bits of the kernel's attr.sample_type and in this order, which is also the kernel's
SAMPLE_IP = 1 << 0
SAMPLE_TID = 1 << 1  # pid and tid
SAMPLE_TIME = 1 << 2
SAMPLE_ADDR = 1 << 3
SAMPLE_CALLCHAIN = 1 << 5
SAMPLE_RAW = 1 << 10

NR_ARGS = 5  # fields that are read of a tracepoint's raw data

_MAGIC = b"firsttouch raw 1\n"
_HEAD = struct.Struct("<4sIQq")  # what, nothing, bytes, time
_LOOK, _PROCESS = b"look", b"proc"
_MAX_HEADER_BYTES = 1 << 20
_MAX_PIECES = 1024  # of one writev

Mapping = tuple[int, int, int, int, int, str]  # start, end, pgoff_bytes, prot, flags, name


class RingFormat(msgspec.Struct, frozen=True):
    """What the samples of one ring hold; see decode.Layout."""

    cpu: int
    sample_type: int
    points: list[int]
    roles: list[int]
    offsets: list[list[int]]  # [event, NR_ARGS]


class Header(msgspec.Struct, frozen=True):
    """What the contents of the rings mean."""

    start_ns: int  # CLOCK_MONOTONIC; times of the trace count from here
    page_bytes: int
    stack_bytes: int  # a main stack grows to this size at most
    stacks: bool  # call chains are recorded
    rings: list[RingFormat]


class Process(msgspec.Struct, frozen=True):
    """A process that ran before it was recorded."""

    pid: int
    mappings: list[Mapping]
    threads: list[tuple[int, str]]  # tid, name


class Look(NamedTuple):
    """What one look at all rings found; everything older than `cut_ns` has been seen now."""

    cut_ns: int
    chunks: list[NDArray[np.uint32]]  # [ring]


class Running(NamedTuple):
    """A process as it was at a time."""

    t_ns: int
    process: Process


def raw_path(trace: Path) -> Path:
    """Where the raw records of a trace are while it is not complete."""
    return trace.with_name(trace.name + ".raw")


class RawWriter:
    """Appends blocks. Every write is in the file when the call returns: it outlives the process."""

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.nr_bytes = 0
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise _cannot_write(path, error.strerror) from None
        self._write([memoryview(_MAGIC + msgspec.json.encode(header) + b"\n")])

    def look(self, cut_ns: int, rings: Sequence[Sequence[memoryview]]) -> None:
        """One look: for each ring its pieces, of a multiple of 8 bytes in all. Raises FirsttouchError: disk full."""
        lengths = [sum(len(piece) for piece in pieces) for pieces in rings]
        body = struct.pack(f"<{len(lengths)}Q", *lengths)
        head = _HEAD.pack(_LOOK, 0, len(body) + sum(lengths), cut_ns)
        self._write([memoryview(head + body), *(piece for pieces in rings for piece in pieces)])

    def process(self, t_ns: int, process: Process) -> None:
        """A process as it was at a time. Raises FirsttouchError: disk full."""
        body = msgspec.json.encode(process)
        self._write([memoryview(_HEAD.pack(_PROCESS, 0, len(body), t_ns) + body)])

    def _write(self, pieces: list[memoryview]) -> None:
        """Append all of it; what a full disk cuts short is no block."""
        whole = sum(len(piece) for piece in pieces)
        try:
            for first in range(0, len(pieces), _MAX_PIECES):
                part = pieces[first : first + _MAX_PIECES]
                nr = os.writev(self._fd, part)
                if nr < sum(len(piece) for piece in part):
                    rest = b"".join(part)[nr:]
                    while rest:
                        rest = rest[os.write(self._fd, rest) :]
            self.nr_bytes += whole
            return
        except OSError as error:
            failed = error.strerror
        raise _cannot_write(self.path, failed)  # here, and not above: it must not keep the pieces of the rings alive

    def close(self) -> None:
        """Close the file and leave it."""
        os.close(self._fd)

    def remove(self) -> None:
        """The trace holds all of it."""
        self.path.unlink(missing_ok=True)


class RawReader:
    """Reads blocks in order, also while they are being written. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 (closed by close)
        try:
            begin = self._file.read(_MAX_HEADER_BYTES)
            line, newline, rest = begin.partition(b"\n")
            text, end, _ = rest.partition(b"\n")
            if line + newline != _MAGIC or not end:
                raise self._damaged("it does not begin as one")
            try:
                self.header = msgspec.json.decode(text, type=Header)
            except msgspec.MsgspecError as error:
                raise self._damaged(str(error)) from None
            _check(self.header, self._damaged)
        except BaseException:
            self._file.close()
            raise
        self.at = len(_MAGIC) + len(text) + 1  # where the next block begins

    def next(self) -> Look | Running | None:
        """The next block, or None if there is no complete one (yet). Raises FirsttouchError for what cannot be one."""
        size = os.fstat(self._file.fileno()).st_size
        head = os.pread(self._file.fileno(), _HEAD.size, self.at)
        if len(head) < _HEAD.size:
            return None
        what, _, nr_bytes, t_ns = _HEAD.unpack(head)
        if what not in (_LOOK, _PROCESS):
            raise self._damaged(f"there is no block at byte {self.at}")
        if self.at + _HEAD.size + nr_bytes > size:
            return None
        body = os.pread(self._file.fileno(), nr_bytes, self.at + _HEAD.size)
        block = self._look(t_ns, body) if what == _LOOK else self._running(t_ns, body)
        self.at += _HEAD.size + nr_bytes
        return block

    def _look(self, cut_ns: int, body: bytes) -> Look:
        nr_rings = len(self.header.rings)
        if len(body) < 8 * nr_rings:
            raise self._damaged(f"the block at byte {self.at} is too short")
        lengths = struct.unpack_from(f"<{nr_rings}Q", body)
        if sum(lengths) != len(body) - 8 * nr_rings or any(length % 8 for length in lengths):
            raise self._damaged(f"the block at byte {self.at} is not as long as its parts")
        chunks, at = [], 8 * nr_rings
        for length in lengths:
            chunks.append(np.frombuffer(body, np.uint32, length // 4, at))
            at += length
        return Look(cut_ns, chunks)

    def _running(self, t_ns: int, body: bytes) -> Running:
        try:
            return Running(t_ns, msgspec.json.decode(body, type=Process))
        except msgspec.MsgspecError as error:
            raise self._damaged(f"the block at byte {self.at}: {error}") from None

    def _damaged(self, why: str) -> FirsttouchError:
        return FirsttouchError(
            f"{self.path} is damaged: {why}",
            f"without that file {self.path.stem} opens with what was folded in before; keep a copy",
        )

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> RawReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check(header: Header, damaged: Callable[[str], FirsttouchError]) -> None:
    """Raise for numbers that nothing could be read with."""
    if not header.rings or header.page_bytes.bit_count() != 1 or header.stack_bytes < 0:
        raise damaged("its header has no rings, or impossible sizes")
    for one in header.rings:
        nr = len(one.roles)
        widths = {len(row) for row in one.offsets}
        if not nr or len(one.points) != nr or len(one.offsets) != nr or widths != {NR_ARGS}:
            raise damaged("its header does not say the same of each event")
        numbers = [one.cpu, one.sample_type, *one.points, *one.roles, *(o for row in one.offsets for o in row)]
        if any(not -1 <= number < 1 << 24 for number in numbers) or one.cpu < 0 or one.sample_type < 0:
            raise damaged("its header has a number that cannot be")
        if any(offset % 4 for row in one.offsets for offset in row if offset >= 0):
            raise damaged("its header has an unaligned field")


def _cannot_write(path: Path, why: str | None) -> FirsttouchError:
    return FirsttouchError(
        f"cannot write to {path}: {why}",
        "free some space; all that was recorded up to the last second is in the file",
    )
