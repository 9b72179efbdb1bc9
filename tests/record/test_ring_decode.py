"""The decoding kernel against its naive twin, on valid records, damaged ones, and garbage."""

import struct

import decode_twin as twin
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from firsttouch.record import ring

ROLES = {
    "fault": ring.ROLE_FAULT,
    "user": ring.ROLE_FAULT_USER,
    "kernel": ring.ROLE_FAULT_KERNEL,
    "munmap": ring.MUNMAP,
    "mremap": ring.MREMAP,
    "mremap_exit": ring.MREMAP_EXIT,
}
NAMES = {
    ring.SWITCH: "switch", ring.MMAP: "mmap", ring.COMM: "comm", ring.FORK: "fork", ring.EXIT: "exit",
    ring.MUNMAP: "munmap", ring.MREMAP: "mremap", ring.MREMAP_EXIT: "mremap_exit",
}  # fmt: skip
LAYOUT = ring.Layout(
    np.array(list(twin.EVENTS), np.uint64),
    np.array([ROLES[name] for name, _, _ in twin.EVENTS.values()], np.int32),
    np.array([sample for _, sample, _ in twin.EVENTS.values()], np.int64),
    np.array([[*offsets, *[-1] * (5 - len(offsets))] for _, _, offsets in twin.EVENTS.values()], np.int32),
)

u64 = st.integers(0, 2**64 - 1)
i32 = st.integers(-1, 2**31 - 1)
address = st.one_of(st.integers(0, 2**47), st.integers(2**63, 2**64 - 1))


def record(kind: int, misc: int, body: bytes) -> bytes:
    body += b"\0" * (-len(body) % 8)
    return struct.pack("<IHH", kind, misc, 8 + len(body)) + body


@st.composite
def trailers(draw):
    return struct.pack("<iiqIIQ", draw(i32), draw(i32), draw(st.integers(0, 2**62)), draw(st.integers(0, 99)), 0, 11)


@st.composite
def samples(draw):
    identifier = draw(st.sampled_from([*twin.EVENTS, 99]))
    _, what, offsets = twin.EVENTS.get(identifier, ("fault", twin.SW, ()))
    body = struct.pack("<Q", identifier)
    if what & 1:
        body += struct.pack("<Q", draw(address))
    body += struct.pack("<iiq", draw(i32), draw(i32), draw(st.integers(0, 2**62)))
    if what & 8:
        body += struct.pack("<Q", draw(address))
    body += struct.pack("<II", draw(st.integers(0, 99)), 0)
    if what & twin.CHAIN:
        chain = draw(st.lists(address, max_size=5))
        body += struct.pack(f"<Q{len(chain)}Q", len(chain), *chain)
    if what & 1024:
        raw = b"\1" * 8 + b"".join(struct.pack("<Q", draw(address)) for _ in range(1 + len(offsets))) + b"\0" * 4
        body += struct.pack("<I", len(raw)) + raw
    return record(9, 1, body)


@st.composite
def others(draw):
    kind = draw(st.sampled_from([2, 3, 4, 7, 10, 13, 14, 5, 77]))
    misc = draw(st.sampled_from([0, 1, 0x2000, 0x6000]))
    if kind == 2:
        return record(kind, 0, struct.pack("<QQ", 5, draw(st.integers(0, 1000))) + draw(trailers()))
    if kind == 13:
        return record(kind, 0, struct.pack("<Q", draw(st.integers(0, 1000))) + draw(trailers()))
    name = draw(st.binary(max_size=20)) + b"\0"
    name += b"\0" * (-len(name) % 8)
    ids = struct.pack("<ii", draw(i32), draw(i32))
    bodies = {
        3: ids + name,
        4: ids + ids + struct.pack("<Q", 7),
        7: ids + struct.pack("<iiQ", draw(i32), draw(i32), 7),
        10: ids + b"\2" * 64 + name,
    }
    return record(kind, misc, bodies.get(kind, b"") + draw(trailers()))


@st.composite
def damaged(draw):
    """A record of which some bytes are others, or the end is missing."""
    whole = bytearray(draw(st.one_of(samples(), others())))
    for _ in range(draw(st.integers(1, 3))):
        whole[draw(st.integers(0, len(whole) - 1))] = draw(st.integers(0, 255))
    if draw(st.booleans()):
        size = 8 * draw(st.integers(1, len(whole) // 8))
        whole = whole[:size]
        struct.pack_into("<H", whole, 6, size)
    return bytes(whole)


def rows_of(chunk: bytes) -> tuple[list[tuple], int, int]:
    """What the kernel makes of a chunk, in the twin's terms."""
    words = np.frombuffer(chunk, np.uint32)
    with np.errstate(over="ignore"):  # the hash wraps, as it must; without the JIT NumPy says so
        got = ring.read_chunk(words, LAYOUT)
    rows = []
    for i in range(len(got.rows.t_ns)):
        r = got.rows
        head = (int(r.pid[i]), int(r.tid[i]), int(r.t_ns[i]), int(r.cpu[i]))
        args = [int(value) for value in r.args[i]]
        what, kind = int(r.what[i]), int(r.kind[i])
        if what == ring.TOUCH:
            at, nr = args[3], args[4]
            chain = struct.unpack_from(f"<{nr}Q", chunk, 4 * at) if args[2] else None
            rows.append(("touch", *head, args[0], args[1], kind, chain))
        elif what == ring.SWITCH:
            rows.append(("switch", *head, kind))
        else:
            used = next((len(offsets) for name, _, offsets in twin.EVENTS.values() if name == NAMES[what]), 2)
            rows.append((NAMES[what], *head, *args[:used]))
    return rows, got.skipped, got.lost


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(samples(), others()), max_size=12))
def test_valid_records_decode_as_the_twin_says(records):
    chunk = b"".join(records)
    rows, skipped, lost = rows_of(chunk)
    assert (rows, skipped, lost) == twin.decode(chunk)


@settings(max_examples=500, deadline=None)
@given(st.lists(st.one_of(samples(), others(), damaged()), min_size=1, max_size=8))
def test_damaged_records_are_skipped_and_counted_as_the_twin_says(records):
    chunk = b"".join(records)
    rows, skipped, lost = rows_of(chunk)
    expected_rows, expected_skipped, expected_lost = twin.decode(chunk)
    assert (rows, skipped) == (expected_rows, expected_skipped)
    assert lost % 2**64 == expected_lost % 2**64


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=600))
def test_garbage_never_reads_outside_the_chunk(garbage):
    garbage = garbage[: len(garbage) // 4 * 4]
    # the chunk lies between canaries: a read beyond its end would change what comes out
    for canary in (b"\0" * 64, b"\xff" * 64):
        buffer = np.frombuffer(canary + garbage + canary, np.uint32)
        words = buffer[16 : 16 + len(garbage) // 4]
        rows, counts = ring.make_rows(len(garbage) // 40 + 1), np.zeros(3, np.int64)
        with np.errstate(over="ignore"):
            ring.decode(words, LAYOUT, rows, counts)
        expected_rows, skipped, _ = twin.decode(garbage)
        assert (counts[ring.ROWS], counts[ring.SKIPPED]) == (len(expected_rows), skipped)


def test_a_record_that_the_ring_wraps_is_put_together():
    """Ring.take on a ring in memory: head and tail as the kernel leaves them after a wrap."""
    one = ring.Ring.__new__(ring.Ring)
    one.nr_bytes = 64
    data = np.arange(64, dtype=np.uint8)
    one._data, one._copy = data, np.empty(64, np.uint8)
    one._head, one._tail = np.array([64 * 7 + 16], np.uint64), np.array([64 * 6 + 40], np.uint64)
    assert one.take().tobytes() == bytes([*range(40, 64), *range(16)])
    assert one._tail[0] == one._head[0]
    assert len(one.take()) == 0
