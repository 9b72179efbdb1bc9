"""Buddy lists: cases by hand, and exact agreement with a naive twin."""

import numpy as np
import pytest
from buddy_twin import Twin
from hypothesis import given, settings
from hypothesis import strategies as st

from firsttouch.errors import FirsttouchError
from firsttouch.mm.buddy import (
    NO_PFN,
    NOT_HEAD,
    UNZEROED,
    ZEROED,
    alloc_block,
    check,
    free_block,
    make_buddy,
    put_back,
    take_head,
    zone_of,
)


def lists(b):
    """{(zone, z, k): [heads]} of the lists that are not empty, head first."""
    out = {}
    for where in np.ndindex(*b.first.shape):
        pfn = int(b.first[where])
        while pfn != NO_PFN:
            out.setdefault(where, []).append(pfn)
            pfn = int(b.next[pfn])
    return out


def test_all_memory_begins_in_the_largest_blocks_that_fit():
    b = make_buddy([5, 11])
    # zone 0 is pages 0..4: 4 + 1. Zone 1 is pages 5..15: page 5 is odd, 6 is even but not a multiple of 4, then 8..15.
    assert lists(b) == {(0, 0, 2): [0], (0, 0, 0): [4], (1, 0, 0): [5], (1, 0, 1): [6], (1, 0, 3): [8]}
    assert b.free_pages.tolist() == [5, 11]
    assert b.zero_pages.tolist() == [0, 0]
    assert check(b) == []


def test_each_list_begins_in_ascending_order():
    b = make_buddy([14], max_order=2)
    assert lists(b) == {(0, 0, 2): [0, 4, 8], (0, 0, 1): [12]}


def test_memory_may_begin_zeroed():
    b = make_buddy([6], zeroed=True)
    assert lists(b) == {(0, 1, 2): [0], (0, 1, 1): [4]}
    assert b.zero_pages.tolist() == [6]
    assert alloc_block(b, 0, 0, UNZEROED) == NO_PFN
    assert check(b) == []


def test_split_and_merge():
    b = make_buddy([16], max_order=4)
    # 16 pages split in halves: 0 is handed out; 1, 2..3, 4..7 and 8..15 stay
    assert alloc_block(b, 0, 0, UNZEROED) == 0
    assert lists(b) == {(0, 0, 0): [1], (0, 0, 1): [2], (0, 0, 2): [4], (0, 0, 3): [8]}
    assert alloc_block(b, 0, 1, UNZEROED) == 2
    assert alloc_block(b, 0, 2, UNZEROED) == 4
    assert free_block(b, 0, 0, 0, UNZEROED) == 1  # with page 1; 2..3 are in use
    assert free_block(b, 0, 2, 1, UNZEROED) == 2  # 0..3; 4..7 are in use
    assert free_block(b, 0, 4, 2, UNZEROED) == 4  # 0..7, and with 8..15 all of it
    assert lists(b) == {(0, 0, 4): [0]}


def test_blocks_of_the_highest_order_do_not_merge():
    b = make_buddy([8], max_order=2)
    assert alloc_block(b, 0, 2, UNZEROED) == 0
    assert free_block(b, 0, 0, 2, UNZEROED) == 2
    assert lists(b) == {(0, 0, 2): [0, 4]}


def test_buddies_of_different_zero_state_do_not_merge():
    b = make_buddy([4], max_order=2)
    for page in range(4):
        assert alloc_block(b, 0, 0, UNZEROED) == page
    assert free_block(b, 0, 0, 0, UNZEROED) == 0
    assert free_block(b, 0, 1, 0, ZEROED) == 0
    assert free_block(b, 0, 2, 0, ZEROED) == 0
    assert free_block(b, 0, 3, 0, ZEROED) == 1
    assert lists(b) == {(0, 0, 0): [0], (0, 1, 0): [1], (0, 1, 1): [2]}
    assert (b.free_pages[0], b.zero_pages[0]) == (4, 3)


def test_buddies_in_different_zones_do_not_merge():
    b = make_buddy([1, 1], max_order=1)  # pages 0 and 1 are buddies
    for zone in (0, 1):
        assert alloc_block(b, zone, 0, UNZEROED) == zone
        assert free_block(b, zone, zone, 0, UNZEROED) == 0  # and the other one is free
    assert lists(b) == {(0, 0, 0): [0], (1, 0, 0): [1]}


def test_class_comes_before_order():
    b = make_buddy([12], max_order=3)  # 0..7 and 8..11
    assert alloc_block(b, 0, 3, UNZEROED) == 0
    assert free_block(b, 0, 0, 3, ZEROED) == 3
    # a zeroed page splits the larger, zeroed block, and keeps the state of what remains
    assert alloc_block(b, 0, 0, ZEROED) == 0
    assert lists(b) == {(0, 0, 2): [8], (0, 1, 0): [1], (0, 1, 1): [2], (0, 1, 2): [4]}
    assert b.zero_pages[0] == 7
    assert alloc_block(b, 0, 0, UNZEROED) == 8


def test_last_freed_is_first_out():
    b = make_buddy([8], max_order=3)
    for page in range(8):
        assert alloc_block(b, 0, 0, UNZEROED) == page
    for page in (4, 0, 2):
        free_block(b, 0, page, 0, UNZEROED)
    assert [alloc_block(b, 0, 0, UNZEROED) for _ in range(3)] == [2, 0, 4]


def test_a_block_in_flight_is_on_no_list_and_still_free():
    b = make_buddy([8], max_order=2)
    assert take_head(b, 0, 2, UNZEROED) == 0
    assert take_head(b, 0, 1, UNZEROED) == NO_PFN  # exactly that order
    assert (b.free_pages[0], b.zero_pages[0]) == (8, 0)
    assert b.order[0] == NOT_HEAD
    assert check(b, [(0, 2)]) == []
    assert put_back(b, 0, 0, 2, ZEROED) == 2
    assert (b.free_pages[0], b.zero_pages[0]) == (8, 4)
    assert take_head(b, 0, 2, ZEROED) == 0
    assert (b.free_pages[0], b.zero_pages[0]) == (8, 0)


def test_zone_of():
    b = make_buddy([3, 4, 1])
    assert [zone_of(b, pfn) for pfn in range(8)] == [0, 0, 0, 1, 1, 1, 1, 2]


def test_check_names_the_invariant_that_is_broken():
    def broken(change):
        b = make_buddy([16, 16], max_order=3)
        alloc_block(b, 0, 0, UNZEROED)  # leaves heads 1, 2, 4, 8 in zone 0
        assert check(b) == []
        change(b)
        return {line[:2] for line in check(b)}

    def misplace(b):
        b.first[0, UNZEROED, 1] = 3

    def double(b):
        b.first[0, UNZEROED, 0], b.prev[2], b.order[2] = 2, NO_PFN, 1

    def unmerged(b):
        b.order[0] = 1
        b.next[1], b.prev[0], b.next[0] = 0, 1, NO_PFN
        b.nr_free[0, UNZEROED, 0] += 1
        b.free_pages[0] += 1

    assert "I1" in broken(misplace)
    assert "I2" in broken(double)
    assert broken(unmerged) == {"I3"}
    assert broken(lambda b: b.nr_free.__setitem__((1, UNZEROED, 3), 1)) >= {"I4"}
    assert broken(lambda b: b.prev.__setitem__(24, 4)) == {"I4"}
    assert broken(lambda b: b.zeroed.__setitem__(8, ZEROED)) == {"I5"}
    assert broken(lambda b: b.order.__setitem__(0, 1)) == {"I6"}
    assert broken(lambda b: b.free_pages.__setitem__(0, 16)) == {"I7"}
    assert broken(lambda b: b.zero_pages.__setitem__(0, 1)) == {"I7"}


@pytest.mark.parametrize("zones", [[], [0], [4, 0], [-3], [2**31]])
def test_sizes_that_cannot_be(zones):
    with pytest.raises(FirsttouchError):
        make_buddy(zones)


@pytest.mark.parametrize("max_order", [-1, 31])
def test_orders_that_cannot_be(max_order):
    with pytest.raises(FirsttouchError):
        make_buddy([4], max_order=max_order)


zone_pages = st.lists(st.integers(1, 70), min_size=1, max_size=3)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), st.integers(0, 2), st.integers(0, 4), st.integers(0, 1)),
        st.tuples(st.just("free"), st.integers(0, 1000), st.integers(0, 3), st.integers(0, 1)),
    ),
    max_size=60,
)


def agree(zones, max_order, zeroed, trace):
    b, twin = make_buddy(zones, max_order, zeroed), Twin(zones, max_order, int(zeroed))
    held = []
    for what, x, y, z in trace:
        if what == "alloc":
            zone, k = x % len(zones), min(y, max_order)
            pfn = alloc_block(b, zone, k, z)
            expected = twin.alloc(zone, k, z)
            assert pfn == (NO_PFN if expected is None else expected)
            if pfn != NO_PFN:
                held.append((zone, pfn, k))
        elif held:
            zone, pfn, k = held.pop(x % len(held))
            while y and k:  # give back only a part
                y, k = y - 1, k - 1
                held.append((zone, pfn + 2**k, k))
            assert free_block(b, zone, pfn, k, z) == twin.free(zone, pfn, k, z)
        assert lists(b) == {where: pages for where, pages in twin.lists.items() if pages}


@settings(max_examples=80, deadline=None, derandomize=True)
@given(zone_pages, st.integers(0, 5), st.booleans(), steps)
def test_same_pages_as_the_naive_twin(zones, max_order, zeroed, trace):
    agree(zones, max_order, zeroed, trace)


@pytest.mark.slow
@settings(max_examples=3000, deadline=None)
@given(zone_pages, st.integers(0, 5), st.booleans(), steps)
def test_same_pages_as_the_naive_twin_deep(zones, max_order, zeroed, trace):
    agree(zones, max_order, zeroed, trace)
