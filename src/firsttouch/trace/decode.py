"""What the kernel writes into the ring of a CPU, and the rows it becomes.

A *chunk* is what one look at a ring found there. A record is a header (type, misc, size) and a body of a multiple of 8
bytes; it ends in the *trailer* (pid, tid, time) unless it is a sample. All samples of a ring hold the same fields:
there is one event, or they are tracepoints, whose raw data begins with the number of the tracepoint and the thread. A
sample that need not hold pid and tid beside that costs the program a tenth less; its row has NO_PID, see `assemble`.

Invariants:
  R1  decode reads nothing outside the chunk and writes nothing outside its rows
  R2  a record of unknown type, or too short for what it should hold, is skipped and counted
  R3  after a header that cannot be (size 0, unaligned, past the end) the rest of the chunk is skipped: one count
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from firsttouch._jit import kernel
from firsttouch.trace.raw import (
    NR_ARGS,
    SAMPLE_ADDR,
    SAMPLE_CALLCHAIN,
    SAMPLE_IP,
    SAMPLE_RAW,
    SAMPLE_TID,
    RingFormat,
)
from firsttouch.trace.schema import EXEC, KERNEL, PROTECTION, UNKNOWN_ACCESS, WRITE

# Row.what
TOUCH, SWITCH, MMAP, COMM, FORK, EXIT, MUNMAP, MADVISE, BRK, MREMAP, MREMAP_EXIT, MMAP_CALL, MMAP_EXIT, WAKING = range(
    14
)
# Row.kind of a SWITCH
RUN, SLEEP, PREEMPT = 0, 1, 2

# What the samples of an event mean (Layout.role); a touch from a tracepoint has its error code
ROLE_FAULT, ROLE_FAULT_USER, ROLE_FAULT_KERNEL = 20, 21, 22

NO_PID = -2  # Row.pid: the sample holds its thread only (the kernel says -1 of a thread that is gone)

RAW_TID_WORD = 1  # of a tracepoint's raw data: common_pid, in the kernel's own pid namespace

TRAILER_BYTES = 16
MIN_ROW_BYTES = 8 + TRAILER_BYTES  # the shortest record that makes a row

_LOST, _COMM, _EXIT, _FORK, _SAMPLE, _MMAP2, _LOST_SAMPLES, _SWITCH = 2, 3, 4, 7, 9, 10, 13, 14
_MISC_SWITCH_OUT, _MISC_SWITCH_OUT_PREEMPT = 1 << 13, 1 << 14
MISC_COMM_EXEC = 1 << 13
_USER_HALF = np.uint64(1 << 63)
_MAX_LOST = np.uint64(1 << 48)  # a ring cannot lose more between two records
_CONTEXT_MAX = np.uint64(2**64 - 4095)  # PERF_CONTEXT_...: a marker in a call chain, not an address
_HASH_PRIME = np.uint64(0x100000001B3)
_HASH_START = np.uint64(0xCBF29CE484222325)

# counts[...] of decode
ROWS, SKIPPED, LOST = 0, 1, 2


class Layout(NamedTuple):
    """What the samples of one ring hold."""

    cpu: int
    sample_type: int  # bits
    point: NDArray[np.int32]  # [event] number of the tracepoint
    role: NDArray[np.int32]  # [event] ROLE_... or the Row.what of a system call
    offset: NDArray[np.int32]  # [event, NR_ARGS] where a field is in the raw data, or -1


def layout_of(one: RingFormat) -> Layout:
    """The layout of a ring as the kernel needs it."""
    return Layout(
        one.cpu, one.sample_type, np.array(one.points, np.int32), np.array(one.roles, np.int32),
        np.array(one.offsets, np.int32).reshape(-1, NR_ARGS),
    )  # fmt: skip


class Rows(NamedTuple):
    """Decoded records, one row each, in the order of the ring."""

    t_ns: NDArray[np.int64]  # the clock of perf events
    pid: NDArray[np.int32]  # process, or NO_PID
    tid: NDArray[np.int32]  # thread
    cpu: NDArray[np.int16]
    what: NDArray[np.uint8]  # TOUCH, ...
    kind: NDArray[np.uint8]  # TOUCH: bits of touch.kind; SWITCH: RUN, SLEEP or PREEMPT
    args: NDArray[np.uint64]
    # [row, NR_ARGS]; TOUCH: address, ip, hash of the call chain (0: none), its place in the chunk (4-byte words), its
    # length; FORK and EXIT: parent process and thread; MMAP and COMM: offset of the record in the chunk (4-byte words)
    # and its misc; system calls: arguments, or the return value; WAKING: the thread woken, in the low half


def pick(rows: Rows, index: Any) -> Rows:
    """The rows at `index` (a slice, a mask, or numbers)."""
    return Rows._make(column[index] for column in rows)


def join(parts: Iterable[Rows]) -> Rows:
    """Rows of all parts, in their order."""
    return Rows._make(np.concatenate(columns) for columns in zip(*parts, strict=True))


def make_rows(nr: int) -> Rows:
    """Empty rows."""
    return Rows(
        np.empty(nr, np.int64), np.empty(nr, np.int32), np.empty(nr, np.int32), np.empty(nr, np.int16),
        np.empty(nr, np.uint8), np.empty(nr, np.uint8), np.zeros((nr, NR_ARGS), np.uint64),
    )  # fmt: skip


Words = NDArray[np.uint32]
Counts = NDArray[np.int64]


@kernel
def u64(d: Words, i: int) -> np.uint64:
    """8 bytes at word `i` of the chunk; a word has 4 bytes."""
    return np.uint64(d[i]) | (np.uint64(d[i + 1]) << np.uint64(32))


@kernel
def decode(d: Words, layout: Layout, rows: Rows, counts: Counts) -> None:
    """Turn chunk `d` (uint32) into `rows`; counts = [rows made, records skipped, records the kernel lost]."""
    n = len(d)
    i = 0
    row = 0
    while i < n:
        size = int(np.int64(d[i + 1] >> np.uint32(16))) >> 2 if i + 1 < n else 0
        if size < 2 or size & 1 or i + size > n or (d[i + 1] >> np.uint32(16)) & np.uint32(3):
            counts[SKIPPED] += 1
            break
        kind = d[i]
        if row >= len(rows.t_ns):
            counts[SKIPPED] += 1
        elif kind == _SAMPLE:
            row += decode_sample(d, i, i + size, layout, rows, row, counts)
        elif kind in (_LOST, _LOST_SAMPLES):
            at = i + 4 if kind == _LOST else i + 2
            if at + 2 <= i + size and u64(d, at) < _MAX_LOST:
                counts[LOST] += np.int64(u64(d, at))
            else:
                counts[SKIPPED] += 1
        else:
            row += decode_side_band(d, i, i + size, layout.cpu, rows, row, counts)
        i += size
    counts[ROWS] = row


@kernel
def decode_side_band(d: Words, i: int, end: int, cpu: int, rows: Rows, row: int, counts: Counts) -> int:
    """COMM, FORK, EXIT, MMAP2 and SWITCH at words [i, end); returns the rows made (0 or 1)."""
    kind = d[i]
    misc = np.int64(d[i + 1] & np.uint32(0xFFFF))
    least = 2
    if kind == _COMM:
        least = 6
    elif kind in (_FORK, _EXIT):
        least = 8
    elif kind == _MMAP2:
        least = 20
    t = end - TRAILER_BYTES // 4
    if t < i + least or kind not in (_COMM, _FORK, _EXIT, _MMAP2, _SWITCH):
        counts[SKIPPED] += 1
        return 0
    rows.pid[row] = np.int32(d[t])
    rows.tid[row] = np.int32(d[t + 1])
    rows.t_ns[row] = np.int64(u64(d, t + 2))
    rows.cpu[row] = cpu
    rows.kind[row] = 0
    if kind == _SWITCH:
        rows.what[row] = SWITCH
        if misc & _MISC_SWITCH_OUT:
            rows.kind[row] = PREEMPT if misc & _MISC_SWITCH_OUT_PREEMPT else SLEEP
        return 1
    rows.pid[row] = np.int32(d[i + 2])
    if kind in (_FORK, _EXIT):
        rows.what[row] = FORK if kind == _FORK else EXIT
        rows.tid[row] = np.int32(d[i + 4])
        rows.args[row, 0] = d[i + 3]
        rows.args[row, 1] = d[i + 5]
        return 1
    rows.what[row] = COMM if kind == _COMM else MMAP
    rows.tid[row] = np.int32(d[i + 3])
    rows.args[row, 0] = np.uint64(i)
    rows.args[row, 1] = np.uint64(misc)
    return 1


@kernel
def decode_sample(d: Words, i: int, end: int, layout: Layout, rows: Rows, row: int, counts: Counts) -> int:
    """The sample at words [i, end); returns the rows made (0 or 1)."""
    counts[SKIPPED] += 1  # taken back when a row is made, or when the sample is none of ours by its address
    st = layout.sample_type
    held = (2 if st & SAMPLE_IP else 0) + (2 if st & SAMPLE_TID else 0) + (2 if st & SAMPLE_ADDR else 0)
    if i + 4 + held > end:
        return 0
    at = i + 2
    ip = np.uint64(0)
    address = np.uint64(0)
    if st & SAMPLE_IP:
        ip = u64(d, at)
        at += 2
    rows.pid[row] = NO_PID
    if st & SAMPLE_TID:
        rows.pid[row] = np.int32(d[at])
        rows.tid[row] = np.int32(d[at + 1])
        at += 2
    rows.t_ns[row] = np.int64(u64(d, at))
    rows.cpu[row] = layout.cpu
    at += 2
    if st & SAMPLE_ADDR:
        address = u64(d, at)
        at += 2
    chain, nr = at, 0
    if st & SAMPLE_CALLCHAIN:
        if at + 2 > end or u64(d, at) > np.uint64((end - at - 2) // 2):
            return 0
        nr = int(np.int64(u64(d, at)))
        chain = at + 2
        at = chain + 2 * nr
    e = 0
    if st & SAMPLE_RAW:
        if at + 1 >= end:
            return 0
        raw_end = at + 1 + int(np.int64(d[at])) // 4
        at += 1
        if at + RAW_TID_WORD >= raw_end or raw_end > end:
            return 0
        if not st & SAMPLE_TID:
            rows.tid[row] = np.int32(d[at + RAW_TID_WORD])
        point = np.int32(d[at] & np.uint32(0xFFFF))
        e = -1
        for k in range(len(layout.point)):
            if layout.point[k] == point:
                e = k
        if e < 0:
            return 0
    role = layout.role[e]
    rows.what[row] = TOUCH if role >= ROLE_FAULT else np.uint8(role)
    if role == ROLE_FAULT:
        rows.kind[row] = UNKNOWN_ACCESS
    elif st & SAMPLE_RAW:
        code = np.uint64(0)
        for k in range(NR_ARGS):
            offset = layout.offset[e, k]
            if offset < 0:
                continue
            field = at + offset // 4
            if field + 2 > raw_end:
                return 0
            value = u64(d, field)
            if role < ROLE_FAULT:
                rows.args[row, k] = value
            elif k == 0:
                address = value
            elif k == 1:
                ip = value
            else:
                code = value
        rows.kind[row] = kind_of(code, role)
    if role >= ROLE_FAULT:
        if address >= _USER_HALF:
            counts[SKIPPED] -= 1
            return 0
        rows.args[row, 0] = address
        rows.args[row, 1] = ip
        rows.args[row, 2] = hash_chain(d, chain, nr) if st & SAMPLE_CALLCHAIN else np.uint64(0)
        rows.args[row, 3] = np.uint64(chain)
        rows.args[row, 4] = np.uint64(nr)
    counts[SKIPPED] -= 1
    return 1


@kernel
def kind_of(code: np.uint64, role: int) -> np.uint8:
    """Bits of touch.kind from an x86 page-fault error code."""
    kind = KERNEL if role == ROLE_FAULT_KERNEL else 0
    if code & np.uint64(1):
        kind |= PROTECTION
    if code & np.uint64(2):
        kind |= WRITE
    if code & np.uint64(16):
        kind |= EXEC
    return np.uint8(kind)


@kernel
def hash_chain(d: Words, at: int, nr: int) -> np.uint64:
    """FNV-1a over the addresses of a call chain, markers left out; never 0."""
    h = _HASH_START
    for k in range(nr):
        ip = u64(d, at + 2 * k)
        if ip < _CONTEXT_MAX:
            h = (h ^ ip) * _HASH_PRIME
            h ^= h >> np.uint64(29)
    return h | np.uint64(1)


class Chunk(NamedTuple):
    """What one look at a ring gave."""

    rows: Rows
    words: NDArray[np.uint32]
    lost: int
    skipped: int


def read_chunk(words: NDArray[np.uint32], layout: Layout) -> Chunk:
    """Decode one chunk into rows of exactly the size needed."""
    rows = make_rows(4 * len(words) // MIN_ROW_BYTES + 1)
    counts = np.zeros(3, np.int64)
    decode(words, layout, rows, counts)
    nr = int(counts[ROWS])
    return Chunk(pick(rows, slice(nr)), words, int(counts[LOST]), int(counts[SKIPPED]))


def record_bytes(words: NDArray[np.uint32], at: int) -> bytes:
    """The record that begins at word `at`, without its trailer."""
    size = int(words[at + 1]) >> 16
    return words[at : at + size // 4].tobytes()[: size - TRAILER_BYTES]
