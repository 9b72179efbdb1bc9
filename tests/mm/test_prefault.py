"""Windows of anticipatory prefaulting, by hand; and what they do to faults, bloat and a contended lock."""

import msgspec
import numpy as np
import pytest
from hand_workload import Hand, small_machine
from hypothesis import given, settings
from hypothesis import strategies as st

from firsttouch import policy
from firsttouch.mm.faultahead import make_prefault, prefault_pages
from firsttouch.mm.simulate import simulate

FAR = 10_000  # end of the mapping

# (rule, max_order, max_pages, min_run, windows of a task that touches pages in order, from page 0)
GOLDEN = [
    ("v2", 3, 14, 0, [1, 2, 4, 8, 14, 14, 14]),  # 1 << 4 = 16 >= 14: 14, and the order is put back to 3 each time
    ("v2", 3, 16, 0, [1, 2, 4, 8, 16, 16, 16]),
    ("v13", 3, 14, 0, [1, 2, 4, 8, 8, 8, 8]),  # order capped at 3
    ("v13", 0, 14, 0, [1, 1, 1, 1, 1, 1, 1]),  # 0 turns it off
    ("2005-03", 1, 14, 0, [1, 2, 1, 2, 1, 2, 1]),  # past the cap: one page, and start over
    ("2005-03", 4, 14, 0, [1, 2, 4, 8, 16, 1, 2]),
    ("v13", 3, 14, 3, [1, 1, 1, 1, 2, 4, 8]),  # three faults in order come first
    ("adaptive", 4, 14, 0, [1, 2, 4, 8, 16, 16, 16]),
    ("adaptive", 0, 14, 0, [1, 1, 1, 1, 1, 1, 1]),
]


@pytest.mark.parametrize(("rule", "max_order", "max_pages", "min_run", "windows"), GOLDEN)
def test_windows_in_order(rule, max_order, max_pages, min_run, windows):
    prefault = make_prefault(rule, max_order, max_pages, min_run, 1)
    page, got = 0, []
    for _ in windows:
        got.append(prefault_pages(prefault, 0, page, FAR))
        page += got[-1]
    assert got == windows


def test_a_fault_out_of_order_starts_over():
    prefault = make_prefault("v13", 3, 14, 0, 1)
    assert [prefault_pages(prefault, 0, page, FAR) for page in (0, 1, 3, 100, 101)] == [1, 2, 4, 1, 2]


def test_an_adaptive_window_halves_at_a_fault_out_of_order():
    prefault = make_prefault("adaptive", 4, 14, 0, 1)
    faults = (0, 1, 3, 7, 100, 104, 300, 500, 700, 900, 901)
    #         doubling     half      half           one page is the least
    assert [prefault_pages(prefault, 0, page, FAR) for page in faults] == [1, 2, 4, 8, 4, 8, 4, 2, 1, 1, 2]


ADAPTIVE_HOOK = """
from firsttouch import hook

@hook("window")
def window(run, last, page, start, end, free_pages):
    return min(2 * last, 16) if run > 0 else max(1, last // 2)
"""


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 24)), min_size=1, max_size=12))
def test_a_users_hook_can_be_the_adaptive_window(tmp_path_factory, runs):
    file = tmp_path_factory.mktemp("policy") / "mine.py"
    file.write_text(ADAPTIVE_HOOK)
    hand = Hand([2])
    t, v = hand.thread(), hand.vma(3, 1020)
    for first, nr in runs:
        hand.write(t, v, *range(max(3, first), min(1020, first + nr)))
    built_in, own = (
        simulate(hand.workload(), small_machine(), policy.load(f"linux-2.6.10+{diff}"))
        for diff in ("prefault-adaptive", str(file))
    )
    names = {"policy": "", "available": "", "apply": "", "answers_bounded": {}}  # windows past the end are counted
    assert msgspec.structs.replace(own, **names) == msgspec.structs.replace(built_in, **names)


def test_no_window_opens_where_no_fault_is_in_order():
    hand = Hand([2])
    hand.write(hand.thread(), hand.vma(0, 1024), *range(0, 1024, 8))
    adaptive, v2 = (
        simulate(hand.workload(), small_machine(), policy.load(name))
        for name in ("linux-2.6.10+prefault-adaptive", "linux-2.6.10+prefault-v2")
    )
    assert adaptive.untouched_bytes == v2.untouched_bytes == 0
    assert adaptive.faults == v2.faults == 128


def test_each_task_has_its_own_window():
    prefault = make_prefault("v13", 3, 14, 0, 2)
    assert [prefault_pages(prefault, t, page, FAR) for t, page in ((0, 0), (1, 1), (0, 1), (1, 2))] == [1, 1, 2, 2]


def test_a_window_ends_with_the_mapping_and_with_the_page_table():
    prefault = make_prefault("v13", 3, 14, 0, 1)
    assert [prefault_pages(prefault, 0, page, 5) for page in (0, 1, 3)] == [1, 2, 2]  # the mapping ends at 5
    prefault.next_page[0], prefault.order[0] = 508, 2
    assert prefault_pages(prefault, 0, 508, FAR) == 4  # 8 wanted, 512 begins another page table
    assert prefault.next_page[0] == 512
    assert np.all(prefault.order == 3)
