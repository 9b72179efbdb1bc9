"""Windows of anticipatory prefaulting, by hand; and what they do to faults, bloat and a contended lock."""

import numpy as np
import pytest

from firsttouch.mm.faultahead import make_prefault, prefault_pages

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
