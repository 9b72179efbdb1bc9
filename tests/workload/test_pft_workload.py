"""The page-fault test as a workload: its events counted by hand, and what the model makes of them."""

import msgspec
import numpy as np
import pytest
from hand_workload import linux, small_machine
from hypothesis import given, settings
from hypothesis import strategies as st

from firsttouch.errors import FirsttouchError
from firsttouch.mm import pmap
from firsttouch.mm.simulate import replay, simulate
from firsttouch.units import PMD_PAGES
from firsttouch.whatif.pft import model_row
from firsttouch.workload import EXIT, FORK, JOIN, MAP, TOUCH, WRITE
from firsttouch.workload.generators import PftTest, pft, pft_row

MIB = 1 << 20


def test_events_of_two_repetitions_with_three_threads() -> None:
    w = pft(3 * MIB, reps=2, threads=3)  # 256 pages a thread
    ops = [w.events.op[first:end].tolist() for first, end in zip(w.threads.first, w.threads.end, strict=True)]
    worker, child = [MAP, TOUCH, EXIT], [FORK] * 3 + [JOIN] * 3 + [EXIT]
    assert ops == [[FORK, JOIN, FORK, JOIN, EXIT], child, worker, worker, worker, child, worker, worker, worker]
    assert w.threads.mm.tolist() == [0] + 8 * [1]
    assert w.threads.parent.tolist() == [-1, 0, 1, 1, 1, 0, 5, 5, 5]
    touches = w.events.op == TOUCH
    assert w.events.page[touches].tolist() == 2 * [0, 256, 512]
    assert w.events.end[touches].tolist() == 2 * [256, 512, 768]
    assert set(w.events.arg[touches]) == {4}  # 16 KiB / 4 KiB
    assert set(w.events.kind[touches]) == {WRITE}
    assert w.mm_regions.tolist() == [1, 2]  # 768 pages need two regions of 512
    assert (w.vmas.start[0], w.vmas.end[0]) == (0, 768)


@pytest.mark.parametrize(
    ("page_bytes", "stride", "threads", "touched"),
    [
        (4096, 16384, 1, 64),  # 1 MiB / 16 KiB
        (4096, 4096, 1, 256),
        (16384, 16384, 1, 64),
        (65536, 16384, 1, 16),  # four touches a page, one of them faults
        (4096, 16384, 3, 66),  # ceil((1 MiB / 3) / 16 KiB) = ceil(21.3) = 22 a thread
        (4096, 1 << 21, 4, 4),  # a stride beyond the part: the first page only
    ],
)
def test_faults_of_one_mib_by_hand(page_bytes: int, stride: int, threads: int, touched: int) -> None:
    test = PftTest(MIB, 2, threads, 1, stride)
    assert test.touched_pages(page_bytes) == 2 * touched
    w = pft(MIB, reps=2, threads=threads, stride_bytes=stride, page_bytes=page_bytes)
    outcome = simulate(w, small_machine(page_bytes=page_bytes), linux())
    assert outcome.faults == outcome.faults_by_kind["zero_fill"] == 2 * touched


def test_lines_are_those_of_a_page() -> None:
    assert pft(MIB, lines=64).lines_touched == 64
    assert pft(MIB, lines=64, page_bytes=65536).lines_touched == 256  # each of four touches writes 64 lines


def test_times_of_one_thread_add_up_to_the_costs() -> None:
    row = model_row(PftTest(MIB, 1, 1, 5, 4096), small_machine(), linux())
    # 256 faults: trap 500 + allocation 300 + zeroing 300; refilling moves more pages than are used, 12 ns each.
    faults_ns, unmap_ns, lines_ns = 256 * 1100, 256 * 100, 256 * 5
    assert row.user_s == lines_ns / 1e9
    assert faults_ns + unmap_ns <= row.system_s * 1e9 <= faults_ns + unmap_ns + 512 * 12
    assert row.wall_s == row.user_s + row.system_s
    assert row.faults_per_cpu_s == 256 / (row.user_s + row.system_s)


def test_two_threads_on_two_cpus_take_less_wall_and_no_less_cpu() -> None:
    one, two = (model_row(PftTest(8 * MIB, 2, n, 1, 4096), small_machine(2), linux()) for n in (1, 2))
    assert two.wall_s < one.wall_s
    assert two.user_s + two.system_s >= one.user_s + one.system_s
    assert one.faults == two.faults == 2 * 2048


def test_the_rates_count_pages_that_are_not_touched() -> None:
    row = pft_row(PftTest(1 << 30, 3), page_bytes=4096, user_s=0.5, system_s=1.5, wall_s=4.0, faults=196_608)
    assert (row.pages, row.touched_pages) == (786_432, 196_608)
    assert (row.faults_per_cpu_s, row.faults_per_wall_s) == (393_216.0, 196_608.0)
    assert (row.gb, row.rep, row.threads, row.lines, row.machine, row.policy) == (1.0, 3, 1, 1, "host", "")


def test_out_of_memory_is_a_row_without_times() -> None:
    row = model_row(PftTest(2 << 30, 1000, 1, 1, 4096), small_machine(), linux())  # 256 MiB of memory
    assert row.out_of_memory
    assert (row.user_s, row.system_s, row.wall_s, row.faults_per_cpu_s, row.faults_per_wall_s) == (None,) * 5
    assert 0 < row.faults <= (256 << 20) // 4096


def test_each_repetition_finds_the_memory_of_the_one_before() -> None:
    test = PftTest(200 * MIB, 5, 2, 1, 4096)  # of 256 MiB
    row = model_row(test, small_machine(2), linux())
    assert not row.out_of_memory
    assert row.faults == test.touched_pages(4096)


@pytest.mark.parametrize("policy", ["+thp", "+mthp-64k", "+populate", "+prezero-4k", "+init-on-free"])
def test_other_policies_fault_no_more_and_free_all(policy: str) -> None:
    w = pft(16 * MIB, reps=2, threads=2, stride_bytes=4096)
    faults = {"+thp": 16, "+mthp-64k": 512, "+populate": 0}.get(
        policy, 8192
    )  # 2 * 16 MiB / 2 MiB, / 64 KiB, none, / 4 KiB
    world = replay(w, small_machine(), linux(policy))
    assert world.served.sum() == faults
    assert_all_is_free(world)


def assert_all_is_free(world) -> None:
    """No region in use, nothing mapped, and every page in the buddy, on a CPU's list, or with the scrubber."""
    assert pmap.check(world.pmap) == []
    assert np.all(world.pmap.slot == pmap.NO_SLOT)
    assert world.pmap.counts[pmap.MAPPED_PAGES] == 0
    flying = sum(1 << int(k) for pfn, k, _ in world.flying if pfn >= 0)
    on_lists = int(world.percpu.state[:, :, 0].sum())
    assert world.buddy.free_pages.sum() + on_lists + flying == len(world.pmap.refs)


@settings(max_examples=40, deadline=None)
@given(
    nr_bytes=st.integers(1, 24 * MIB),
    reps=st.integers(1, 3),
    threads=st.integers(1, 5),
    lines=st.integers(1, 64),
    stride=st.sampled_from([1024, 4096, 8192, 16384, 12288, 1 << 20]),
    nr_cpus=st.integers(1, 3),
)
def test_faults_are_touched_pages_whatever_the_test(nr_bytes, reps, threads, lines, stride, nr_cpus) -> None:
    test = PftTest(nr_bytes, reps, threads, lines, stride)
    try:
        test.check(4096, 64)
    except FirsttouchError:
        assert nr_bytes // threads < 4096
        return
    w = pft(nr_bytes, reps=reps, threads=threads, lines=lines, stride_bytes=stride)
    world = replay(w, small_machine(nr_cpus), linux())
    # Counted anew, touch by touch.
    part = nr_bytes // threads
    expected = len({offset // 4096 for offset in range(0, part, stride)}) * threads * reps
    assert world.served.sum() == test.touched_pages(4096) == expected
    assert w.mm_regions[1] == -(-threads * -(-part // 4096) // PMD_PAGES)
    assert_all_is_free(world)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"threads": 0}, "threads 0"),
        ({"threads": 5000}, "threads 5000"),
        ({"reps": 0}, "repetitions 0"),
        ({"reps": 1_000_001}, "repetitions"),
        ({"nr_bytes": 100}, "needs a page"),
        ({"nr_bytes": MIB, "threads": 257}, "needs a page"),
        ({"nr_bytes": 1 << 60}, "at most 16 TiB"),
        ({"lines": 0}, "lines 0"),
        ({"lines": 65}, "a page has 64"),
        ({"stride_bytes": 0}, "stride 0"),
        ({"stride_bytes": 5000}, "stride 5000"),
    ],
)
def test_a_test_that_cannot_be_is_refused(changes: dict[str, int], said: str) -> None:
    values = {"nr_bytes": MIB, **changes}
    with pytest.raises(FirsttouchError, match=said):
        PftTest(**values).check(4096, 64)
    with pytest.raises(FirsttouchError, match=said):
        pft(**values)


def test_the_rows_json_has_the_fields_of_the_contract() -> None:
    row = msgspec.to_builtins(model_row(PftTest(MIB), small_machine(), linux()))
    assert {
        "gb",
        "rep",
        "threads",
        "lines",
        "user_s",
        "system_s",
        "wall_s",
        "faults_per_cpu_s",
        "faults_per_wall_s",
    } <= set(row)
