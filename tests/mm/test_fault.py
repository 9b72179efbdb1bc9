"""One fault after another: its kind, its cost, and what it leaves mapped. Counts and nanoseconds by hand."""

import numpy as np
import pytest
from hand_workload import FAULT_NS, REFILL_NS, Hand, linux, recorded, small_machine

from firsttouch.mm.pmap import check
from firsttouch.mm.simulate import replay, simulate
from firsttouch.workload import ANON, PROTECTION, RACED, SHARED, SHMEM, WRITABLE, WRITE

RW = ANON | WRITABLE


def kinds(h, diffs="", **changes):
    """Faults by kind, without those that did not occur."""
    outcome = simulate(h.workload(**changes), small_machine(), linux(diffs))
    return {kind: nr for kind, nr in outcome.faults_by_kind.items() if nr}


# -- what a touch turns out to be


def one(flags, *kinds_of_touches):
    h = Hand()
    t, v = h.thread(), h.vma(0, 512, flags)
    for kind in kinds_of_touches:
        h.touch(t, v, 100, kind)
    return h


R, W = 0, WRITE
SEQUENCES = [  # mapping, touches of one page, policy -> faults by kind
    (RW, [W, W, R], "", {"zero_fill": 1}),
    (RW, [R, R], "", {"zero_page": 1}),
    (RW, [R, W, W], "", {"zero_page": 1, "zero_fill": 1}),  # two faults a page, as measured on 6.18
    (ANON, [R], "", {"zero_page": 1}),
    (0, [R, R], "", {"file": 1}),
    (WRITABLE, [W, R], "", {"cow": 1}),  # private: the page is copied at once
    (WRITABLE, [R, W, W], "", {"file": 1, "cow": 1}),
    (WRITABLE | SHARED, [W, W], "", {"file": 1}),
    (WRITABLE | SHARED, [R, W, W], "", {"file": 1, "reuse": 1}),  # made writable in place
    (WRITABLE | SHARED | SHMEM, [R, W], "", {"shared": 1}),
    (WRITABLE | SHARED | SHMEM, [W, R], "", {"shared": 1}),
    (RW, [W], "+thp", {"huge": 1}),
    (RW, [R], "+thp", {"zero_page": 1}),
    (RW, [R, W], "+thp", {"zero_page": 1, "huge": 1}),  # 6.13 and later: a write to the huge zero page
    (RW, [R, W], "+mthp-64k", {"zero_page": 1, "zero_fill": 1}),
    (RW | SHARED | SHMEM, [W], "+thp", {"shared": 1}),
    (WRITABLE, [W], "+thp", {"cow": 1}),
]


@pytest.mark.parametrize(("flags", "touches", "diffs", "want"), SEQUENCES)
def test_kinds(flags, touches, diffs, want):
    assert kinds(one(flags, *touches), diffs) == want


def test_the_huge_zero_page_serves_a_region_and_one_write_replaces_it():
    h = Hand()
    t, v = h.thread(), h.vma(0, 512)
    h.read(t, v, *range(512))
    assert kinds(h, "+thp") == {"zero_page": 1}
    assert simulate(h.workload(), small_machine(), linux("+thp")).peak_bytes == 0
    h.write(t, v, *range(512))
    assert kinds(h, "+thp") == {"zero_page": 1, "huge": 1}


def test_a_write_over_a_zero_page_is_one_page_even_with_mthp():
    h = Hand()
    t, v = h.thread(), h.vma(0, 512)
    h.read(t, v, 3)
    h.write(t, v, 3)  # page 3 by itself: its entry was not none
    h.write(t, v, 4)  # [0, 16) has page 3
    h.write(t, v, 16)  # a block of 16
    h.write(t, v, 17)
    assert kinds(h, "+mthp-64k") == {"zero_page": 1, "zero_fill": 3}
    assert simulate(h.workload(), small_machine(), linux("+mthp-64k")).peak_bytes == 18 * 4096


# -- fork


def test_copy_on_write_and_reuse_by_the_last_user():
    h = Hand([1, 1])
    t, v = h.thread(), h.vma(0, 512)
    h.write(t, v, 0, 1, 2)
    child = h.fork(t, mm=1)
    h.write(child, v, 0)  # copied: the parent has it
    h.read(child, v, 1)  # mapped
    h.join(t, child)
    h.write(t, v, 0)  # reused: the child has its own
    h.write(t, v, 1, 2)  # reused: the child is gone
    assert kinds(h) == {"zero_fill": 3, "cow": 1, "reuse": 3}
    outcome = simulate(h.workload(), small_machine(), linux())
    assert (outcome.peak_bytes, outcome.copied_bytes) == (4 * 4096, 4096)


def test_both_write_while_both_live():
    h = Hand([1, 1])
    t, v = h.thread(), h.vma(0, 512)
    h.write(t, v, 0)
    child = h.fork(t, mm=1)
    h.sleep(child, 1_000_000)
    h.write(t, v, 0)  # copied
    h.write(child, v, 0)  # the only user left: reused
    assert kinds(h) == {"zero_fill": 1, "cow": 1, "reuse": 1}


def test_a_folio_that_another_address_space_maps_is_copied():
    """Four pages, one folio; parent and child have both copied pages 0 and 1. Pages 2 and 3 are still shared."""
    h = Hand([1, 1])
    t, v = h.thread(), h.vma(0, 4)
    h.write(t, v, 0)
    child = h.fork(t, mm=1)
    h.write(child, v, 0, 1)
    h.sleep(child, 1_000_000)
    h.sleep(t, 10_000)
    h.write(t, v, 0, 1, 2)
    assert kinds(h, "+mthp-16k") == {"zero_fill": 1, "cow": 5}


def test_a_superpage_that_is_shared_no_more_is_made_writable_as_a_whole():
    h = Hand([1, 1])
    t, v = h.thread(), h.vma(0, 512)
    h.write(t, v, *range(512))
    h.join(t, h.fork(t, mm=1))
    h.write(t, v, *range(512))
    assert kinds(h, "+thp") == {"huge": 1, "reuse": 1}
    # smaller folios are mapped by entries of their own: each page faults
    assert kinds(h, "+mthp-64k") == {"zero_fill": 32, "reuse": 512}


def test_a_write_to_a_shared_superpage_copies_one_page():
    h = Hand([1, 1])
    t, v = h.thread(), h.vma(0, 512)
    h.write(t, v, 0)
    child = h.fork(t, mm=1)
    h.sleep(child, 1_000_000)
    h.write(t, v, 7, 8, 7)
    assert kinds(h, "+thp") == {"huge": 1, "cow": 2}


# -- unmap, mremap, populate


def test_unmapped_pages_fault_again():
    h = Hand([2])
    t, v = h.thread(), h.vma(0, 1024)
    h.write(t, v, *range(500, 520))
    h.unmap(t, 510, 515)  # across the regions
    h.write(t, v, *range(500, 520))
    outcome = simulate(h.workload(), small_machine(), linux())
    assert (outcome.faults, outcome.peak_bytes) == (25, 20 * 4096)


def test_a_block_stays_until_its_last_page_goes():
    h = Hand()
    t, v = h.thread(), h.vma(0, 512)
    h.write(t, v, 0)
    h.unmap(t, 0, 15)
    h.write(t, v, 16)  # 16 + 16: the first block still holds all its memory
    h.unmap(t, 15, 16)
    h.write(t, v, 32)
    outcome = simulate(h.workload(), small_machine(), linux("+mthp-64k"))
    assert (outcome.faults, outcome.peak_bytes) == (3, 32 * 4096)


def test_mremap_takes_the_pages_along():
    h = Hand([4])
    t, v = h.thread(), h.vma(0, 2048)
    h.write(t, v, *range(100, 110))
    h.move(t, 100, 110, 1500)
    h.write(t, v, *range(1500, 1510))
    assert kinds(h) == {"zero_fill": 10}
    h.write(t, v, 100)  # nothing there any more
    assert kinds(h) == {"zero_fill": 11}


def test_populate_maps_without_faults():
    h = Hand([2])
    t, v = h.thread(), h.vma(0, 600)
    h.map(t, v)
    h.write(t, v, *range(600))
    assert kinds(h, "+populate") == {}
    assert kinds(h, "") == {"zero_fill": 600}
    outcome = simulate(h.workload(), small_machine(), linux("+populate+thp"))
    assert (outcome.faults, outcome.peak_bytes, outcome.untouched_bytes) == (0, 600 * 4096, 0)


@pytest.mark.parametrize("flags", [ANON, WRITABLE, RW | SHARED, RW | SHARED | SHMEM, RW | 8, RW | 64])
def test_populate_leaves_mappings_alone_that_are_not_ordinary_memory(flags):
    h = Hand()
    t, v = h.thread(), h.vma(0, 64, flags)
    h.map(t, v)
    outcome = simulate(h.workload(), small_machine(), linux("+populate"))
    assert outcome.peak_bytes == 0


def test_the_programs_own_populating_is_done_under_any_policy():
    h = Hand()
    t, v = h.thread(), h.vma(0, 64)
    h.populate(t, v, 0, 32)
    h.write(t, v, *range(64))
    assert kinds(h) == {"zero_fill": 32}


# -- what it costs (one CPU)


def cost(h, diffs="", **changes):
    return simulate(h.workload(**changes), small_machine(), linux(diffs)).fault_ns


def test_costs_of_single_faults():
    assert cost(one(RW, W)) == FAULT_NS + REFILL_NS
    assert cost(one(RW, R)) == 500  # the trap
    assert cost(one(RW, R, W)) == 500 + FAULT_NS + REFILL_NS
    assert cost(one(0, R)) == 500 + 300 + 15 * 20  # trap, file_map, 15 more entries
    assert cost(one(0, R), "+fault-around-4") == 500 + 300
    assert cost(one(WRITABLE, W)) == 500 + 288 + 400 + REFILL_NS  # trap, alloc, copy
    assert cost(one(WRITABLE | SHARED, R, W)) == 500 + 600 + 500  # the second only a trap
    assert cost(one(RW | SHARED | SHMEM, W)) == 500 + 300 + 300  # trap, alloc, zeroing
    # 16 pages: order 4 has no per-CPU list, so the zone lock is held for one move of 12 ns; zeroing interpolates
    # between 300 ns for 4 KiB and 153,600 ns for 2 MiB, both 300 ns a page
    assert cost(one(RW, W), "+mthp-64k") == 500 + (100 << 4) + 300 * 16 + 12
    # order 9 has one, so two blocks come at once: one move again
    assert cost(one(RW, W), "+thp") == 500 + (100 << 9) + 153_600 + 12


def test_a_page_zeroed_ahead_costs_no_zeroing_in_the_fault_but_is_cold_for_its_user():
    workload = one(RW, W).workload(lines_touched=64)
    plain = simulate(workload, small_machine(), linux())
    ahead = simulate(workload, small_machine(), linux("+prezero-4k"))
    assert (ahead.zeroed_hits, ahead.zeroed_misses) == (1, 0)
    assert ahead.fault_ns == plain.fault_ns - 300
    assert ahead.user_ns - plain.user_ns == 64 * (5 - 1)


def test_costs_of_unmapping_and_of_the_end():
    h = one(RW, W)
    outcome = simulate(h.workload(), small_machine(), linux())
    assert outcome.wall_ns == FAULT_NS + REFILL_NS + 100
    assert outcome.system_ns == outcome.wall_ns
    # a block of 16 pages costs its own 100 << 4 in all
    outcome = simulate(h.workload(), small_machine(), linux("+mthp-64k"))
    assert outcome.wall_ns == outcome.fault_ns + (100 << 4) + 12  # and 12 ns for the zone lock
    outcome = simulate(one(0, R).workload(), small_machine(), linux())
    assert outcome.wall_ns == outcome.fault_ns + 16 * 100  # the file's pages are unmapped, too


# -- recordings


def test_a_recorded_page_that_faults_again_had_lost_its_mapping():
    h = one(RW, W, W, R, W)
    assert kinds(h) == {"zero_fill": 1}
    outcome = simulate(recorded(h.workload()), small_machine(), linux())
    # the third is a read of nothing: the zero page; then the write takes a page again
    assert outcome.faults == 4
    assert outcome.faults_by_kind["zero_page"] == 1


RECORDED_FAULTS = [  # what the recording kernel did, and each touch must be a fault again
    [W, W | PROTECTION, W | PROTECTION],  # mprotect, soft-dirty
    [R, W | PROTECTION],
    [R, R, W, W | PROTECTION],
    [W, PROTECTION],  # an access that was refused, whatever the reason
    [W | PROTECTION],
    [R | RACED, W | RACED],
    [W, W | RACED, W | RACED],
    [W, R | RACED, W, R | RACED],
]


@pytest.mark.parametrize(
    "flags", [RW, ANON, WRITABLE, 0, WRITABLE | SHARED, WRITABLE | SHARED | SHMEM, WRITABLE | SHMEM]
)
@pytest.mark.parametrize("touches", RECORDED_FAULTS)
def test_a_recording_replays_with_as_many_faults(flags, touches):
    h = one(flags, *touches)
    assert simulate(recorded(h.workload()), small_machine(), linux()).faults == len(touches)


@pytest.mark.parametrize("kind", [W, R, W | PROTECTION, W | RACED])
def test_a_page_that_the_program_populated_and_that_faulted_all_the_same(kind):
    """MADV_POPULATE_READ, or populated and then discarded in a way that was not seen."""
    h = Hand()
    t, v = h.thread(), h.vma(0, 64)
    h.populate(t, v, 0, 64)
    h.touch(t, v, 5, kind)
    assert simulate(recorded(h.workload()), small_machine(), linux()).faults == 1


def test_what_only_the_policy_populated_needs_no_fault():
    """The program populates page 0; blocks of 16 KiB bring 1 to 3 along, which the recording kernel did not have."""
    h = Hand()
    t, v = h.thread(), h.vma(0, 64)
    h.populate(t, v, 0, 1)
    h.write(t, v, 0, 1, 2, 3)
    workload = recorded(h.workload())
    assert simulate(workload, small_machine(), linux()).faults == 4
    assert simulate(workload, small_machine(), linux("+mthp-16k")).faults == 1


@pytest.mark.parametrize("kind", [R, R | RACED])
def test_a_page_that_the_recording_kernel_would_have_mapped_around(kind):
    h = Hand()
    t, v = h.thread(), h.vma(0, 64, 0)
    h.read(t, v, 5)
    h.touch(t, v, 6, kind)
    assert simulate(recorded(h.workload()), small_machine(), linux()).faults == 2


def test_recorded_gaps_give_back_what_the_kernel_did_in_them():
    """A fault in the recording cost trap 500 + alloc 300 + zeroing 300 + recording 900 = 2000 ns."""
    h = Hand()
    t, v = h.thread(), h.vma(0, 64)
    h.write(t, v, 0)
    h.write(t, v, 1, think_ns=5000)
    h.exit(t, think_ns=5000)
    outcome = simulate(recorded(h.workload()), small_machine(), linux())
    # faults anew, two gaps of 3000, and the end, which the last gap does not hold yet: 2 * 100 taken off it
    assert outcome.wall_ns == 2 * FAULT_NS + REFILL_NS + (5000 - 2000) + (5000 - 2000 - 200) + 200


def test_the_page_tables_hold_together_after_all_of_this():
    h = Hand([2, 2])
    t, v = h.thread(), h.vma(0, 1024)
    f = h.vma(0, 1024, WRITABLE)
    h.write(t, v, *range(0, 600, 7))
    h.read(t, f, 601, 700)
    child = h.fork(t, mm=1)
    h.write(child, v, 7, 14, 21)
    h.move(child, 0, 100, 900)
    h.unmap(t, 30, 40)
    h.exit(t)
    h.sleep(child, 10**9)
    for diffs in ("", "+thp", "+mthp-16k+mthp-64k"):
        world = replay(h.workload(), small_machine(), linux(diffs))
        assert check(world.pmap) == []
        assert not np.any(world.pmap.refs < 0)
