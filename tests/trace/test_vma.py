"""Mappings over time: cases by hand, and page for page against a dict under any sequence of calls."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firsttouch.trace.schema import MAP_PRIVATE, MAP_SHARED
from firsttouch.trace.vma import MADV_HUGEPAGE, MADV_NOHUGEPAGE, Vma, VmaMap

P = 4096
RW, R = 3, 1


def spans(m):
    return [(vma.start // P, vma.end // P, vma.map_id, vma.advice) for vma in m.vmas]


def lay(*rows):
    """Anonymous mappings (first page, page after the last, map_id)."""
    m = VmaMap()
    for first, last, number in rows:
        m.map(first * P, last * P, number, RW, MAP_PRIVATE, "//anon")
    return m


def test_a_mapping_replaces_what_it_covers():
    m = lay((0, 10, 1), (20, 30, 2))
    m.map(5 * P, 22 * P, 3, RW, MAP_PRIVATE, "//anon")
    assert spans(m) == [(0, 5, 1, 0), (5, 22, 3, 0), (22, 30, 2, 0)]


def test_a_hole_splits():
    m = lay((0, 10, 1))
    m.unmap(4 * P, 6 * P)
    assert spans(m) == [(0, 4, 1, 0), (6, 10, 1, 0)]
    m.unmap(0, 100 * P)
    assert spans(m) == []


def test_find():
    m = lay((2, 4, 1), (4, 5, 2), (7, 8, 3))
    addresses = np.array([0, 2 * P - 1, 2 * P, 4 * P - 1, 4 * P, 5 * P, 7 * P, 8 * P, (1 << 64) - 1], np.uint64)
    assert m.find(addresses).tolist() == [-1, -1, 0, 0, 1, -1, 2, -1, -1]
    assert VmaMap().find(addresses).tolist() == [-1] * 9
    assert m.find(addresses).dtype == np.int32


@pytest.mark.parametrize(
    ("to", "want"),
    [
        ((40, 50), [(0, 2, 1, 0), (40, 50, 1, 0)]),  # away
        ((40, 60), [(0, 2, 1, 0), (40, 60, 1, 0)]),  # and longer
        ((40, 41), [(0, 2, 1, 0), (40, 41, 1, 0)]),  # and shorter
        ((2, 20), [(0, 2, 1, 0), (2, 20, 1, 0)]),  # grown in place
        ((2, 5), [(0, 2, 1, 0), (2, 5, 1, 0)]),  # shrunk in place
    ],
)
def test_mremap(to, want):
    m = lay((0, 10, 1))
    m.move(2 * P, 10 * P, to[0] * P, to[1] * P)
    assert spans(m) == want


def test_mremap_of_nothing():
    m = lay((0, 10, 1))
    m.move(20 * P, 30 * P, 40 * P, 50 * P)
    assert spans(m) == [(0, 10, 1, 0)]


def test_advice_splits_and_joins_alike_neighbours():
    m = lay((0, 10, 1))
    m.advise(2 * P, 6 * P, MADV_HUGEPAGE)
    assert spans(m) == [(0, 2, 1, 0), (2, 6, 1, MADV_HUGEPAGE), (6, 10, 1, 0)]
    m.advise(6 * P, 10 * P, MADV_HUGEPAGE)
    assert spans(m) == [(0, 2, 1, 0), (2, 10, 1, MADV_HUGEPAGE)]
    m.advise(4 * P, 5 * P, MADV_NOHUGEPAGE)
    assert spans(m) == [(0, 2, 1, 0), (2, 4, 1, 14), (4, 5, 1, 15), (5, 10, 1, 14)]
    m.advise(0, 10 * P, 4)  # DONTNEED does not stick
    assert len(m.vmas) == 4


def test_files_are_not_joined():
    m = VmaMap()
    for first in (0, 5):
        m.map(first * P, (first + 5) * P, 1, RW, MAP_PRIVATE, "/lib/x.so")
    m.advise(0, 10 * P, MADV_HUGEPAGE)
    assert len(m.vmas) == 2


def test_advice_stays_when_a_mapping_grows():
    m = lay((0, 10, 1))
    m.advise(0, 10 * P, MADV_HUGEPAGE)
    m.map(0, 20 * P, 2, RW, MAP_PRIVATE, "//anon")
    assert spans(m) == [(0, 20, 2, MADV_HUGEPAGE)]
    m.map(0, 20 * P, 3, RW, MAP_PRIVATE, "/lib/x.so")  # another mapping in its place
    assert spans(m) == [(0, 20, 3, 0)]


def test_a_copy_goes_its_own_way():
    m = lay((0, 10, 1))
    m.find(np.array([0], np.uint64))
    child = m.copy()
    child.unmap(0, 5 * P)
    m.map(20 * P, 30 * P, 2, RW, MAP_PRIVATE, "//anon")
    assert spans(m) == [(0, 10, 1, 0), (20, 30, 2, 0)]
    assert spans(child) == [(5, 10, 1, 0)]
    assert child.find(np.array([0, 6 * P], np.uint64)).tolist() == [-1, 0]


@pytest.mark.parametrize(
    ("name", "flags", "is_file", "is_shmem"),
    [
        ("", MAP_PRIVATE, False, False),
        ("//anon", MAP_PRIVATE, False, False),
        ("[heap]", MAP_PRIVATE, False, False),
        ("/lib/x.so", MAP_PRIVATE, True, False),
        ("/lib/x.so", MAP_SHARED, True, False),
        ("//anon", MAP_SHARED, True, True),
        ("/dev/zero (deleted)", MAP_SHARED, True, True),
        ("/memfd:x (deleted)", MAP_SHARED, True, True),
        ("/SYSV00000000", MAP_SHARED, True, True),
        ("/dev/shm/x", MAP_SHARED, True, True),
    ],
)
def test_what_is_behind_a_mapping(name, flags, is_file, is_shmem):
    vma = Vma(0, P, 1, RW, flags, name)
    assert (vma.is_file, vma.is_shmem) == (is_file, is_shmem)


# -- page for page against a dict

PAGES = 40
RANGES = st.tuples(st.integers(0, PAGES), st.integers(1, 12)).map(lambda x: (x[0], x[0] + x[1]))
CALLS = st.one_of(
    st.tuples(st.just("map"), RANGES, st.sampled_from([RW, R]), st.sampled_from(["//anon", "/lib/x.so", "[heap]"])),
    st.tuples(st.just("unmap"), RANGES),
    st.tuples(st.just("move"), RANGES, RANGES),
    st.tuples(st.just("advise"), RANGES, st.sampled_from([MADV_HUGEPAGE, MADV_NOHUGEPAGE, 0, 1, 2, 4])),
)


class Twin:
    """Page -> what holds it."""

    def __init__(self):
        self.pages = {}

    def map(self, span, prot, name, number):
        covered = [self.pages[page] for page in range(*span) if page in self.pages]
        advice = next((old["advice"] for old in covered if old["advice"] and old["name"] == name), 0)
        access = next((old["access"] for old in covered if old["access"] and old["name"] == name), 0)
        for page in range(*span):
            self.pages[page] = {"prot": prot, "name": name, "advice": advice, "access": access, "map_id": number}

    def unmap(self, span):
        for page in range(*span):
            self.pages.pop(page, None)

    def move(self, span, to):
        first = next((page for page in range(*span) if page in self.pages), None)
        if first is None:
            return
        what = self.pages[first]
        if span[0] != to[0]:
            self.unmap(span)
        else:
            self.unmap((to[1], span[1]))
        for page in range(*to):
            self.pages[page] = dict(what)

    def advise(self, span, advice):
        for page in range(*span):
            if page in self.pages and advice in (MADV_HUGEPAGE, MADV_NOHUGEPAGE):
                self.pages[page]["advice"] = advice
            elif page in self.pages and advice in (0, 1, 2):
                self.pages[page]["access"] = advice


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(CALLS, max_size=15))
def test_page_for_page(calls):
    m, twin = VmaMap(), Twin()
    for number, (what, span, *rest) in enumerate(calls):
        start, end = span[0] * P, span[1] * P
        if what == "map":
            m.map(start, end, number, rest[0], MAP_PRIVATE, rest[1])
            twin.map(span, *rest, number)
        elif what == "unmap":
            m.unmap(start, end)
            twin.unmap(span)
        elif what == "move":
            m.move(start, end, rest[0][0] * P, rest[0][1] * P)
            twin.move(span, rest[0])
        else:
            m.advise(start, end, rest[0])
            twin.advise(span, rest[0])
        found = m.find(np.arange(PAGES + 30, dtype=np.uint64) * P + 17)
        for page, at in enumerate(found.tolist()):
            assert (at >= 0) == (page in twin.pages)
            if at >= 0:
                vma, want = m.vmas[at], twin.pages[page]
                assert (vma.prot, vma.name) == (want["prot"], want["name"])
                assert (vma.advice, vma.access) == (want["advice"], want["access"])
                if want["name"] == "/lib/x.so":  # anonymous neighbours are joined, and the first one's id stays
                    assert vma.map_id == want["map_id"]
        bounds = [(vma.start, vma.end) for vma in m.vmas]
        assert all(first < last for first, last in bounds)
        assert all(last <= first for (_, last), (first, _) in pairwise(bounds))


def test_a_neighbour_that_is_alike_but_apart_is_not_joined():
    m = lay((0, 4, 1), (5, 9, 2))
    m.advise(0, 9 * P, MADV_HUGEPAGE)
    assert spans(m) == [(0, 4, 1, 14), (5, 9, 2, 14)]
