"""The scrubber's decisions, case by case."""

import pytest

from firsttouch.mm.buddy import NO_PFN, UNZEROED, ZEROED, alloc_block, check, free_block, make_buddy
from firsttouch.mm.scrub import (
    count_scrubbed,
    done,
    give,
    is_ready,
    make_scrub,
    next_block,
    scrub_rules,
    take,
    wake_after_free,
)


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
    s, b = make_scrub(2), make_buddy([1, 1])
    rules = scrub_rules("scrubd", start=start_order, stop=0)
    assert wake_after_free(s, rules, b, 1, final_order, 0, 0) == woke
    assert s.awake.tolist() == [0, int(woke)]
    assert s.nr_wakeups.tolist() == [0, int(woke)]
    assert [is_ready(s, node, 0) for node in (0, 1)] == [False, woke]


def test_a_wake_up_while_awake_is_lost():
    s, b = make_scrub(1), make_buddy([8], max_order=3, zeroed=True)
    rules = scrub_rules("scrubd", start=3, stop=0, max_order=3)
    assert wake_after_free(s, rules, b, 0, 3, 0, 0)
    assert not wake_after_free(s, rules, b, 0, 3, 0, 0)
    assert s.nr_wakeups[0] == 1
    assert next_block(s, rules, b, 0, 0, 0) == (NO_PFN, 0, 0)  # nothing to do: it sleeps
    assert not is_ready(s, 0, 0)
    assert wake_after_free(s, rules, b, 0, 3, 0, 0)
    assert s.nr_wakeups[0] == 2


def test_a_block_in_flight_is_the_only_one_until_it_is_done():
    s, b = make_scrub(1), make_buddy([12], max_order=3)  # 0..7, 8..11
    rules = scrub_rules("scrubd", start=3, stop=0, max_order=3)
    assert wake_after_free(s, rules, b, 0, 3, 0, 0)
    assert next_block(s, rules, b, 0, 0, 0) == (0, 3, 0)
    assert not is_ready(s, 0, 0)
    assert check(b, [(0, 3)]) == []
    assert done(s, b, 0, 0, 3, 4096) == 3
    assert is_ready(s, 0, 0)
    assert (b.free_pages[0], b.zero_pages[0]) == (12, 8)
    assert (s.nr_blocks[0], s.zeroed_bytes[0]) == (1, 8 * 4096)


def test_it_takes_the_highest_order_first_and_stops_at_the_lowest():
    b = make_buddy([15], max_order=3)  # 0..7, 8..11, 12..13, 14
    assert take(b, 0, 1) == (0, 3)
    assert take(b, 0, 1) == (8, 2)
    assert take(b, 0, 1) == (12, 1)
    assert take(b, 0, 1) == (NO_PFN, 0)
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
    assert check(b) == []


def test_a_zone_has_its_own():
    b = make_buddy([4, 4], max_order=2)
    pfn, k = take(b, 1, 0)
    assert (pfn, k) == (4, 2)
    give(b, 1, pfn, k)
    assert b.zero_pages.tolist() == [0, 4]


def test_blocks_and_bytes_are_counted():
    s = make_scrub(2)
    count_scrubbed(s, 1, 8192)
    count_scrubbed(s, 1, 4096)
    assert s.nr_blocks.tolist() == [0, 2]
    assert s.zeroed_bytes.tolist() == [0, 12288]
