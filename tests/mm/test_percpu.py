"""Per-CPU lists: integers by hand, exact agreement with a naive twin, and the running kernel's own batch sizes."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from percpu_twin import PcpTwin

from firsttouch.errors import FirsttouchError
from firsttouch.mm import buddy
from firsttouch.mm.buddy import NO_PFN, UNZEROED, ZEROED, alloc_block, free_block, make_buddy
from firsttouch.mm.percpu import (
    ALLOC_FACTOR,
    BATCH,
    FREE_COUNT,
    HIGH,
    HIGH_MAX,
    HIGH_MIN,
    NO_LIST,
    NO_ORDER,
    check,
    list_of,
    make_percpu,
    order_of_list,
    pages_on_lists,
    pcp_alloc,
    pcp_drain,
    pcp_free,
    watermark_low_pages,
    zone_batch_pages,
)

GIB_PAGES = 262_144


@pytest.mark.parametrize(
    ("zone_pages", "page_bytes", "batch"),
    [
        (16 * GIB_PAGES, 4096, 63),  # 1 MiB is 256 pages; 256 / 4 = 64; 64 * 1.5 = 96; down to 64; minus 1
        (GIB_PAGES, 4096, 63),  # 262144 / 1024 = 256, as above
        (GIB_PAGES // 4, 4096, 15),  # 65536 / 1024 = 64; 16; 24; 16; 15
        (GIB_PAGES // 16, 4096, 3),  # 16384 / 1024 = 16; 4; 6; 4; 3
        (3840, 4096, 1),  # 3; 0, but at least 1; 1 + 0; 1; 0, but at least 1
        (4 * GIB_PAGES, 16384, 15),  # 1 MiB is 64 pages; 16; 24; 16; 15
    ],
)
def test_batch_by_zone_size(zone_pages, page_bytes, batch):
    assert zone_batch_pages(zone_pages, page_bytes) == batch


def test_low_watermark():
    # One zone of 16 GiB: sqrt(2**24 KiB * 16) = 16384 KiB = 4096 pages; khugepaged asks for 3 zones * 11 pageblocks
    # * 512 = 16896 pages, less than a twentieth of memory. A quarter more, which beats a thousandth of the zone (4194).
    assert watermark_low_pages([16 * GIB_PAGES]) == [16896 + 4224]
    # 256 pages: sqrt(1024 KiB * 16) = 128 KiB = 32 pages; a twentieth is 12. 32 + 8.
    assert watermark_low_pages([256]) == [40]
    # Two zones share by size: 4 zones * 11 * 512 = 22528, but a twentieth of 20480 is 1024; sqrt(81920 * 16) = 1144 KiB
    # = 286 pages. 1024 * 3/4 = 768, + 192; 256 + 64.
    assert watermark_low_pages([15360, 5120]) == [960, 320]


def test_limits():
    p = make_percpu(make_buddy([GIB_PAGES]), 2, has_zeroed=False)
    # 1 GiB: a twentieth of 262144 is 13107; + 3276 = 16383; half for each CPU. High: 262144 / 8 / 2.
    assert p.limit.tolist() == [[63, 8191, 16384]]
    assert p.state[:, 0, HIGH].tolist() == [8191, 8191]


def test_limits_never_cross_in_a_small_zone():
    p = make_percpu(make_buddy([256]), 1, batch_pages=4, has_zeroed=False)
    assert p.limit.tolist() == [[4, 40, 40]]  # 256 / 8 = 32 is below the watermark
    p = make_percpu(make_buddy([256]), 1, batch_pages=16, has_zeroed=False)
    assert p.limit.tolist() == [[16, 64, 64]]  # at least 4 batches


@pytest.mark.parametrize(("nr_cpus", "batch_pages"), [(0, 0), (1, -1)])
def test_lists_that_cannot_be(nr_cpus, batch_pages):
    with pytest.raises(FirsttouchError):
        make_percpu(make_buddy([16]), nr_cpus, batch_pages=batch_pages, has_zeroed=False)


def test_orders_with_a_list():
    assert [list_of(k, UNZEROED) for k in (0, 1, 2, 3, 9)] == [0, 2, 4, 6, 8]
    assert [list_of(k, ZEROED) for k in (0, 1, 2, 3, 9)] == [1, 3, 5, 7, 9]
    assert [list_of(k, UNZEROED) for k in (4, 8, 10)] == [NO_LIST] * 3
    assert [order_of_list(i) for i in range(10)] == [0, 0, 1, 1, 2, 2, 3, 3, 9, 9]


def moved_until_refilled(p, b, nr_refills, k=0):
    """Pages that each of the next refills of CPU 0 moves."""
    out = []
    while len(out) < nr_refills:
        pfn, _, moved = pcp_alloc(p, b, 0, 0, k, False)
        assert pfn != NO_PFN
        if moved:
            out.append(moved)
    return out


def test_refills_double_while_a_cpu_only_allocates():
    b = make_buddy([GIB_PAGES])
    p = make_percpu(b, 2, has_zeroed=False)
    # 63 << 0, 1, 2 ... 5; room is never short, for HIGH begins at 8191
    assert moved_until_refilled(p, b, 7) == [63, 126, 252, 504, 1008, 2016, 2016]
    assert p.state[0, 0, ALLOC_FACTOR] == 5
    pcp_free(p, b, 0, 0, 0, 0, UNZEROED)
    assert p.state[0, 0, ALLOC_FACTOR] == 2  # a free halves it: 63 << 2
    assert moved_until_refilled(p, b, 1) == [252]


def test_refills_are_bounded_by_high():
    b = make_buddy([256])
    p = make_percpu(b, 1, batch_pages=4, has_zeroed=False)
    # HIGH stays 40; 4 << 4 = 64 is more than 40 - 0 - 4
    assert moved_until_refilled(p, b, 6) == [4, 8, 16, 32, 36, 36]
    assert p.state[0, 0, ALLOC_FACTOR] == 4


def test_refills_leave_room_for_what_other_lists_hold():
    b = make_buddy([256])
    p = make_percpu(b, 1, batch_pages=4, has_zeroed=False)
    pfn, _, moved = pcp_alloc(p, b, 0, 0, 3, False)
    assert moved == 16  # 4 >> 3 = 0 blocks, but at least 2
    pcp_free(p, b, 0, 0, pfn, 3, UNZEROED)
    assert moved_until_refilled(p, b, 5) == [4, 8, 16, 20, 20]  # 32 is more than 40 - 16 - 4


@pytest.mark.parametrize(
    ("k", "moved"),
    [(1, 62), (2, 60), (3, 56), (9, 1024)],  # 63 >> k = 31, 15, 7 and 0 blocks, but at least 2
)
def test_refills_of_larger_orders_do_not_grow(k, moved):
    b = make_buddy([GIB_PAGES])
    p = make_percpu(b, 1, has_zeroed=False)
    assert moved_until_refilled(p, b, 2, k) == [moved, moved]


def test_a_refill_is_handed_out_in_ascending_order_and_a_freed_page_first():
    b = make_buddy([256])
    p = make_percpu(b, 1, batch_pages=4, has_zeroed=False)
    assert [pcp_alloc(p, b, 0, 0, 0, False)[0] for _ in range(3)] == [0, 1, 2]
    pcp_free(p, b, 0, 0, 1, 0, UNZEROED)
    assert [pcp_alloc(p, b, 0, 0, 0, False) for _ in range(2)] == [(1, UNZEROED, 0), (3, UNZEROED, 0)]


def test_frees_spill_the_oldest():
    b = make_buddy([256], max_order=4)
    p = make_percpu(b, 1, batch_pages=4, has_zeroed=False)
    pages = [alloc_block(b, 0, 0, UNZEROED) for _ in range(80)]
    spilled = [pcp_free(p, b, 0, 0, pfn, 0, UNZEROED) for pfn in pages]
    # The 40th reaches HIGH: min(40 freed in a row, 40 - 4) = 36 go, the first freed first. Pages 0..15 and 16..31 merge
    # to order 4, the highest. 36 frees later again: 36..71, where 48..63 do.
    assert [(n, *what) for n, what in enumerate(spilled, 1) if what[0]] == [(40, 36, 4), (76, 36, 4)]
    assert pages_on_lists(p) == 8
    assert [pcp_alloc(p, b, 0, 0, 0, False)[0] for _ in range(8)] == [79, 78, 77, 76, 75, 74, 73, 72]
    assert p.state[0, 0, FREE_COUNT] == 0  # 80 halved 8 times


def test_high_rises_while_a_cpu_only_frees():
    b = make_buddy([2048])
    p = make_percpu(b, 1, batch_pages=16, has_zeroed=False)
    # A twentieth of 2048 is 102, which beats sqrt(8192 * 16) = 362 KiB = 90 pages; + 25 = 127. High: 2048 / 8.
    assert p.limit.tolist() == [[16, 127, 256]]
    spilled = [pcp_free(p, b, 0, 0, alloc_block(b, 0, 0, UNZEROED), 0, UNZEROED)[0] for _ in range(127)]
    assert spilled == [0] * 126 + [111]  # min(127 freed in a row, 127 - 16)
    assert p.state[0, 0, HIGH] == 143  # 127 + 16


def test_a_run_of_larger_blocks_is_not_kept():
    b = make_buddy([2048])
    p = make_percpu(b, 1, batch_pages=16, has_zeroed=False)
    blocks = [alloc_block(b, 0, 2, UNZEROED) for _ in range(25)]
    spilled = [pcp_free(p, b, 0, 0, pfn, 2, UNZEROED)[0] for pfn in blocks]
    # A run is 16 + 127 // 2 = 79 pages freed before this block: 4 * 20 = 80 at the 21st, which takes all 84 with it.
    # The run goes on: as soon as the lists hold a batch again, 16 pages go.
    assert spilled == [0] * 20 + [84, 0, 0, 0, 16]


def test_a_request_for_zeros_takes_them_and_a_plain_one_leaves_them():
    b = make_buddy([64], max_order=5)
    p = make_percpu(b, 1, batch_pages=2, has_zeroed=True)
    free_block(b, 0, alloc_block(b, 0, 5, UNZEROED), 5, ZEROED)  # 0..31 zeroed
    assert pcp_alloc(p, b, 0, 0, 0, True) == (0, ZEROED, 2)
    assert pcp_alloc(p, b, 0, 0, 0, False) == (32, UNZEROED, 4)
    assert pcp_alloc(p, b, 0, 0, 4, True) == (16, ZEROED, 16)  # no list of order 4: a half of 0..31
    assert pcp_alloc(p, b, 0, 0, 4, True) == (48, UNZEROED, 16)  # 14 zeroed pages are left


def test_a_plain_request_takes_zeroed_pages_one_by_one_when_nothing_else_is_left():
    b = make_buddy([32], max_order=5, zeroed=True)
    p = make_percpu(b, 1, batch_pages=4, has_zeroed=True)
    assert pcp_alloc(p, b, 0, 0, 0, False) == (0, ZEROED, 1)
    assert pcp_alloc(p, b, 0, 0, 0, True) == (1, ZEROED, 8)  # the refill that found no unzeroed page doubled this one
    assert pcp_alloc(p, b, 0, 0, 0, False) == (2, ZEROED, 0)  # from the CPU's own zeroed list


@pytest.mark.parametrize(("strands", "got"), [(False, (1, ZEROED, 0)), (True, (4, UNZEROED, 4))])
def test_zeroed_pages_on_a_list_may_be_stranded(strands, got):
    b = make_buddy([8], max_order=2)
    p = make_percpu(b, 1, batch_pages=4, has_zeroed=True, strands=strands)
    free_block(b, 0, alloc_block(b, 0, 2, UNZEROED), 2, ZEROED)
    assert pcp_alloc(p, b, 0, 0, 0, True) == (0, ZEROED, 4)
    assert b.zero_pages[0] == 0  # three more are on the list
    p.state[0, 0, ALLOC_FACTOR] = 0
    assert pcp_alloc(p, b, 0, 0, 0, True) == got


def test_without_zeroed_lists_all_is_plain():
    b = make_buddy([32], max_order=3)
    p = make_percpu(b, 1, batch_pages=2, has_zeroed=False)
    free_block(b, 0, alloc_block(b, 0, 3, UNZEROED), 3, ZEROED)
    assert pcp_alloc(p, b, 0, 0, 0, True) == (8, UNZEROED, 2)
    pcp_free(p, b, 0, 0, 8, 0, ZEROED)
    assert pcp_alloc(p, b, 0, 0, 0, True) == (8, UNZEROED, 0)


def test_only_unzeroed_frees_tell_the_scrubber():
    b = make_buddy([64], max_order=5)
    p = make_percpu(b, 1, has_zeroed=True)
    for z, told in ((ZEROED, NO_ORDER), (UNZEROED, 4)):
        pfn, _, _ = pcp_alloc(p, b, 0, 0, 4, False)
        assert pcp_free(p, b, 0, 0, pfn, 4, z) == (16, told)


def test_spilled_zeroed_pages_do_not_tell_the_scrubber():
    b = make_buddy([256], max_order=4)
    p = make_percpu(b, 1, batch_pages=4, has_zeroed=True)
    pages = [alloc_block(b, 0, 0, UNZEROED) for _ in range(40)]
    spilled = [pcp_free(p, b, 0, 0, pfn, 0, ZEROED) for pfn in pages]
    assert spilled[-1] == (36, NO_ORDER)
    assert b.zero_pages[0] == 36


def test_drain():
    b = make_buddy([64, 40], max_order=5)
    p = make_percpu(b, 2, batch_pages=4, has_zeroed=True)
    for cpu, zone, k in ((0, 0, 0), (0, 0, 2), (0, 1, 0), (1, 0, 0)):
        pfn, z, _ = pcp_alloc(p, b, cpu, zone, k, False)
        pcp_free(p, b, cpu, zone, pfn, k, z)
    # CPU 0: pages 0..3; blocks 4..7 and 8..11 (4 >> 2 = 1, but at least 2); 96..99, of the smallest block of zone 1.
    # CPU 1: pages 12..15.
    assert pages_on_lists(p) == 20
    assert pcp_drain(p, b, 0) == (16, 3)  # 0..7, for 12..15 are away, and 96..103
    assert pages_on_lists(p) == 4
    assert pcp_drain(p, b, 1) == (4, 5)  # 0..31
    assert b.free_pages.tolist() == [64, 40]
    assert check(p, b) == []
    assert buddy.check(b) == []


def test_check_names_the_invariant_that_is_broken():
    def broken(change):
        b = make_buddy([64])
        p = make_percpu(b, 1, batch_pages=4, has_zeroed=False)
        pcp_alloc(p, b, 0, 0, 0, False)  # leaves 1, 2, 3 on list 0
        assert check(p, b) == []
        change(p, b)
        return {line[:2] for line in check(p, b)}

    def zeroed(p, b):
        p.first[0, 0, :2], p.last[0, 0, :2] = (NO_PFN, 1), (NO_PFN, 3)

    assert broken(lambda p, b: b.prev.__setitem__(2, 3)) == {"P1"}
    assert broken(lambda p, b: p.last.__setitem__((0, 0, 0), 2)) == {"P1"}
    assert broken(lambda p, b: p.state.__setitem__((0, 0, 0), 4)) == {"P2"}
    assert "P3" in broken(lambda p, b: b.order.__setitem__(2, 1))
    assert broken(lambda p, b: p.state.__setitem__((0, 0, HIGH), p.limit[0, HIGH_MAX] + 1)) == {"P4"}
    assert broken(zeroed) == {"P5"}


ORDERS = st.sampled_from((0, 0, 0, 1, 2, 3, 4, 9))
worlds = st.fixed_dictionaries(
    {
        "zones": st.lists(st.sampled_from((7, 64, 300, 1100, 2048)), min_size=1, max_size=2),
        "max_order": st.sampled_from((9, 10)),
        "zeroed": st.booleans(),
        "batch": st.sampled_from((1, 2, 5, 16)),
        "has_zeroed": st.booleans(),
        "strands": st.booleans(),
    }
)
runs = st.lists(
    st.tuples(
        st.sampled_from(("alloc", "free", "free_first")),
        st.integers(0, 1),  # cpu
        st.integers(0, 1),  # zone
        ORDERS,
        st.booleans(),  # wants zeros, or has zeroed
        st.sampled_from((1, 3, 10, 60)),  # times
    ),
    max_size=30,
)


def agree(world, trace):
    zones = world["zones"]
    b = make_buddy(zones, world["max_order"], world["zeroed"])
    p = make_percpu(b, 2, batch_pages=world["batch"], has_zeroed=world["has_zeroed"], strands=world["strands"])
    limits = p.limit[:, [BATCH, HIGH_MIN, HIGH_MAX]].tolist()
    twin = PcpTwin(zones, world["max_order"], int(world["zeroed"]), 2, limits, world["has_zeroed"], world["strands"])
    held = {zone: [] for zone in range(len(zones))}
    for what, cpu, zone, k, flag, times in trace:
        zone %= len(zones)
        for _ in range(times):
            if what == "alloc":
                pfn, z, moved = pcp_alloc(p, b, cpu, zone, k, flag)
                expected = twin.alloc(cpu, zone, k, flag)
                assert (None if pfn == NO_PFN else (pfn, z, moved)) == expected
                if expected is None:
                    break
                held[zone].append((pfn, k))
            elif held[zone]:
                pfn, order = held[zone].pop(0 if what == "free_first" else -1)
                z = ZEROED if flag else UNZEROED
                assert pcp_free(p, b, cpu, zone, pfn, order, z) == twin.free(cpu, zone, pfn, order, z)
        assert p.state[cpu, zone, HIGH] == twin.cpus[cpu, zone]["high"]
    assert check(p, b) == []
    assert buddy.check(b) == []
    in_use = sum(2**k for blocks in held.values() for _, k in blocks)
    assert b.free_pages.sum() + pages_on_lists(p) + in_use == sum(zones)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(worlds, runs)
def test_same_blocks_as_the_naive_twin(world, trace):
    agree(world, trace)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None)
@given(worlds, runs)
def test_same_blocks_as_the_naive_twin_deep(world, trace):
    agree(world, trace)


@pytest.mark.kernel
def test_the_running_kernel_computes_the_same_limits():
    """Claim: batch and high_max of every zone in /proc/zoneinfo, exactly; they depend on its size and the CPUs only."""
    path = Path("/proc/zoneinfo")
    if not path.exists() or "high_max:" not in path.read_text():
        pytest.skip("this kernel does not report per-CPU limits (Linux 6.7 and later do)")
    page_bytes, nr_cpus = os.sysconf("SC_PAGE_SIZE"), os.cpu_count()
    if (
        path.read_text().count("Node 1,")
        or Path("/proc/sys/vm/percpu_pagelist_high_fraction").read_text().strip() != "0"
    ):
        pytest.skip("several nodes, or a high fraction set by hand")
    seen = 0
    for zone in re.split(r"^Node ", path.read_text(), flags=re.M)[1:]:
        managed = int(re.search(r"managed +(\d+)", zone)[1])
        found = re.search(r"batch: +(\d+)\n +high_min: +\d+\n +high_max: +(\d+)", zone)
        if managed and found:
            batch, high_max = map(int, found.groups())
            assert batch == zone_batch_pages(managed, page_bytes)
            assert high_max == max(managed // 8 // nr_cpus, 4 * batch)
            seen += 1
    assert seen


def test_a_cpu_has_lists_of_its_own():
    b = make_buddy([256])
    p = make_percpu(b, 2, batch_pages=4, has_zeroed=False)
    assert pcp_alloc(p, b, 0, 0, 0, False) == (0, UNZEROED, 4)
    assert pcp_alloc(p, b, 1, 0, 0, False) == (4, UNZEROED, 4)
    assert np.array_equal(p.state[0], p.state[1])
