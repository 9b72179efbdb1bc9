"""Where the arena takes memory from and where it goes back to, by hand; runs without the JIT as well."""

import pytest

from firsttouch._packed import packed
from firsttouch.mm.buddy import NO_PFN, UNZEROED, ZEROED
from firsttouch.pool.arena import (
    check,
    free_all,
    land_populated,
    land_unfaulted,
    land_unpopulated,
    land_unzeroed,
    land_zeroed,
    release_pages,
    shrink_pages,
    take_cold,
    take_faulted,
    take_pages,
    take_unfaulted,
    wake_for,
    wants_scrub,
)
from firsttouch.pool.state import HOT, JOINED, LIVE_PAGES, PEAK_PAGES, UNFAULTED, make_arena


class Fixture:
    """One zone of 64 pages, or as many as asked, with calls in short."""

    def __init__(self, *zones: int) -> None:
        self.arena = make_arena(zones or (64,))
        self.a = packed(self.arena)
        free_all(self.a)
        self.well()

    def well(self, *flying: tuple[int, int]) -> None:
        assert check(self.arena, flying) == []

    def take(self, nr: int, zeros: bool = False, hot_since_ns: int = 0, zone: int = 0) -> tuple[int, int]:
        taken = take_pages(self.a, zone, nr, zeros, hot_since_ns)
        self.well()
        return taken

    def release(self, pfn: int, now_ns: int = 100, zone: int = 0) -> int:
        order = release_pages(self.a, zone, pfn, now_ns)
        self.well()
        return order

    def populate(self, max_order: int) -> tuple[int, int]:
        pfn, k = take_unfaulted(self.a, 0, max_order)
        land_populated(self.a, 0, pfn, k)
        self.well()
        return pfn, k

    def free(self) -> tuple[int, int, int]:
        """Pages free and unzeroed, zeroed, unfaulted."""
        zeroed = int(self.arena.faulted.zero_pages.sum())
        return int(self.arena.faulted.free_pages.sum()) - zeroed, zeroed, int(self.arena.unfaulted.free_pages.sum())


def test_all_is_unfaulted_at_first_and_the_rest_of_a_power_of_two_goes_back() -> None:
    f = Fixture()
    assert f.free() == (0, 0, 64)
    assert f.take(5) == (0, UNFAULTED)
    assert f.free() == (0, 0, 59)
    assert f.arena.counts[0, LIVE_PAGES] == 5


def test_what_was_freed_is_unzeroed_and_goes_out_first_unless_zeros_are_asked_for() -> None:
    f = Fixture()
    f.populate(4)  # pages 0 to 15
    assert f.take(16) == (0, ZEROED)
    assert f.release(0) == 4
    f.populate(4)  # pages 16 to 31
    assert f.free() == (16, 16, 32)
    assert f.take(8) == (0, UNZEROED)
    assert f.take(8, zeros=True) == (16, ZEROED)
    assert f.take(16, zeros=True) == (32, UNFAULTED)  # eight pages of each state are left, and do not touch


def test_zeros_come_from_memory_freed_moments_ago_where_that_is_wanted() -> None:
    f = Fixture()
    f.populate(4)
    f.populate(4)
    pfn, _ = f.take(16)
    f.release(pfn, now_ns=100)
    assert f.take(4, zeros=True, hot_since_ns=101) == (16 - pfn, ZEROED)  # freed too long ago
    assert f.take(4, zeros=True, hot_since_ns=100) == (pfn, HOT)
    assert f.take(4, zeros=True, hot_since_ns=100) == (pfn + 4, HOT)  # the rest of a block is as old as the block


def test_a_run_that_was_cut_and_merged_comes_back_as_it_was() -> None:
    f = Fixture()
    for _ in range(4):
        f.populate(4)
    pfn, _ = f.take(12, zeros=True)  # the last four pages of its sixteen stay zeroed: freed, it is cut in 8 and 4
    f.release(pfn, now_ns=100)
    assert f.take(12, zeros=True, hot_since_ns=101)[1] == ZEROED
    assert f.take(12, zeros=True, hot_since_ns=100) == (pfn, HOT)
    f.release(pfn, now_ns=200)
    assert f.take(12) == (pfn, UNZEROED)
    both = [f.take(2)[0] for _ in range(2)]
    for each in both:
        f.release(each, now_ns=300)  # they merge
    assert f.take(2, zeros=True, hot_since_ns=300) == (both[1], HOT)  # the one freed last, from the middle
    assert f.take(2, zeros=True, hot_since_ns=300) == (both[0], HOT)


def test_a_run_comes_back_only_if_all_of_it_is_free_and_unzeroed() -> None:
    f = Fixture(16)
    f.populate(4)
    assert f.take(12) == (0, ZEROED)
    f.release(0, now_ns=100)  # in 8 and 4
    pfn, k = take_cold(f.a, 0, 3, 3, 101)
    land_zeroed(f.a, 0, pfn, k)
    assert f.take(12, zeros=True, hot_since_ns=100) == (0, JOINED)  # its first 8 pages hold zeros by now
    f.release(0, now_ns=200)
    assert f.take(4) == (8, UNZEROED)  # a part of it is live
    assert f.take(12) == (NO_PFN, 0)
    assert f.take(8) == (0, UNZEROED)


def test_neighbours_of_all_states_are_joined_when_no_block_is_large_enough() -> None:
    f = Fixture(16)
    f.populate(2)  # 0 to 3 zeroed
    f.take(4, zeros=True)
    f.populate(2)  # 4 to 7 zeroed
    f.release(0)  # 0 to 3 unzeroed; 8 to 15 unfaulted
    assert f.free() == (4, 4, 8)
    assert f.take(14, zeros=True) == (0, JOINED)
    pieces = [(int(f.arena.faulted.next[pfn]), int(f.arena.faulted.prev[pfn])) for pfn in (0, 4, 8)]
    assert pieces == [(4, UNZEROED), (4, ZEROED), (6, ZEROED)]
    assert f.free() == (0, 0, 2)
    assert f.take(3) == (NO_PFN, 0)
    f.release(0)
    assert f.free() == (14, 0, 2)


def test_live_memory_is_never_joined() -> None:
    f = Fixture(16)
    f.take(16)
    for pfn, nr in ((0, 4), (4, 4), (8, 4), (12, 4)):
        f.arena.nr_pages[pfn] = nr  # the owner of one block as the owner of four
    f.release(0)
    f.release(8)
    assert f.take(8) == (NO_PFN, 0)
    f.release(4)
    assert f.take(12) == (0, JOINED)


def test_memory_is_joined_rather_than_faulted_in() -> None:
    f = Fixture(64)
    f.populate(3)  # 0 to 7
    f.populate(3)  # 8 to 15
    f.take(4)
    f.release(0)  # 0 to 3 unzeroed, 4 to 15 zeroed, the rest unfaulted
    assert f.take(12) == (0, JOINED)
    assert f.free() == (0, 4, 48)


def test_shrinking_gives_the_end_back() -> None:
    f = Fixture()
    f.take(10)
    shrink_pages(f.a, 0, 0, 3, 100)
    f.well()
    assert f.free() == (7, 0, 54)
    assert f.arena.counts[0, LIVE_PAGES] == 3
    assert f.arena.counts[0, PEAK_PAGES] == 10


def test_the_scrubber_takes_the_highest_order_that_is_cold_and_no_more_than_it_may_hold() -> None:
    f = Fixture()
    f.take(32)
    f.take(4)
    f.release(0, now_ns=100)
    f.release(32, now_ns=50)
    assert take_cold(f.a, 0, 0, 3, 50) == (NO_PFN, 0)
    assert take_cold(f.a, 0, 0, 3, 51) == (32, 2)  # the larger one is too young
    f.well((32, 2))
    land_zeroed(f.a, 0, 32, 2)
    f.well()
    assert take_cold(f.a, 0, 3, 3, 101) == (0, 3)
    f.well((0, 3))
    land_zeroed(f.a, 0, 0, 3)
    f.well()
    assert f.free() == (24, 12, 28)
    assert take_cold(f.a, 0, 6, 6, 101) == (NO_PFN, 0)  # not down to order 5


def test_what_the_scrubber_did_not_finish_is_unzeroed() -> None:
    f = Fixture()
    f.take(8)
    f.release(0)
    pfn, k = take_cold(f.a, 0, 0, 5, 2**62)
    land_unzeroed(f.a, 0, pfn, k)
    f.well()
    pfn, k = take_unfaulted(f.a, 0, 3)
    land_unpopulated(f.a, 0, pfn, k)
    f.well()
    assert f.free() == (8, 0, 56)


def test_trimming_takes_unzeroed_memory_first_and_leaves_room() -> None:
    f = Fixture()
    f.populate(4)
    f.populate(4)
    pfn, _ = f.take(16)
    f.release(pfn)
    assert take_faulted(f.a, 0, 5, 5) == (NO_PFN, 0)  # none as large as that
    assert take_faulted(f.a, 0, 3, 3) == (pfn, 3)
    land_unfaulted(f.a, 0, pfn, 3)
    f.well()
    assert f.free() == (8, 16, 40)


@pytest.mark.parametrize("start_order, woken", [(2, True), (4, True), (5, False)])
def test_a_free_that_merges_to_the_start_order_wakes_once(start_order: int, woken: bool) -> None:
    f = Fixture()
    f.populate(4)
    f.take(16)
    assert not wants_scrub(f.a, 0, 0)
    order = f.release(0)
    assert order == 4
    assert wake_for(f.a, 0, start_order, order) == woken
    assert not wake_for(f.a, 0, start_order, order)
    assert wants_scrub(f.a, 0, 4) and not wants_scrub(f.a, 0, 5)


def test_zones_keep_their_memory_apart() -> None:
    f = Fixture(24, 40)
    assert f.take(20, zone=0) == (0, JOINED)  # 16 and 8
    assert f.take(8, zone=0) == (NO_PFN, 0)
    assert f.take(16, zone=1) == (32, UNFAULTED)
    f.release(32, zone=1)
    assert f.take(30, zone=1) == (24, JOINED)  # 24 to 31 and 32 to 53
