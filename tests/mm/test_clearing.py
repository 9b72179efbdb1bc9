"""Zeroing in the fault by extents, and by lines that are established: what a block costs, and who pays later."""

import msgspec
import numpy as np
import pytest
from hand_workload import Hand, linux, small_machine

from firsttouch import machine as machines
from firsttouch import policy
from firsttouch.errors import FirsttouchError
from firsttouch.machine import Cost, ZeroCost
from firsttouch.mm.costs import cost_table, in_extents
from firsttouch.mm.simulate import simulate

KIB = 1024


def clearing(**methods):
    """The machine of round costs, where zeroing takes as many ns for a page, 16 pages and 512 as are given."""
    made = small_machine()
    zero = {
        name: ZeroCost([4 * KIB, 64 * KIB, 2048 * KIB], [float(ns) for ns in costs], [float(ns) for ns in costs])
        for name, costs in methods.items()
    }
    return msgspec.structs.replace(made, zero={**made.zero, **zero})


PAGE_BY_PAGE, AT_ONCE = (300, 4800, 153_600), (290, 2400, 51_200)


def with_extents(nr_bytes, diffs="+thp"):
    chosen = linux(f"{diffs}+clear-extents")
    return msgspec.structs.replace(chosen, zero=msgspec.structs.replace(chosen.zero, extent_bytes=nr_bytes))


@pytest.mark.parametrize(
    ("extent_pages", "costs"),
    [
        (1, [1, 2, 4, 8, 16]),  # each page by itself
        (2, [1, 10, 20, 40, 80]),
        (4, [1, 10, 100, 200, 400]),
        (16, [1, 10, 100, 1000, 10_000]),
        (1 << 20, [1, 10, 100, 1000, 10_000]),  # no block is as large
    ],
)
def test_a_block_is_zeroed_in_runs(extent_pages, costs):
    assert in_extents(np.array([1, 10, 100, 1000, 10_000]), extent_pages).tolist() == costs


@pytest.mark.parametrize(
    ("extent_bytes", "saved_ns"),
    [
        (0, 0),  # page by page
        (64 * KIB, 153_600 - 32 * 2400),
        (2048 * KIB, 153_600 - 51_200),
        (8192 * KIB, 153_600 - 51_200),
    ],
)
def test_extents_make_a_superpage_cheaper(extent_bytes, saved_ns):
    h = Hand([1])
    h.write(h.thread(), h.vma(0, 512), 7)
    here = clearing(temporal=PAGE_BY_PAGE, rep_stosb=AT_ONCE)
    plain, cleared = (simulate(h.workload(), here, chosen) for chosen in (linux("+thp"), with_extents(extent_bytes)))
    assert plain.faults_by_kind["huge"] == cleared.faults_by_kind["huge"] == 1
    assert plain.fault_ns - cleared.fault_ns == saved_ns
    assert plain.zeroed_in_fault_bytes == cleared.zeroed_in_fault_bytes


def test_extents_change_nothing_for_single_pages():
    h = Hand([1])
    h.write(h.thread(), h.vma(0, 512), *range(40))
    here = clearing(temporal=PAGE_BY_PAGE, rep_stosb=AT_ONCE)
    plain, cleared = (simulate(h.workload(), here, chosen) for chosen in (linux(), with_extents(2048 * KIB, "")))
    assert plain.fault_ns == cleared.fault_ns


def one_page(lines):
    h = Hand([1])
    h.write(h.thread(), h.vma(0, 512), 7)
    return h.workload(lines_touched=lines)


@pytest.mark.parametrize(("leaves_cold", "later_ns"), [(True, 64 * 4), (False, 0)])
def test_established_lines_are_paid_for_later_only_where_they_go_past_the_caches(leaves_cold, later_ns):
    """A cold line costs 5 ns, a hot one 1. `dcbz` leaves its lines in the cache, `clzero` does not."""
    here = clearing(line_establish=(100, 1600, 51_200))
    method = msgspec.structs.replace(here.zero["line_establish"], leaves_cold=leaves_cold)
    here = msgspec.structs.replace(here, zero={**here.zero, "line_establish": method})
    plain = simulate(one_page(64), here, linux())
    established = simulate(one_page(64), here, linux("+clear-line-establish"))
    assert plain.fault_ns - established.fault_ns == 300 - 100
    assert established.user_ns - plain.user_ns == later_ns


@pytest.mark.parametrize(("diffs", "later_ns"), [("", 0), ("+clear-nontemporal", 70)])
def test_the_user_waits_for_stores_that_are_on_their_way_to_memory(diffs, later_ns):
    """Only after stores past the caches, and only where the fault made them."""
    here = clearing()
    slow = msgspec.structs.replace(here, cost=msgspec.structs.replace(here.cost, write_drain=Cost(70)))
    fast, waiting = (simulate(one_page(64), on, linux(diffs)) for on in (here, slow))
    assert waiting.user_ns - fast.user_ns == waiting.wall_ns - fast.wall_ns == later_ns
    assert waiting.fault_ns == fast.fault_ns + later_ns


def test_nontemporal_stores_always_leave_memory_cold():
    table = cost_table(small_machine(), linux("+clear-nontemporal"), 64, "")
    assert table.leaves_cold.all()
    assert not cost_table(small_machine(), linux(), 64, "").leaves_cold.any()
    mixed = linux("+clear-extents")
    mixed = msgspec.structs.replace(mixed, zero=msgspec.structs.replace(mixed.zero, extent_method="nontemporal"))
    assert cost_table(small_machine(), mixed, 64, "").leaves_cold.tolist() == [0] + [1] * 10


def test_the_preset_of_the_host_knows_that_clzero_goes_past_the_caches():
    assert machines.load("vm-2cpu-zen4").zero["line_establish"].leaves_cold


def test_a_machine_without_the_method_is_told_of():
    here = small_machine()
    here = msgspec.structs.replace(
        here, zero={"temporal": here.zero["temporal"], "nontemporal": here.zero["nontemporal"]}
    )
    for diffs in ("+clear-extents", "+clear-line-establish"):
        with pytest.raises(FirsttouchError, match="no cost for zeroing method"):
            simulate(one_page(1), here, linux(diffs))


def test_extents_that_cannot_be_are_refused_by_name(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('extends = "linux-6.18"\n[zero]\nextent_bytes = 5000\n')
    with pytest.raises(FirsttouchError, match=r"zero\.extent_bytes is 5000"):
        policy.load(str(file))
