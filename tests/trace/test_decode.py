"""The decoding kernel against its naive twin, on valid records, damaged ones, and garbage."""

import struct

import decode_twin as twin
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from firsttouch.trace import decode
from firsttouch.trace.raw import RingFormat

ROLES = {
    "user": decode.ROLE_FAULT_USER,
    "kernel": decode.ROLE_FAULT_KERNEL,
    "munmap": decode.MUNMAP,
    "mremap": decode.MREMAP,
    "mremap_exit": decode.MREMAP_EXIT,
}
NAMES = {
    decode.SWITCH: "switch", decode.MMAP: "mmap", decode.COMM: "comm", decode.FORK: "fork", decode.EXIT: "exit",
    decode.MUNMAP: "munmap", decode.MREMAP: "mremap", decode.MREMAP_EXIT: "mremap_exit",
}  # fmt: skip
HOLDS = (twin.SW, twin.SW | twin.CHAIN, twin.TP, twin.TP | twin.CHAIN, twin.TP_ALONE, twin.TP_ALONE | twin.CHAIN)


def layout(holds: int) -> decode.Layout:
    """As the recorder makes it: one software event, or tracepoints."""
    if not holds & 1024:
        return decode.layout_of(RingFormat(twin.CPU, holds, [0], [decode.ROLE_FAULT], [[-1] * 5]))
    offsets = [[*places, *[-1] * (5 - len(places))] for _, places in twin.POINTS.values()]
    roles = [ROLES[name] for name, _ in twin.POINTS.values()]
    return decode.layout_of(RingFormat(twin.CPU, holds, list(twin.POINTS), roles, offsets))


u64 = st.integers(0, 2**64 - 1)
i32 = st.integers(-1, 2**31 - 1)
address = st.one_of(st.integers(0, 2**47), st.integers(2**63, 2**64 - 1))


def record(kind: int, misc: int, body: bytes) -> bytes:
    body += b"\0" * (-len(body) % 8)
    return struct.pack("<IHH", kind, misc, 8 + len(body)) + body


@st.composite
def trailers(draw):
    return struct.pack("<iiq", draw(i32), draw(i32), draw(st.integers(0, 2**62)))


@st.composite
def samples(draw, holds):
    body = b""
    if holds & 1:
        body += struct.pack("<Q", draw(address))
    if holds & 2:
        body += struct.pack("<ii", draw(i32), draw(i32))
    body += struct.pack("<q", draw(st.integers(0, 2**62)))
    if holds & 8:
        body += struct.pack("<Q", draw(address))
    if holds & twin.CHAIN:
        chain = draw(st.lists(address, max_size=5))
        body += struct.pack(f"<Q{len(chain)}Q", len(chain), *chain)
    if holds & 1024:
        point = draw(st.sampled_from([*twin.POINTS, 99]))
        _, offsets = twin.POINTS.get(point, ("", ()))
        raw = struct.pack("<HHi", point, 1, draw(i32))
        raw += b"".join(struct.pack("<Q", draw(address)) for _ in range(1 + len(offsets))) + b"\0" * 4
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
def damaged(draw, holds):
    """A record of which some bytes are others, or the end is missing."""
    whole = bytearray(draw(st.one_of(samples(holds), others())))
    for _ in range(draw(st.integers(1, 3))):
        whole[draw(st.integers(0, len(whole) - 1))] = draw(st.integers(0, 255))
    if draw(st.booleans()):
        size = 8 * draw(st.integers(1, len(whole) // 8))
        whole = whole[:size]
        struct.pack_into("<H", whole, 6, size)
    return bytes(whole)


def rows_of(chunk: bytes, holds: int) -> tuple[list[tuple], int, int]:
    """What the kernel makes of a chunk, in the twin's terms."""
    words = np.frombuffer(chunk, np.uint32)
    with np.errstate(over="ignore"):  # the hash wraps, as it must; without the JIT NumPy says so
        got = decode.read_chunk(words, layout(holds))
    rows = []
    for i in range(len(got.rows.t_ns)):
        r = got.rows
        head = (int(r.pid[i]), int(r.tid[i]), int(r.t_ns[i]), int(r.cpu[i]))
        args = [int(value) for value in r.args[i]]
        what, kind = int(r.what[i]), int(r.kind[i])
        if what == decode.TOUCH:
            at, nr = args[3], args[4]
            chain = struct.unpack_from(f"<{nr}Q", chunk, 4 * at) if args[2] else None
            rows.append(("touch", *head, args[0], args[1], kind, chain))
        elif what == decode.SWITCH:
            rows.append(("switch", *head, kind))
        else:
            used = next((len(offsets) for name, offsets in twin.POINTS.values() if name == NAMES[what]), 2)
            rows.append((NAMES[what], *head, *args[:used]))
    return rows, got.skipped, got.lost


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(HOLDS))
def test_valid_records_decode_as_the_twin_says(data, holds):
    chunk = b"".join(data.draw(st.lists(st.one_of(samples(holds), others()), max_size=12)))
    assert rows_of(chunk, holds) == twin.decode(chunk, holds)


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(HOLDS))
def test_damaged_records_are_skipped_and_counted_as_the_twin_says(data, holds):
    records = st.one_of(damaged(holds), samples(holds), others())
    chunk = b"".join(data.draw(st.lists(records, max_size=8)))
    assert rows_of(chunk, holds) == twin.decode(chunk, holds)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=600), st.sampled_from(HOLDS))
def test_garbage_never_reads_outside_the_chunk(garbage, holds):
    garbage = garbage[: len(garbage) // 4 * 4]
    # the chunk lies between canaries: a read beyond its end would change what comes out
    for canary in (b"\0" * 64, b"\xff" * 64):
        buffer = np.frombuffer(canary + garbage + canary, np.uint32)
        words = buffer[16 : 16 + len(garbage) // 4]
        rows, counts = decode.make_rows(len(garbage) // decode.MIN_ROW_BYTES + 1), np.zeros(3, np.int64)
        with np.errstate(over="ignore"):
            decode.decode(words, layout(holds), rows, counts)
        expected_rows, skipped, _ = twin.decode(garbage, holds)
        assert (counts[decode.ROWS], counts[decode.SKIPPED]) == (len(expected_rows), skipped)
