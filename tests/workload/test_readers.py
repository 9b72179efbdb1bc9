"""Readers of one mapped file: faults and times by hand, where fault-around helps, and what the readers meet at."""

import msgspec
import numpy as np
import pytest
from hand_workload import PAGE_BYTES, small_machine
from hypothesis import given, settings
from hypothesis import strategies as st

from firsttouch import policy
from firsttouch.errors import FirsttouchError
from firsttouch.machine import Cost
from firsttouch.mm.simulate import simulate
from firsttouch.workload import JOIN, MAP, READ, TOUCH
from firsttouch.workload.generators import readers
from firsttouch.workload.generators.readers import words_before

OLD = "linux-3.14"
TRAP_NS, FILE_NS, NEXT_NS, UNMAP_NS, TOUCH_NS = 500, 300, 20, 100, 64
TABLE_NS, TABLE_BACK_NS = 300 + 300, 12  # allocated and zeroed; given back


def run(workload, name, nr_cpus=1, nr_nodes=1, **costs):
    on = small_machine(nr_cpus)
    cost = msgspec.structs.replace(on.cost, **{field: Cost(ns=float(ns)) for field, ns in costs.items()})
    return simulate(workload, msgspec.structs.replace(on, nr_nodes=nr_nodes, cost=cost), policy.load(name))


def around(nr_kib):
    return f"{OLD}+map-around-{nr_kib}"


@pytest.mark.parametrize(("name", "window"), [(OLD, 1), (around(8), 2), (around(64), 16), (around(128), 32)])
def test_one_reader_in_order_by_hand(name, window):
    """1,024 pages in two page-table pages; a word takes 2 ns, so a page 1,024."""
    outcome = run(readers(1024, threads=1), name)
    faults = 1024 // window
    assert outcome.faults_by_kind["file"] == outcome.faults == faults
    assert outcome.user_ns == 1024 * (512 * 2 + TOUCH_NS)
    fault_ns = TRAP_NS + FILE_NS + (window - 1) * NEXT_NS
    assert outcome.system_ns == faults * fault_ns + 1024 * UNMAP_NS + 2 * (TABLE_NS + TABLE_BACK_NS)
    assert outcome.wall_ns == outcome.user_ns + outcome.system_ns


def test_a_sparse_reader_gains_no_fault_and_pays_for_all_that_is_mapped():
    workload = readers(4096, threads=1, pattern="sparse")
    one, wide = run(workload, OLD), run(workload, around(128))
    assert (one.faults, wide.faults) == (8, 8)
    assert one.user_ns == wide.user_ns == 8 * (2 + TOUCH_NS)
    assert wide.system_ns - one.system_ns == 8 * 31 * (NEXT_NS + UNMAP_NS)


@pytest.mark.parametrize("pattern", ["sequential", "random", "sparse"])
def test_every_reader_faults_for_itself(pattern):
    """In mappings of its own, so that a second pass finds what the first mapped."""
    alone, three, again = (
        run(readers(600, threads=threads, pattern=pattern, passes=passes), OLD, nr_cpus=4)
        for threads, passes in ((1, 1), (3, 1), (3, 2))
    )
    assert three.faults == again.faults == 3 * alone.faults
    assert again.user_ns == 2 * three.user_ns == 6 * alone.user_ns


def test_readers_meet_at_their_address_space():
    threads, processes = (
        run(readers(512, threads=4, processes=own, word_ns=0), OLD, nr_cpus=5) for own in (False, True)
    )
    assert threads.faults == processes.faults == 4 * 512
    # The line of mmap_sem goes to and fro at each fault, and one thread unmaps for all.
    assert threads.lock_wait_ns["mmap"] > 3 * 512 * 2 * 100
    assert processes.lock_wait_ns["mmap"] == 0
    assert threads.wall_ns > processes.wall_ns + 2 * 512 * UNMAP_NS
    wide = run(readers(512, threads=4, word_ns=0), around(64), nr_cpus=5)
    assert wide.lock_wait_ns["mmap"] < threads.lock_wait_ns["mmap"] / 10


def test_reading_by_chance_waits_for_the_bus_of_the_file():
    """A line that takes 100 ns alone and 2 of the bus (8,192 bytes in 256 ns): 50 readers fill it, 100 get half."""
    times, free = {}, {"lock_handoff": 0, "unmap_page": 0}
    for threads, bus_page in ((1, 256), (25, 256), (100, 256), (100, 0)):
        workload = readers(64, threads=threads, pattern="random", word_ns=100)
        times[threads, bus_page] = run(workload, around(64), 101, 4, **free, bus_page=bus_page).wall_ns
    words_ns = 64 * 512 * 100
    for few in ((1, 256), (25, 256), (100, 0)):
        assert times[few] == pytest.approx(words_ns, rel=0.05)
    assert times[100, 256] == pytest.approx(2 * words_ns, rel=0.03)


def test_the_first_word_of_each_page_comes_early():
    """Against the definition: words read one by one in an order by chance."""
    nr_pages, words = 64, 32
    rng = np.random.default_rng(3)
    seen = np.zeros(nr_pages)
    for _ in range(400):
        order = rng.permutation(nr_pages * words) // words
        _, first = np.unique(order, return_index=True)
        seen += np.sort(first)
    expected = words_before(nr_pages, words)
    assert expected[0] == 0
    assert np.allclose(seen[:56] / 400, expected[:56], rtol=0.12, atol=1.0)


@settings(max_examples=30, deadline=None)
@given(
    nr_pages=st.integers(1, 300), threads=st.integers(1, 3), word_ns=st.floats(0, 200), seed=st.integers(0, 9),
    processes=st.booleans(),
)  # fmt: skip
def test_a_reader_by_chance_reads_every_word_and_touches_every_page_once(nr_pages, threads, word_ns, seed, processes):
    w = readers(nr_pages, threads=threads, pattern="random", word_ns=word_ns, seed=seed, processes=processes)
    reads, touches = w.events.op == READ, w.events.op == TOUCH
    assert int(w.events.arg[reads].sum()) == threads * nr_pages * PAGE_BYTES // 8
    assert int(np.abs(w.events.page[reads] - w.events.arg[reads] * word_ns).max()) <= 1
    assert np.count_nonzero(touches) == threads * nr_pages
    for t in range(1, threads + 1):
        mine = slice(w.threads.first[t], w.threads.end[t])
        pages = w.events.page[mine][touches[mine]]
        start = w.events.page[mine][w.events.op[mine] == MAP][0]
        assert sorted(pages) == list(range(start, start + nr_pages))
        assert start % 512 == 0
    assert np.count_nonzero(w.events.op == JOIN) == threads
    assert set(w.vmas.cache_page) == {0}  # one file


def test_readers_by_chance_have_each_an_order_of_their_own():
    w = readers(100, threads=2, pattern="random")
    orders = [w.events.page[w.threads.first[t] : w.threads.end[t]][1:] % 512 for t in (1, 2)]
    assert not np.array_equal(*orders)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"file_pages": 0}, "file_pages is 0"),
        ({"threads": 0}, "threads is 0"),
        ({"word_ns": -1.0}, "word_ns is -1.0"),
        ({"step_pages": 0}, "step_pages is 0"),
        ({"passes": 0}, "passes is 0"),
        ({"pattern": "backwards"}, "pattern is 'backwards'"),
    ],
)
def test_a_parameter_out_of_range_is_named(bad, said):
    with pytest.raises(FirsttouchError, match=said):
        readers(**bad)
