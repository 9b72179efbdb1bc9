"""The scrubber's decisions, case by case."""

import pytest

from firsttouch.mm.buddy import NO_PFN, UNZEROED, ZEROED, alloc_block, check, free_block, make_buddy
from firsttouch.mm.scrub import count_scrubbed, give, make_scrub, sleep_scrub, take, wake_scrub, wants


@pytest.mark.parametrize(
    ("start_order", "final_order", "woke"),
    [
        (4, 3, False),
        (4, 4, True),  # at the start order, not above it
        (4, 9, True),
        (0, -1, False),  # nothing reached the buddy
        (0, 0, True),
        (11, 10, False),  # above the highest order: off
    ],
)
def test_a_free_that_merges_far_enough_wakes_it(start_order, final_order, woke):
    s = make_scrub(2)
    assert wake_scrub(s, 1, start_order, final_order) == woke
    assert s.awake.tolist() == [0, int(woke)]
    assert s.nr_wakeups.tolist() == [0, int(woke)]


def test_a_wake_up_while_awake_is_lost():
    s = make_scrub(1)
    assert wake_scrub(s, 0, 3, 5)
    assert not wake_scrub(s, 0, 3, 9)
    assert s.nr_wakeups[0] == 1
    sleep_scrub(s, 0)
    assert wake_scrub(s, 0, 3, 3)
    assert s.nr_wakeups[0] == 2


def test_it_takes_the_highest_order_first_and_stops_at_the_lowest():
    b = make_buddy([15], max_order=3)  # 0..7, 8..11, 12..13, 14
    assert wants(b, 0, 1)
    assert take(b, 0, 1) == (0, 3)
    assert take(b, 0, 1) == (8, 2)
    assert take(b, 0, 1) == (12, 1)
    assert not wants(b, 0, 1)
    assert take(b, 0, 1) == (NO_PFN, 0)
    assert wants(b, 0, 0)
    assert b.free_pages[0] == 15
    assert check(b, [(0, 3), (8, 2), (12, 1)]) == []


def test_it_takes_the_block_freed_last():
    b = make_buddy([12], max_order=2)
    pages = [alloc_block(b, 0, 2, UNZEROED) for _ in range(3)]
    for pfn in (pages[1], pages[2], pages[0]):
        free_block(b, 0, pfn, 2, UNZEROED)
    assert [take(b, 0, 2)[0] for _ in range(3)] == [0, 8, 4]


def test_what_it_gives_back_is_zeroed_and_merges():
    b = make_buddy([8], max_order=3)
    for page in range(8):
        assert alloc_block(b, 0, 0, UNZEROED) == page
    for page in (0, 1):
        free_block(b, 0, page, 0, ZEROED)
    for page in (2, 3):
        free_block(b, 0, page, 0, UNZEROED)
    assert take(b, 0, 0) == (2, 1)
    assert b.zero_pages[0] == 2
    assert give(b, 0, 2, 1) == 2  # with 0..1
    assert (b.free_pages[0], b.zero_pages[0]) == (4, 4)
    assert not wants(b, 0, 0)
    assert check(b) == []


def test_a_zone_has_its_own():
    b = make_buddy([4, 4], max_order=2)
    pfn, k = take(b, 1, 0)
    assert (pfn, k) == (4, 2)
    assert not wants(b, 1, 0)
    assert wants(b, 0, 0)
    give(b, 1, pfn, k)
    assert b.zero_pages.tolist() == [0, 4]


def test_blocks_and_bytes_are_counted():
    s = make_scrub(2)
    count_scrubbed(s, 1, 8192)
    count_scrubbed(s, 1, 4096)
    assert s.nr_blocks.tolist() == [0, 2]
    assert s.zeroed_bytes.tolist() == [0, 12288]
