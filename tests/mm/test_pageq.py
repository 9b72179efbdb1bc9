"""Free pages by colour: who gets which, exactly as lists of pages would have it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pageq_twin import QueuesTwin

from firsttouch.errors import FirsttouchError
from firsttouch.mm.buddy import NO_PFN, UNZEROED, ZEROED, make_buddy
from firsttouch.mm.pageq import alloc_page, check, make_queues, put_page


def queues(nr_pages, nr_colours):
    b = make_buddy([nr_pages])
    return make_queues(b, nr_colours), b


def pages_of(q, b, colour):
    out, pfn = [], int(q.first[colour])
    while pfn != NO_PFN:
        out.append(pfn)
        pfn = int(b.next[pfn])
    return out


def test_memory_begins_unzeroed_on_the_queue_of_its_colour_in_order():
    q, b = queues(21, 4)
    assert [pages_of(q, b, c) for c in range(4)] == [[0, 4, 8, 12, 16, 20], [1, 5, 9, 13, 17], [2, 6, 10, 14, 18],
                                                     [3, 7, 11, 15, 19]]  # fmt: skip
    assert (b.free_pages[0], b.zero_pages[0]) == (21, 0)
    assert check(q, b) == []


def test_colours_without_a_page_are_empty():
    q, b = queues(3, 8)
    assert [pages_of(q, b, c) for c in range(8)] == [[0], [1], [2], [], [], [], [], []]
    assert check(q, b) == []


def test_who_wants_zeros_takes_the_tail_and_others_the_head():
    q, b = queues(12, 4)
    assert [alloc_page(q, b, 1, False)[0] for _ in range(2)] == [1, 5]
    for pfn in (1, 5):
        put_page(q, b, pfn, ZEROED)
    assert pages_of(q, b, 1) == [9, 1, 5]
    assert alloc_page(q, b, 1, True) == (5, ZEROED)
    assert alloc_page(q, b, 1, False) == (9, UNZEROED)
    assert alloc_page(q, b, 1, False) == (1, UNZEROED)  # its zeroing is wasted
    assert (b.free_pages[0], b.zero_pages[0]) == (9, 0)


def test_a_colour_without_pages_takes_from_the_heads_of_others_those_far_away_first():
    q, b = queues(8, 8)
    assert [alloc_page(q, b, 3, True)[0] for _ in range(9)] == [3, 7, 6, 0, 5, 1, 4, 2, NO_PFN]
    # its own; 3 + 4; 3 + 3, 3 - 3; 3 + 2, 3 - 2; 3 + 1, 3 - 1


def test_mask_and_strides_follow_the_number_of_colours():
    strides = {n: (queues(64, n)[0].object_stride, queues(64, n)[0].rover_stride) for n in (1, 8, 16, 32, 64, 256)}
    assert strides == {1: (1, 1), 8: (1, 1), 16: (5, 3), 32: (9, 5), 64: (13, 7), 256: (31, 23)}


@pytest.mark.parametrize("nr_colours", [0, 3, -1, 2048])
def test_other_numbers_of_colours_are_refused(nr_colours):
    with pytest.raises(FirsttouchError, match=f"{nr_colours} colours"):
        queues(64, nr_colours)


@settings(max_examples=60, deadline=None)
@given(
    nr_pages=st.integers(1, 70),
    nr_colours=st.sampled_from([1, 2, 8, 16]),
    steps=st.lists(st.tuples(st.sampled_from("aaAAfz"), st.integers(0, 10**6)), max_size=120),
)
def test_queues_are_those_of_the_twin(nr_pages, nr_colours, steps):
    q, b = queues(nr_pages, nr_colours)
    twin, taken = QueuesTwin(nr_pages, nr_colours), []
    for what, number in steps:
        if what in "aA":
            colour = number % nr_colours
            pfn, z = alloc_page(q, b, colour, what == "A")
            page, zeroed = twin.alloc(colour, what == "A")
            assert (pfn, z) == (NO_PFN if page is None else page, int(zeroed))
            if page is not None:
                taken.append(page)
        elif taken:
            page = taken.pop(number % len(taken))
            put_page(q, b, page, ZEROED if what == "z" else UNZEROED)
            twin.free(page)
            if what == "z":
                twin.queues[page % nr_colours].append(twin.queues[page % nr_colours].pop(0))
                twin.zeroed.add(page)
        assert (b.free_pages[0], b.zero_pages[0]) == (twin.nr_free, twin.nr_zeroed)
    assert [pages_of(q, b, c) for c in range(nr_colours)] == twin.queues
    assert check(q, b, taken) == []
