"""The window of fault-around: the formula of filemap_map_pages, and what a fault then maps."""

import numpy as np
import pytest
from hand_workload import Hand, linux, recorded, small_machine

from firsttouch._packed import packed
from firsttouch.mm.faultahead import around_window, map_around
from firsttouch.mm.pmap import ANON_RW, FILE_RO, NEAR, NONE, STATE, make_pmap, map_block, need_slot
from firsttouch.mm.simulate import simulate
from firsttouch.workload import SHARED, WRITABLE

FILE_FLAGS = 0

WINDOWS = [  # mapping, faulting page, window -> first page, page after the last
    # p = 21, from = max(21 & ~15, 21 - 21) = 16, to = min(32, 512, ...): aligned
    ((0, 512), 21, 16, (16, 32)),
    # measured on 6.18: the mapping begins at pte 5; from = max(0, 6 - 1) = 5, to = 5 + 16: the window slides
    ((5, 512), 6, 16, (5, 21)),
    ((5, 512), 20, 16, (16, 32)),  # from = max(16, 20 - 15 = 5)
    ((17, 512), 21, 16, (17, 33)),
    # the end of the mapping
    ((0, 24), 21, 16, (16, 24)),
    ((5, 9), 6, 16, (5, 9)),
    ((21, 22), 21, 16, (21, 22)),
    # the end of the page-table page: from = 505, to = min(521, 512)
    ((505, 1024), 506, 16, (505, 512)),
    ((0, 1024), 511, 16, (496, 512)),
    # a mapping that began in an earlier page-table page: min(p, v) = p
    ((500, 1024), 514, 16, (512, 528)),
    ((511, 1024), 512, 16, (512, 528)),
    # the second region
    ((512, 1024), 533, 16, (528, 544)),
    # other windows
    ((0, 512), 21, 1, (21, 22)),
    ((5, 512), 300, 512, (5, 512)),
    ((0, 2048), 600, 512, (512, 1024)),
    ((3, 512), 5, 4, (4, 8)),  # from = max(4, 5 - 2 = 3)
]


@pytest.mark.parametrize(("vma", "page", "window", "want"), WINDOWS)
def test_window(vma, page, window, want):
    assert tuple(around_window(*vma, page, window)) == want


def test_it_maps_what_is_not_mapped_and_remembers_what_the_recording_kernel_would_have():
    pm = make_pmap(np.array([1]), 1, 64)
    slot = need_slot(packed(pm), 0, 0)
    map_block(packed(pm), 0, slot, 33, 7, 0, ANON_RW)
    pm.state[40] = FILE_RO  # the faulting page's own entry
    pm.nr_mapped[slot] += 1
    # window 64: [0, 64); recorded window 16: [32, 48)
    assert map_around(packed(pm), slot, 0, 512, 40, 64, 16) == 62
    assert pm.state[33] == ANON_RW
    assert pm.nr_mapped[slot] == 64
    near = [page for page in range(512) if pm.state[page] & NEAR]
    assert near == [page for page in range(32, 48) if page not in (33, 40)]
    assert [page for page in range(512) if pm.state[page] & STATE != NONE] == list(range(64))


def faults(h, diffs, **changes):
    return simulate(h.workload(**changes), small_machine(), linux(diffs)).faults


def test_one_fault_a_window():
    h = Hand()
    t, v = h.thread(), h.vma(5, 512, FILE_FLAGS)
    h.read(t, v, 6, *range(5, 21))
    assert faults(h, "") == 1
    h.read(t, v, 21)
    assert faults(h, "") == 2
    # 512 pages from 5 on, ascending, windows of 16: [5, 21), then fault at 21: [16, 32), 32, 48 ... 496: 1 + 31
    h = Hand()
    h.read(h.thread(), h.vma(5, 512, FILE_FLAGS), *range(5, 512))
    assert faults(h, "") == 32
    assert faults(h, "+fault-around-4") == 507
    assert faults(h, "+fault-around-2048") == 1


def test_writes_map_one_page():
    for flags in (WRITABLE, WRITABLE | SHARED):
        h = Hand()
        h.write(h.thread(), h.vma(0, 64, flags), *range(64))
        assert faults(h, "") == 64


def test_a_write_to_a_page_that_was_mapped_around_copies_it():
    h = Hand()
    t, v = h.thread(), h.vma(0, 64, WRITABLE)
    h.read(t, v, 0)
    h.write(t, v, 3, 3)
    outcome = simulate(h.workload(), small_machine(), linux())
    assert outcome.faults_by_kind | {"file": 1, "cow": 1} == outcome.faults_by_kind
    assert outcome.faults == 2


def test_a_recording_says_which_neighbours_were_not_in_the_page_cache():
    h = Hand()
    t, v = h.thread(), h.vma(0, 64, FILE_FLAGS)
    h.read(t, v, 0, 3, 20)
    workload = recorded(h.workload())
    # under the recording's own window all three faulted: 3 was not cached when 0 faulted
    assert simulate(workload, small_machine(), linux()).faults == 3
    # a window of 256 KiB would have mapped 20 as well, but 3 is proven absent
    assert simulate(workload, small_machine(), linux("+fault-around-256")).faults == 2
    # recorded without fault-around, nothing is known to be absent: all come with the first
    workload = recorded(h.workload(), fault_around_bytes=4096)
    assert simulate(workload, small_machine(), linux()).faults == 2
    assert simulate(workload, small_machine(), linux("+fault-around-4")).faults == 3
