"""What becomes of a trace, row by row; and the law that it replays with as many faults as it has touches."""

import pytest
from handmade import machine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from traces import RW, A, B, Rows

from firsttouch import policy, workload
from firsttouch.errors import FirsttouchError
from firsttouch.mm import simulate
from firsttouch.trace import schema
from firsttouch.trace.schema import MAP_NORESERVE, MAP_SHARED, MAP_STACK, PROT_READ
from firsttouch.workload import (
    ADVISED,
    ANON,
    EXEC,
    EXIT,
    FORK,
    HEAP,
    JOIN,
    MAP,
    MOVE,
    NOHUGE,
    NORESERVE,
    POPULATE,
    PROTECTION,
    RACED,
    RANDOM,
    RECORDED,
    SEQUENTIAL,
    SHARED,
    SHMEM,
    SLEEP,
    STACK,
    TOUCH,
    UNMAP,
    WAIT,
    WAKE,
    WRITABLE,
    WRITE,
    YIELD,
)
from firsttouch.workload.from_trace import from_trace

NAMES = {
    getattr(workload, name): name
    for name in (
        "TOUCH",
        "MAP",
        "UNMAP",
        "MOVE",
        "POPULATE",
        "FORK",
        "EXEC",
        "SLEEP",
        "JOIN",
        "WAIT",
        "WAKE",
        "YIELD",
        "EXIT",
    )
}
P = 4096
W = schema.WRITE


@pytest.fixture
def make(tmp_path):
    """A workload from rows, and its trace closed again."""

    def make(rows, level="full", **meta):
        with rows.trace(tmp_path / "hand.ftt", level, **meta) as trace:
            return from_trace(trace)

    return make


def events(w, *ops, thread=None):
    """(name, page, end, arg) of the events, of the given kinds only, thread by thread."""
    out = []
    for t in range(len(w.threads.first)) if thread is None else [thread]:
        for e in range(w.threads.first[t], w.threads.end[t]):
            if not ops or w.events.op[e] in ops:
                out.append(
                    (NAMES[int(w.events.op[e])], int(w.events.page[e]), int(w.events.end[e]), int(w.events.arg[e]))
                )
    return out


def touches(w):
    """(page, kind without RECORDED, mapping as (start, end, flags)) of each touch, thread by thread."""
    out = []
    for e in range(len(w.events.op)):
        if w.events.op[e] == TOUCH:
            assert w.events.kind[e] & RECORDED
            v = w.events.vma[e]
            bounds = (int(w.vmas.start[v]), int(w.vmas.end[v]), int(w.vmas.flags[v]))
            out.append((int(w.events.page[e]), int(w.events.kind[e]) & ~RECORDED, bounds))
    return out


# -- mappings


def test_pages_and_bounds(make):
    r = Rows()
    r.map(0, A, 8)
    r.map(0, B + 3 * P, 600)
    r.touch(1, A + 7 * P + 123, W)
    r.touch(2, A, 0)
    r.touch(3, B + 3 * P, W)
    r.touch(4, B + 602 * P, W)
    w = make(r)
    assert w.mm_regions.tolist() == [3]  # A's region, and the two that B's mapping spans
    first, second = (0, 8, ANON | WRITABLE), (512 + 3, 512 + 603, ANON | WRITABLE)
    assert touches(w) == [(7, WRITE, first), (0, 0, first), (512 + 3, WRITE, second), (512 + 602, WRITE, second)]
    assert events(w, MAP) == [("MAP", 0, 8, 0), ("MAP", 515, 1115, 0)]


FLAGS = [  # prot, flags, name -> what the model makes of it
    (RW, 2, "//anon", ANON | WRITABLE),
    (RW, 2, "", ANON | WRITABLE),
    (RW, 2, "[heap]", ANON | WRITABLE | HEAP),
    (RW, 2, "[stack]", ANON | WRITABLE | STACK),
    (RW, 2 | MAP_STACK, "//anon", ANON | WRITABLE | STACK),
    (RW, 2 | MAP_NORESERVE, "//anon", ANON | WRITABLE | NORESERVE),
    (PROT_READ, 2, "//anon", ANON),
    (PROT_READ, 2, "/lib/x.so", 0),
    (RW, 2, "/lib/x.so", WRITABLE),
    (RW, MAP_SHARED, "/tmp/f", WRITABLE | SHARED),
    (RW, MAP_SHARED, "//anon", WRITABLE | SHARED | SHMEM),
    (RW, MAP_SHARED, "/dev/shm/f", WRITABLE | SHARED | SHMEM),
    (RW, MAP_SHARED, "/memfd:f (deleted)", WRITABLE | SHARED | SHMEM),
    (PROT_READ, 2, "[vdso]", 0),
]


@pytest.mark.parametrize(("prot", "flags", "name", "want"), FLAGS)
def test_what_a_mapping_is(make, prot, flags, name, want):
    r = Rows()
    r.map(0, A, 4, prot=prot, flags=flags, name=name)
    r.touch(1, A, 0)
    w = make(r)
    assert touches(w) == [(0, 0, (0, 4, want))]
    assert bool(events(w, MAP)) == (want & (ANON | WRITABLE) == ANON | WRITABLE)


def test_a_heap_grows_and_shrinks(make):
    r = Rows()
    r.map(0, A, 4, name="[heap]")
    r.touch(10, A + 3 * P, W)
    r.map(20, A, 8, name="[heap]")
    r.touch(30, A + 6 * P, W)
    r.unmap(40, A + 2 * P, 6, "brk")
    r.touch(50, A, W)
    w = make(r)
    heap = ANON | WRITABLE | HEAP
    assert touches(w) == [(3, W, (0, 4, heap)), (6, W, (0, 8, heap)), (0, W, (0, 2, heap))]
    assert events(w, UNMAP) == [("UNMAP", 2, 8, 0)]


def test_munmap_of_a_part(make):
    r = Rows()
    r.map(0, A, 10)
    r.unmap(10, A + 4 * P, 2)
    for i, page in enumerate((0, 3, 6, 9)):
        r.touch(20 + i, A + page * P, W)
    w = make(r)
    left, right = (0, 4, ANON | WRITABLE), (6, 10, ANON | WRITABLE)
    assert touches(w) == [(0, W, left), (3, W, left), (6, W, right), (9, W, right)]
    assert events(w, UNMAP) == [("UNMAP", 4, 6, 0)]


def test_mremap_moves(make):
    r = Rows()
    r.map(0, A, 10)
    r.unmap(10, A, 10, "mremap", B, 20)
    r.touch(20, B + 15 * P, W)
    w = make(r)
    assert events(w, MOVE, UNMAP) == [("MOVE", 0, 10, 512)]
    assert touches(w) == [(512 + 15, W, (512, 532, ANON | WRITABLE))]


def test_mremap_grows_in_place(make):
    r = Rows()
    r.map(0, A, 10)
    r.unmap(10, A, 10, "mremap", A, 20)
    r.touch(20, A + 15 * P, W)
    w = make(r)
    assert events(w, MOVE, UNMAP) == []
    assert touches(w) == [(15, W, (0, 20, ANON | WRITABLE))]


def test_mremap_shrinks_in_place_and_elsewhere(make):
    r = Rows()
    r.map(0, A, 10)
    r.unmap(10, A, 10, "mremap", A, 6)
    r.touch(20, A + 5 * P, W)
    r.unmap(30, A, 6, "mremap", B, 2)
    r.touch(40, B, W)
    w = make(r)
    assert events(w, MOVE, UNMAP) == [("UNMAP", 6, 10, 0), ("MOVE", 0, 2, 512), ("UNMAP", 2, 6, 0)]
    assert [bounds for _, _, bounds in touches(w)] == [(0, 6, 3), (512, 514, 3)]


# -- advice


def test_discarded_pages(make):
    r = Rows()
    r.map(0, A, 10)
    r.advice(10, A + P, 3, 4)
    r.advice(11, A + 5 * P, 1, 24)
    r.advice(12, A, 10, 8)  # MADV_FREE: nothing happens at once
    assert events(make(r), UNMAP) == [("UNMAP", 1, 4, 0), ("UNMAP", 5, 6, 0)]


def test_advice_splits_a_mapping_and_more_advice_joins_it_again(make):
    r = Rows()
    r.map(0, A, 1536)
    r.advice(10, A + 512 * P, 512, 14)
    r.touch(20, A, W)
    r.touch(21, A + 512 * P, W)
    r.touch(22, A + 1024 * P, W)
    r.advice(30, A + 1024 * P, 512, 14)
    r.touch(40, A + 600 * P, W)
    r.advice(50, A, 256, 15)
    r.touch(60, A + 255 * P, W)
    r.touch(61, A + 256 * P, W)
    w = make(r)
    rw = ANON | WRITABLE
    assert [bounds for _, _, bounds in touches(w)] == [
        (0, 512, rw), (512, 1024, rw | ADVISED), (1024, 1536, rw),
        (512, 1536, rw | ADVISED),
        (0, 256, rw | NOHUGE), (256, 512, rw),
    ]  # fmt: skip


def test_the_order_of_accesses_that_a_program_announces_is_a_flag(make):
    r = Rows()
    r.map(0, A, 30)
    r.advice(10, A, 10, 1)  # MADV_RANDOM
    r.advice(11, A + 10 * P, 10, 2)  # MADV_SEQUENTIAL
    for page in (0, 10, 20):
        r.touch(20 + page, A + page * P, W)
    r.advice(50, A, 10, 0)  # MADV_NORMAL
    r.touch(60, A + P, W)
    rw = ANON | WRITABLE
    assert [flags for _, _, (_, _, flags) in touches(make(r))] == [rw | RANDOM, rw | SEQUENTIAL, rw, rw]


def test_populating(make):
    r = Rows()
    r.map(0, A, 10)
    r.advice(10, A + 2 * P, 5, 23)
    r.advice(20, B, 5, 23)  # not a mapping of its own: nothing to populate
    assert events(make(r), POPULATE) == [("POPULATE", 2, 7, 0)]


def test_a_stack_grows_downwards_by_being_touched(make):
    r = Rows()
    r.map(0, A + 100 * P, 4, name="[stack]")
    r.touch(10, A + 101 * P, W)
    r.touch(20, A + 90 * P + 8, W)
    r.touch(30, A + 95 * P, W)
    w = make(r)
    stack = ANON | WRITABLE | STACK
    assert [bounds for _, _, bounds in touches(w)] == [(100, 104, stack), (90, 104, stack), (90, 104, stack)]


def test_touches_outside_every_mapping_are_kept_and_get_no_blocks(make):
    r = Rows()
    r.touch(10, A, W)
    r.touch(20, A + P, schema.FILE)
    w = make(r)
    assert [(page, bounds) for page, _, bounds in touches(w)] == [
        (0, (0, 0, ANON | WRITABLE | NOHUGE)),
        (1, (0, 0, WRITABLE)),
    ]


# -- processes and threads


def test_fork_exec_exit(make):
    r = Rows()
    r.task(0, "exec")
    r.map(1, A, 4)
    r.touch(10, A, W)
    r.task(20, "fork", pid=20, parent=10)
    r.touch(30, A + P, W | schema.PROTECTION, pid=20)
    r.task(40, "exec", pid=20)
    r.map(41, B, 4, pid=20)
    r.touch(50, B + P, W, pid=20)
    r.task(60, "exit", pid=20)
    r.touch(70, A + 2 * P, W)
    r.task(80, "exit")
    w = make(r)
    assert w.threads.parent.tolist() == [-1, 0]
    # a space before the exec, the program, its child, the child's program
    assert w.threads.mm.tolist() == [0, 2]
    assert w.mm_regions.tolist() == [0, 1, 1, 1]
    assert [name for name, *_ in events(w, thread=0)] == ["EXEC", "MAP", "TOUCH", "FORK", "TOUCH", "EXIT"]
    assert [name for name, *_ in events(w, thread=1)] == ["TOUCH", "EXEC", "MAP", "TOUCH", "EXIT"]
    assert events(w, FORK) == [("FORK", 0, 0, 1)]
    assert [arg for _, _, _, arg in events(w, EXEC)] == [1, 3]
    # the child knows the parent's mappings, its program does not
    assert touches(w)[2] == (1, W | PROTECTION, (0, 4, ANON | WRITABLE))
    assert touches(w)[3] == (1, W, (0, 4, ANON | WRITABLE))
    assert w.facts["processes"] == 2


def test_threads_share_their_mappings(make):
    r = Rows()
    r.map(0, A, 4)
    r.task(5, "fork", pid=10, tid=11, parent=10)
    r.touch(10, A, W, tid=11)
    r.unmap(15, A, 1)
    r.touch(20, A + P, W)
    w = make(r)
    assert w.threads.mm.tolist() == [0, 0]
    assert events(w, TOUCH, thread=1) == [("TOUCH", 0, 1, 0)]
    # the trace does not say which thread unmaps: the one that touched last
    assert events(w, UNMAP, thread=1) == [("UNMAP", 0, 1, 0)]


def test_a_tid_that_is_used_again_is_another_thread(make):
    r = Rows()
    r.map(0, A, 8)
    for start, page in ((10, 1), (40, 2)):
        r.task(start, "fork", pid=10, tid=11, parent=10)
        r.touch(start + 5, A + page * P, W, tid=11)
        r.task(start + 10, "exit", pid=10, tid=11)
    w = make(r)
    assert events(w, TOUCH, thread=1) == [("TOUCH", 1, 2, 0)]
    assert events(w, TOUCH, thread=2) == [("TOUCH", 2, 3, 0)]
    assert [arg for *_, arg in events(w, FORK)] == [1, 2]


# -- what a touch was, without error codes


def test_basic_level_takes_a_touch_for_a_write_where_the_mapping_allows_it(make):
    r = Rows()
    r.map(0, A, 4)
    r.map(0, B, 4, prot=PROT_READ, name="/lib/x.so")
    unknown = schema.UNKNOWN_ACCESS
    r.touch(10, A, unknown)
    r.touch(20, B, unknown | schema.FILE)
    w = make(r, "basic")
    assert [kind for _, kind, _ in touches(w)] == [WRITE, 0]
    assert w.facts["mix"] == {"zero_fill": 1, "cow": 0, "zero_page": 0, "file": 1}


def test_basic_level_takes_two_touches_for_a_read_and_a_write(make):
    r = Rows()
    r.map(0, A, 4)
    for t_ns, page in ((10, 0), (20, 1), (100_000, 0), (200_000, 2), (300_000, 2), (400_000, 2)):
        r.touch(t_ns, A + page * P, schema.UNKNOWN_ACCESS)
    w = make(r, "basic")
    # page 0: read, then write; page 1: write; page 2: three touches
    kinds = {}
    for page, kind, _ in touches(w):
        kinds.setdefault(page, []).append(kind)
    assert kinds[0] == [0, WRITE | PROTECTION]
    assert kinds[1] == [WRITE]
    assert kinds[2][:2] == [0, WRITE | PROTECTION]
    assert w.facts["inferred"]["accesses"] == 2


def test_full_level_guesses_nothing(make):
    r = Rows()
    r.map(0, A, 4)
    for t_ns in (10, 100_000):
        r.touch(t_ns, A, 0)
    r.map(150_000, A, 4)
    w = make(r)
    assert [kind for _, kind, _ in touches(w)] == [0, 0]
    assert events(w, UNMAP) == []


def test_basic_level_infers_an_unmap_from_the_same_mapping_again(make):
    r = Rows()
    r.map(0, A, 4)
    r.touch(10, A, W)
    r.map(20, A, 4)
    r.touch(30, A, W)
    w = make(r, "basic")
    assert ("UNMAP", 0, 4, 0) in events(w, UNMAP)
    assert w.facts["inferred"]["unmaps"] >= 1


RACES = [  # the second touch: thread, how long after the first, kind -> raced
    (11, 19_999, W, True),
    (11, 20_000, W, False),
    (10, 5, W, False),  # the same thread
    (11, 5, W | schema.PROTECTION, False),  # the page was mapped, but not for a write: no race
]


@pytest.mark.parametrize(("tid", "after_ns", "kind", "raced"), RACES)
def test_two_threads_at_one_page(make, tid, after_ns, kind, raced):
    r = Rows()
    r.map(0, A, 4)
    r.task(1, "fork", pid=10, tid=11, parent=10)
    r.touch(100_000, A, W)
    r.touch(100_000 + after_ns, A, kind, tid=tid)
    w = make(r)
    assert bool(touches(w)[1][1] & RACED) == raced
    assert w.facts["inferred"].get("raced", 0) == raced


# -- time


def thinks(w, thread=0):
    first, end = w.threads.first[thread], w.threads.end[thread]
    return list(
        zip([NAMES[int(op)] for op in w.events.op[first:end]], w.events.think_ns[first:end].tolist(), strict=True)
    )


def test_what_is_between_two_events_is_thinking_and_sleep_is_not(make):
    r = Rows()
    r.map(0, A, 4, prot=PROT_READ)
    r.touch(1000, A)
    r.touch(3000, A + P)
    r.task(4000, "sleep")
    r.task(9000, "run")
    r.touch(9500, A + 2 * P)
    r.task(9600, "preempt")
    r.task(9900, "run")
    r.task(10_000, "exit")
    w = make(r)
    assert thinks(w) == [
        ("TOUCH", 1000), ("TOUCH", 2000), ("SLEEP", 1000), ("TOUCH", 500), ("YIELD", 100), ("EXIT", 100),
    ]  # fmt: skip
    assert events(w, SLEEP) == [("SLEEP", 5000, 0, 0)]
    assert w.facts["inferred"]["sleep_ns"] == 5000
    assert events(w, YIELD) != []


def test_a_call_given_to_a_sleeping_thread_does_not_end_its_sleep(make):
    """The trace does not say which thread of a process maps memory; the last one that touched is taken, even asleep."""
    r = Rows()
    r.task(0, "comm")
    r.task(10, "fork", pid=10, tid=11, parent=10)
    r.map(20, A, 4)
    r.touch(100, A, W, tid=11)
    r.task(200, "sleep", tid=11)
    r.map(300, B, 4)  # by the first thread, in truth
    r.task(10_200, "run", tid=11)
    r.task(10_300, "exit", tid=11)
    r.task(20_000, "exit")
    assert thinks(make(r), 1) == [
        ("MAP", 10), ("TOUCH", 80), ("SLEEP", 100), ("MAP", 0), ("EXIT", 100),
    ]  # fmt: skip


@pytest.mark.parametrize("level", ["full", "basic"])
def test_a_parent_that_sleeps_until_its_child_ends_waits_for_that(make, level):
    r = Rows()
    r.task(0, "comm")
    r.task(100, "fork", pid=20, parent=10)
    r.task(200, "sleep")
    r.task(5000, "exit", pid=20)
    r.task(5100, "run")
    w = make(r, level)
    assert events(w, JOIN, SLEEP, WAIT) == [("JOIN", 0, 0, 1)]


def test_a_thread_that_another_woke_waits_for_it(make):
    r = Rows()
    r.task(0, "comm")
    r.task(10, "fork", pid=10, tid=11, parent=10)
    r.task(200, "sleep", tid=11)
    r.task(700, "wake", tid=11, parent=10)
    r.task(750, "run", tid=11)
    w = make(r)
    assert events(w, WAIT, SLEEP, thread=1) == [("WAIT", 0, 0, 0)]
    assert events(w, WAKE, thread=0) == [("WAKE", 0, 0, 1)]
    assert ("WAKE", 690) in thinks(w)


def test_basic_level_takes_who_was_awake_for_who_woke(make):
    r = Rows()
    r.task(0, "comm")
    r.task(10, "fork", pid=10, tid=11, parent=10)
    r.task(200, "sleep", tid=11)
    r.task(750, "run", tid=11)
    w = make(r, "basic")
    assert events(w, WAIT, thread=1) == [("WAIT", 0, 0, 0)]
    assert events(w, WAKE, thread=0) == [("WAKE", 0, 0, 1)]


def test_a_thread_that_outlives_the_program_keeps_its_touches(make):
    """The program's own end is the end of `wall_ns`; a child it left behind goes on."""
    r = Rows()
    r.task(0, "comm")
    r.map(0, A, 4)
    r.task(100, "fork", pid=20, parent=10)
    r.touch(900, A, W, pid=20)
    w = make(r, wall_ns=500)
    assert events(w, thread=1)[-1][0] == "EXIT"
    assert events(w, TOUCH, thread=1) == [("TOUCH", 0, 1, 0)]


def test_an_empty_trace_is_a_thread_that_ends(make):
    w = make(Rows())
    assert events(w) == [("EXIT", 0, 0, 0)]
    assert w.nr_touches == 0


def test_a_recording_with_huge_pages_is_refused(make):
    with pytest.raises(FirsttouchError, match="was recorded with huge pages on"):
        make(Rows(), base_pages=False)


# -- the law

PIDS, TIDS = [10, 20], [10, 11, 20, 21]
ADDRESSES = st.one_of(
    st.tuples(st.sampled_from([A, B, A + 510 * P]), st.integers(0, 40)).map(lambda x: x[0] + x[1] * P),
    st.sampled_from([0, P, 0xFFF, 1 << 47, (1 << 64) - 1, A - 1, B + 5 * P + 77]),
)
TIMES = st.integers(0, 300).map(lambda x: x * 1000)
SPANS = st.tuples(st.sampled_from([A, B, A + 500 * P]), st.integers(0, 20), st.sampled_from([1, 2, 17, 600]))
NAMES_OF_MAPS = ["//anon", "", "[heap]", "[stack]", "/lib/x.so", "/memfd:x", "/dev/shm/y", "[vdso]"]


@st.composite
def row_lists(draw):
    r = Rows()
    for _ in range(draw(st.integers(0, 25))):
        table = draw(st.sampled_from(["touch"] * 6 + ["map", "map", "unmap", "advice", "task", "task"]))
        t_ns, pid = draw(TIMES), draw(st.sampled_from(PIDS))
        base, offset, nr = draw(SPANS)
        if table == "touch":
            kind = draw(st.sampled_from([0, W, W | schema.PROTECTION, schema.PROTECTION, W | schema.FILE, schema.FILE]))
            kind |= draw(st.sampled_from([0, schema.KERNEL, schema.EXEC, schema.UNKNOWN_ACCESS]))
            r.touch(t_ns, draw(ADDRESSES), kind, pid=pid, tid=draw(st.sampled_from(TIDS)))
        elif table == "map":
            name, shared = draw(st.sampled_from(NAMES_OF_MAPS)), draw(st.sampled_from([2, MAP_SHARED, 2 | MAP_STACK]))
            r.map(t_ns, base + offset * P, nr, prot=draw(st.sampled_from([RW, 1, 0])), flags=shared, name=name, pid=pid)
        elif table == "unmap":
            how = draw(st.sampled_from(["munmap", "brk", "mremap"]))
            to = draw(st.sampled_from([A, B, base])) + draw(st.integers(0, 30)) * P
            r.unmap(t_ns, base + offset * P, nr, how, to, draw(st.sampled_from([1, 5, 40])), pid=pid)
        elif table == "advice":
            advice = draw(st.sampled_from([4, 14, 15, 22, 23, 24, 8]))
            r.advice(t_ns, base + offset * P, nr, advice, pid=pid)
        else:
            event = draw(st.sampled_from(["fork", "exec", "comm", "exit", "sleep", "preempt", "run", "wake"]))
            tid, parent = draw(st.sampled_from(TIDS)), draw(st.sampled_from(TIDS))
            r.task(t_ns, event, pid=pid, tid=tid, parent=parent)
    return r


def law(rows, level, wall_ns):
    w = from_trace(rows.in_memory(level, wall_ns=wall_ns))
    assert w.nr_touches == len(rows.tables["touch"])
    outcome = simulate.simulate(w, machine(nr_cpus=2, memory_bytes=64 << 20), policy.load("linux-6.18"))
    assert outcome.faults == w.nr_touches


EXAMPLES = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
LAW = given(row_lists(), st.sampled_from(["basic", "full"]), st.sampled_from([0, 50_000, 10**6]))


@EXAMPLES
@LAW
def test_any_trace_replays_with_as_many_faults_as_it_has_touches(rows, level, wall_ns):
    law(rows, level, wall_ns)


@pytest.mark.slow
@settings(EXAMPLES, max_examples=1500)
@LAW
def test_any_trace_at_length(rows, level, wall_ns):
    law(rows, level, wall_ns)


def test_names_of_events_are_complete():
    assert len(NAMES) == EXIT + 1


def test_numpy_is_known_by_a_file_it_maps_and_marks_what_is_mapped_after_it(make):
    r = Rows()
    r.map(0, A, 8)
    r.map(10, B, 4, prot=PROT_READ, name="/site-packages/numpy/_core/_multiarray_umath.cpython-311-x86_64-linux-gnu.so")
    r.map(20, A + 600 * P, 8)
    r.touch(30, A, W)
    w = make(r)
    assert w.numpy_mms == (int(w.threads.mm[0]),)
    assert w.events.arg[w.events.op == MAP].tolist() == [0, 1]
