"""Rows to tables: order, mappings, tasks off the CPU, and what system calls take away."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsttouch.trace import decode
from firsttouch.trace.assemble import OFF_CPU_NS, STACK_EXPAND_BYTES, Assembler, parse_comm, parse_mmap2
from firsttouch.trace.raw import Header, Process, RingFormat
from firsttouch.trace.schema import FILE, NO_ID, WRITE

PAGE = 4096
PID = 10
HEADER = Header(0, PAGE, 8 << 20, False, [RingFormat(0, 15, [0], [decode.ROLE_FAULT], [[-1] * 5])])


class Stream:
    """Builds rows by hand, in any order, and hands them to an assembler."""

    def __init__(self) -> None:
        self.assembler = Assembler(HEADER)
        self.rows = []

    def add(self, t_ns, what, *args, pid=PID, tid=None, kind=0):
        self.rows.append((t_ns, pid, tid or pid, what, kind, args))

    def text(self, t_ns, what, text, misc=0, pid=PID):
        self.assembler._texts[len(self.assembler._texts) + 1000 * t_ns] = text
        self.add(t_ns, what, len(self.assembler._texts) - 1 + 1000 * t_ns, misc, pid=pid)

    def map(self, t_ns, start, end, name="//anon", pid=PID):
        self.text(t_ns, decode.MMAP, (start, end, 0, 3, 2, name), pid=pid)

    def exec(self, t_ns, name="prog", pid=PID):
        self.text(t_ns, decode.COMM, name, decode.MISC_COMM_EXEC, pid=pid)

    def touch(self, t_ns, address, pid=PID, kind=0):
        self.add(t_ns, decode.TOUCH, address, 0x1234, pid=pid, kind=kind)

    def batch(self):
        rows = decode.make_rows(len(self.rows))
        for i, (t_ns, pid, tid, what, kind, args) in enumerate(self.rows):
            rows.t_ns[i], rows.pid[i], rows.tid[i], rows.cpu[i] = t_ns, pid, tid, 0
            rows.what[i], rows.kind[i] = what, kind
            rows.args[i, : len(args)] = np.array(args, np.uint64)
        self.rows = []
        return rows

    def tables(self):
        self.assembler.flush([self.batch()])
        return self.assembler.take()


@pytest.fixture
def stream():
    return Stream()


def names(tables):
    """Name of the mapping of each touch, "" for none."""
    by_id = dict(zip(tables["map"]["map_id"].tolist(), tables["map"]["name"].tolist(), strict=True))
    return [by_id.get(map_id, "") for map_id in tables["touch"]["map_id"].tolist()]


def test_a_touch_gets_the_mapping_of_its_time(stream):
    stream.exec(1)
    stream.map(2, 0x10000, 0x20000, "/bin/a")
    stream.touch(3, 0x10000)
    stream.add(4, decode.MUNMAP, 0x10000, 0x10000)
    stream.touch(5, 0x10000)
    stream.map(6, 0x10000, 0x20000, "//anon")
    stream.touch(7, 0x1FFFF, kind=WRITE)
    stream.touch(8, 0x20000)
    tables = stream.tables()
    assert names(tables) == ["/bin/a", "", "//anon", ""]
    assert tables["touch"]["kind"].tolist() == [FILE, 0, WRITE, 0]
    assert tables["unmap"]["how"].tolist() == ["munmap"]
    assert tables["touch"]["map_id"][1] == NO_ID


def test_rows_of_two_rings_are_merged_by_time_and_new_ones_held_back(stream):
    stream.exec(1)
    stream.map(10, 0x1000, 0x9000)
    stream.touch(30, 0x3000)
    stream.touch(90, 0x4000)
    first = stream.batch()
    stream.touch(20, 0x1000)
    stream.touch(5, 0x2000)
    stream.assembler.flush([first, stream.batch()], cut_ns=50)
    assert stream.assembler.take()["touch"]["t_ns"].tolist() == [5, 20, 30]
    stream.touch(60, 0x5000)
    stream.assembler.flush([stream.batch()], cut_ns=80)
    assert stream.assembler.take()["touch"]["t_ns"].tolist() == [60]
    stream.assembler.flush([])
    assert stream.assembler.take()["touch"]["t_ns"].tolist() == [90]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 2)), max_size=60), st.lists(st.integers(0, 1000)))
def test_every_touch_is_in_exactly_one_flush(touches, cuts):
    stream = Stream()
    parts = [[], [], []]
    for t_ns, part in touches:
        parts[part].append(t_ns)
    seen = []
    cuts = sorted(cuts)[:3]
    for part, cut in zip(parts, [*cuts, 1000, 1000, 1000], strict=False):
        for t_ns in part:
            stream.touch(t_ns, 0x1000)
        stream.assembler.flush([stream.batch()], cut_ns=cut)
        seen += stream.assembler.take().get("touch", {"t_ns": np.empty(0)})["t_ns"].tolist()
    stream.assembler.flush([])
    seen += stream.assembler.take().get("touch", {"t_ns": np.empty(0)})["t_ns"].tolist()
    assert sorted(seen) == sorted(t_ns for t_ns, _ in touches)


def test_a_fork_copies_the_mappings_and_an_exec_drops_them(stream):
    stream.exec(1)
    stream.map(2, 0x10000, 0x20000, "/bin/a")
    stream.add(3, decode.FORK, PID, PID, pid=11)
    stream.touch(4, 0x10000, pid=11)
    stream.add(5, decode.MUNMAP, 0x10000, 0x10000)
    stream.touch(6, 0x10000)
    stream.touch(7, 0x10000, pid=11)
    stream.exec(8, "other", pid=11)
    stream.touch(9, 0x10000, pid=11)
    tables = stream.tables()
    assert names(tables) == ["/bin/a", "", "/bin/a", ""]
    assert tables["task"]["event"].tolist() == ["exec", "fork", "exec"]
    assert tables["task"]["parent"].tolist() == [0, PID, 0]


def test_a_sample_that_names_only_its_thread_belongs_to_the_process_of_that_time(stream):
    stream.exec(1)
    stream.map(2, 0, 16 * PAGE)
    stream.add(3, decode.FORK, PID, PID, pid=PID, tid=11)
    stream.add(5, decode.TOUCH, 0, 0x1234, pid=decode.NO_PID, tid=11)
    stream.add(6, decode.EXIT, PID, PID, pid=PID, tid=11)
    stream.add(8, decode.FORK, PID, PID, pid=11, tid=11)  # the number again, of a process this time
    stream.add(9, decode.TOUCH, PAGE, 0x1234, pid=decode.NO_PID, tid=11)
    stream.add(10, decode.TOUCH, 2 * PAGE, 0x1234, pid=decode.NO_PID, tid=PID)
    assert stream.tables()["touch"]["pid"].tolist() == [PID, 11, PID]
    stream.add(20, decode.TOUCH, 3 * PAGE, 0x1234, pid=decode.NO_PID, tid=11)  # told of in an earlier flush
    stream.add(21, decode.TOUCH, 4 * PAGE, 0x1234, pid=decode.NO_PID, tid=77)  # never told of
    assert stream.tables()["touch"]["pid"].tolist() == [11, 77]


@given(st.data())
def test_threads_are_named_as_if_rows_were_read_one_by_one(data):
    stream, known, expected = Stream(), {}, []
    stream.map(0, 0, 16 * PAGE)
    for t_ns in range(1, data.draw(st.integers(2, 30))):
        tid = data.draw(st.sampled_from([3, 5, 8]))
        what = data.draw(st.sampled_from(["tell", "touch", "flush"]))
        if what == "tell":
            known[tid] = data.draw(st.sampled_from([3, 5, 8]))
            stream.add(t_ns, decode.FORK, PID, PID, pid=known[tid], tid=tid)
        elif what == "touch":
            stream.add(t_ns, decode.TOUCH, 0, 0x1234, pid=decode.NO_PID, tid=tid)
            expected.append(known.get(tid, tid))
        else:
            stream.assembler.flush([stream.batch()])
    touch = stream.tables().get("touch", {"pid": np.empty(0)})
    assert touch["pid"].tolist() == expected


def test_the_last_thread_ends_the_process(stream):
    stream.exec(1)
    stream.add(2, decode.FORK, PID, PID, tid=12)
    stream.add(3, decode.EXIT, PID, PID, tid=PID)
    stream.tables()
    assert stream.assembler.alive == {PID: 1}
    stream.add(4, decode.EXIT, PID, PID, tid=12)
    stream.tables()
    assert stream.assembler.alive == {}
    assert stream.assembler.threads == {PID, 12}


def test_brk_unmaps_only_what_it_gives_back(stream):
    stream.exec(1)
    for t_ns, brk in enumerate((0x50000, 0x80000, 0x60001, 0x60001), 2):
        stream.add(t_ns, decode.BRK, brk)
    unmap = stream.tables()["unmap"]
    assert (unmap["start"].tolist(), unmap["end"].tolist(), unmap["how"].tolist()) == ([0x61000], [0x80000], ["brk"])


def test_mremap_moves_a_mapping_if_it_succeeds(stream):
    stream.exec(1)
    stream.map(2, 0x10000, 0x20000, "//anon")
    stream.add(3, decode.MREMAP, 0x10000, 0x10000, 0x20000, 1)
    stream.add(4, decode.MREMAP_EXIT, 0x40000)
    stream.touch(5, 0x10000)
    stream.touch(6, 0x5FFFF)
    stream.add(7, decode.MREMAP, 0x40000, 0x20000, 0x40000, 0)
    stream.add(8, decode.MREMAP_EXIT, 2**64 - 12)  # ENOMEM
    stream.touch(9, 0x40000)
    tables = stream.tables()
    assert names(tables) == ["", "//anon", "//anon"]
    assert [tables["unmap"][key].tolist() for key in ("how", "start", "end", "to_start", "to_end")] == [
        ["mremap"], [0x10000], [0x20000], [0x40000], [0x60000],
    ]  # fmt: skip


def test_madvise_is_a_row(stream):
    stream.exec(1)
    stream.add(2, decode.MADVISE, 0x10000, 100, 4)
    advice = stream.tables()["advice"]
    assert [advice[key].tolist() for key in ("pid", "start", "end", "advice")] == [[PID], [0x10000], [0x11000], [4]]


def test_off_cpu_rows_come_in_pairs_of_some_length(stream):
    stream.exec(1)
    for t_ns, kind in (
        (100, decode.SLEEP),
        (100 + OFF_CPU_NS, decode.RUN),
        (200_000, decode.PREEMPT),
        (200_000 + OFF_CPU_NS - 1, decode.RUN),  # too short to matter
        (300_000, decode.PREEMPT),
    ):
        stream.add(t_ns, decode.SWITCH, kind=kind)
    task = stream.tables()["task"]
    assert list(zip(task["event"].tolist(), task["t_ns"].tolist(), strict=True))[1:] == [
        ("sleep", 100), ("run", 100 + OFF_CPU_NS),
    ]  # fmt: skip
    stream.add(400_000, decode.SWITCH, kind=decode.RUN)  # in a later flush
    task = stream.tables()["task"]
    assert task["event"].tolist() == ["preempt", "run"]
    assert task["t_ns"].tolist() == [300_000, 400_000]


def test_the_main_stack_grows_down_to_a_touch(stream):
    stream.exec(1)
    top = 0x7FFF00000000
    stream.map(2, 0x10000, 0x20000, "/bin/a")
    stream.map(3, top - PAGE, top, "[stack]")
    stream.touch(4, top - PAGE - STACK_EXPAND_BYTES)  # as exec left it
    stream.touch(5, top - PAGE - STACK_EXPAND_BYTES - 1)
    stream.touch(6, 0x20000)  # far below its limit: no growth
    tables = stream.tables()
    assert names(tables) == ["[stack]", "[stack]", ""]
    left = top - PAGE - STACK_EXPAND_BYTES
    assert tables["map"]["start"].tolist() == [0x10000, left, left - PAGE]


def test_records_with_text_are_read():
    body = struct.pack("<iiQQQIIQQII", 1, 2, 0x4000, 0x2000, 0x1000, 8, 1, 99, 0, 5, 2) + b"/lib/\xff.so\0\0\0\0\0"
    assert parse_mmap2(struct.pack("<IHH", 10, 0, 0) + body) == (0x4000, 0x6000, 0x1000, 5, 2, "/lib/\ufffd.so")
    assert parse_comm(struct.pack("<IHHii", 3, 0, 0, 1, 2) + b"cc1\0\0\0\0\0") == "cc1"


def test_a_process_told_of_twice_gets_what_is_new(stream):
    first = Process(PID, [(0x10000, 0x20000, 0, 3, 2, "//anon")], [(PID, "a")])
    then = Process(PID, [*first.mappings, (0x30000, 0x40000, 0, 3, 2, "/lib/b")], [*first.threads, (11, "b")])
    stream.assembler.add_process(1, first)
    stream.assembler.add_process(2, then)
    stream.touch(3, 0x10000)
    stream.touch(4, 0x30000)
    tables = stream.tables()
    assert names(tables) == ["//anon", "/lib/b"]
    assert tables["map"]["start"].tolist() == [0x10000, 0x30000]
    assert tables["task"]["tid"].tolist() == [PID, 11]
    assert stream.assembler.alive == {PID: 2}
