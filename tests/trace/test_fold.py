"""Raw records beside a trace: written, read, damaged, and folded in when the trace is opened."""

import os
import struct

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firsttouch.errors import FirsttouchError
from firsttouch.trace import decode
from firsttouch.trace.raw import (
    SAMPLE_ADDR,
    SAMPLE_IP,
    SAMPLE_TID,
    SAMPLE_TIME,
    Header,
    Look,
    Process,
    RawReader,
    RawWriter,
    RingFormat,
    raw_path,
)
from firsttouch.trace.store import Trace, TraceWriter

PAGE = 4096
PID = 10
HEADER = Header(
    start_ns=1000, page_bytes=PAGE, stack_bytes=8 << 20, stacks=False,
    rings=[
        RingFormat(cpu, SAMPLE_IP | SAMPLE_TID | SAMPLE_TIME | SAMPLE_ADDR, [0], [decode.ROLE_FAULT], [[-1] * 5])
        for cpu in (0, 3)
    ],
)  # fmt: skip
MAPPING = (0x10000, 0x40000, 0, 3, 2, "//anon")


def sample(t_ns, page):
    return struct.pack("<IHHQiiqQ", 9, 2, 40, 0x1234, PID, PID, t_ns, 0x10000 + page * PAGE)


def pieces(*records):
    return [memoryview(record) for record in records]


def killed(path, looks):
    """A trace whose recorder was killed before it folded anything in."""
    writer = TraceWriter(path)
    writer.meta(level="basic", page_bytes=PAGE, lost=0)
    writer.commit({})
    writer.leave()
    raw = RawWriter(raw_path(path), HEADER)
    raw.process(1500, Process(PID, [MAPPING], [(PID, "prog")]))
    for cut_ns, *rings in looks:
        raw.look(cut_ns, rings)
    raw.close()


LOOKS = [
    (3000, pieces(sample(2000, 0), sample(2500, 1)), pieces(sample(2200, 2))),
    (3500, [], []),
    (5000, pieces(sample(4000, 3)), pieces(sample(3900, 4), sample(5500, 5))),  # one is newer than the look
]
PAGES_IN_TIME_ORDER = [0, 2, 1, 4, 3, 5]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.ftt"


def rows(path, progress=None):
    with Trace(path, progress) as trace:
        touch = trace.table("touch", order_by="t_ns")
        return trace.meta, [(int(a) - 0x10000) // PAGE for a in touch["vaddr"]], touch


def test_what_a_killed_recorder_left_is_in_the_trace_when_it_is_opened(path):
    killed(path, LOOKS)
    told = []
    meta, pages, touch = rows(path, told.append)
    assert pages == PAGES_IN_TIME_ORDER
    assert touch["t_ns"].tolist() == [1000, 1200, 1500, 2900, 3000, 4500]
    assert touch["cpu"].tolist() == [0, 3, 0, 3, 0, 3]
    assert touch["map_id"].tolist() == [0] * 6
    assert meta["finished"] is False
    assert told[-1] == 6 or told[-1] == 5  # the last is held back until the end
    assert not raw_path(path).exists()
    assert rows(path)[1] == PAGES_IN_TIME_ORDER  # and stays


def test_folding_is_from_the_beginning_whatever_was_folded_before(path, monkeypatch):
    killed(path, LOOKS)
    monkeypatch.setattr("firsttouch.trace.fold.STEP_BYTES", 1)  # one block a step
    monkeypatch.setattr("firsttouch.trace.fold.COMMIT_S", -1.0)  # each committed

    class Killed(BaseException):
        pass

    def die(touches):
        if touches:
            raise Killed

    with pytest.raises(Killed):
        Trace(path, die)
    assert raw_path(path).exists()
    folded = TraceWriter.reopen(path)
    assert folded._db.execute("SELECT count(*) FROM touch").fetchall() == [(3,)]  # the first look is in
    folded.leave()
    assert rows(path)[1] == PAGES_IN_TIME_ORDER
    with Trace(path) as trace:
        assert trace.sql("SELECT count(*) FROM map") == [(1,)]


def test_a_recorder_killed_at_its_last_act_leaves_a_finished_trace(path):
    killed(path, LOOKS)
    left = raw_path(path).read_bytes()
    rows(path)
    writer = TraceWriter.reopen(path)
    writer.close()  # finished
    raw_path(path).write_bytes(left)
    meta, pages, _ = rows(path)
    assert meta["finished"] is True
    assert pages == PAGES_IN_TIME_ORDER
    assert not raw_path(path).exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_trace_that_may_not_be_written_opens_as_it_is(path):
    killed(path, LOOKS)
    path.parent.chmod(0o500)
    try:
        assert rows(path)[1] == []
    finally:
        path.parent.chmod(0o700)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(0, 1))
def test_cut_anywhere_the_blocks_before_are_there(path, ratio):
    path.unlink(missing_ok=True)
    killed(path, LOOKS)
    raw = raw_path(path)
    whole = raw.read_bytes()
    header = whole.index(b"\n", whole.index(b"\n") + 1) + 1
    cut = int(header + ratio * (len(whole) - header))
    raw.write_bytes(whole[:cut])
    _, pages, _ = rows(path)
    full = [PAGES_IN_TIME_ORDER, PAGES_IN_TIME_ORDER[:3], []]
    assert pages in full
    assert (pages == full[0]) == (cut == len(whole))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damage_is_one_line_or_other_rows_and_nothing_is_removed(path, data):
    path.unlink(missing_ok=True)
    killed(path, LOOKS)
    raw = raw_path(path)
    damaged = bytearray(raw.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    raw.write_bytes(damaged)
    try:
        rows(path)
    except FirsttouchError as error:
        assert "\n" not in error.message
        assert raw.read_bytes() == damaged
        raw.unlink()
        rows(path)  # what was folded in before


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b"{}", "missing"),
        (b"[1", "Expected"),
        (msgspec.json.encode(msgspec.structs.replace(HEADER, rings=[])), "no rings"),
        (msgspec.json.encode(msgspec.structs.replace(HEADER, page_bytes=5)), "impossible"),
        (
            msgspec.json.encode(
                msgspec.structs.replace(HEADER, rings=[RingFormat(0, 1024, [1], [21], [[2, -1, -1, -1, -1]])])
            ),
            "unaligned",
        ),
        (
            msgspec.json.encode(msgspec.structs.replace(HEADER, rings=[RingFormat(0, 1024, [1, 2], [21], [[-1] * 5])])),
            "each event",
        ),
        (
            msgspec.json.encode(
                msgspec.structs.replace(HEADER, rings=[RingFormat(1 << 30, 1024, [1], [21], [[-1] * 5])])
            ),
            "cannot be",
        ),
    ],
)
def test_a_header_that_cannot_be_is_named(path, header, why):
    raw = raw_path(path)
    raw.write_bytes(b"firsttouch raw 1\n" + header + b"\n")
    with pytest.raises(FirsttouchError, match="is damaged") as caught:
        RawReader(raw)
    assert why in caught.value.message


def test_a_reader_follows_a_writer(path):
    raw = RawWriter(raw_path(path), HEADER)
    with RawReader(raw.path) as reader:
        assert reader.header == HEADER
        assert reader.next() is None
        raw.look(7, [pieces(b"12345678", b"abcdefgh"), []])
        look = reader.next()
        assert isinstance(look, Look)
        assert look.cut_ns == 7
        assert [chunk.tobytes() for chunk in look.chunks] == [b"12345678abcdefgh", b""]
        assert reader.next() is None
    raw.close()


def test_many_pieces_are_one_block(path):
    header = msgspec.structs.replace(HEADER, rings=[HEADER.rings[0]] * 1500)
    raw = RawWriter(raw_path(path), header)
    raw.look(7, [pieces(struct.pack("<Q", i)) for i in range(1500)])
    raw.close()
    with RawReader(raw.path) as reader:
        assert [int(chunk[0]) for chunk in reader.next().chunks] == list(range(1500))
