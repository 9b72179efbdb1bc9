"""Per-CPU lists of Linux 2.6.10: integers by hand, exact agreement with a naive twin, and contents under any use."""

import numpy as np
import pytest
from hotcold_twin import HotColdTwin
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from test_buddy_machine import GARBAGE, buddy_pages

from firsttouch.errors import FirsttouchError
from firsttouch.mm import buddy
from firsttouch.mm.buddy import NO_PFN, UNZEROED, ZEROED, alloc_block, free_block, make_buddy
from firsttouch.mm.hotcold import (
    HOT_LIST,
    ZEROED_LIST,
    alloc_page,
    count_column,
    free_page,
    give_just_zeroed,
    high_pages,
    hot_cold_batch_pages,
    low_pages,
    take_just_freed,
)
from firsttouch.mm.pcplist import COLD_LIST, JUST_FREED, NO_ORDER, NR_COLD, NR_HOT, NR_PAGES, NR_ZEROED
from firsttouch.mm.percpu import (
    BATCH,
    LINUX_2_6_10,
    check,
    list_of,
    make_percpu,
    order_of_list,
    pages_on_lists,
    pcp_alloc,
    pcp_drain,
    pcp_free,
)
from firsttouch.mm.scrub import done, is_ready, make_scrub, next_block, scrub_rules, write_start

MIB_PAGES = 256


def lists(b, nr_cpus=1, batch_pages=4, has_zeroed=True, strands=True):
    return make_percpu(b, nr_cpus, rules=LINUX_2_6_10, batch_pages=batch_pages, has_zeroed=has_zeroed, strands=strands)


@pytest.mark.parametrize(
    ("zone_pages", "page_bytes", "batch"),
    [
        (256 * MIB_PAGES, 4096, 16),  # 65536 / 1024 = 64; 256 KiB is 64 pages; 64 / 4
        (8192 * MIB_PAGES, 4096, 16),  # 2048, but at most 64
        (128 * MIB_PAGES, 4096, 8),  # 32; 32 / 4
        (16 * MIB_PAGES, 4096, 1),  # 4; 4 / 4
        (8 * MIB_PAGES, 4096, 1),  # 2; 0, but at least 1
        (23 * MIB_PAGES, 4096, 1),  # 5; 5 / 4
        (1 << 18, 16384, 4),  # 4 GiB of 16 KiB pages: 256, but 256 KiB is 16 pages; 16 / 4
        (1 << 14, 16384, 4),  # 256 MiB of them: 16; 16 / 4
        (1 << 16, 65536, 1),  # 256 KiB is 4 pages
    ],
)
def test_batch_by_zone_size(zone_pages, page_bytes, batch):
    assert hot_cold_batch_pages(zone_pages, page_bytes) == batch
    if zone_pages <= 1 << 18:
        p = make_percpu(make_buddy([zone_pages]), 1, rules=LINUX_2_6_10, has_zeroed=False, page_bytes=page_bytes)
        assert p.limit[0, BATCH] == batch


def test_water_marks():
    assert [(low_pages(16, i), high_pages(16, i)) for i in (HOT_LIST, COLD_LIST, ZEROED_LIST)] == [
        (32, 96),
        (0, 32),
        (0, 32),
    ]


def test_lists_and_their_columns():
    assert (list_of(0, UNZEROED), list_of(0, ZEROED)) == (HOT_LIST, ZEROED_LIST)
    assert [order_of_list(i) for i in (HOT_LIST, ZEROED_LIST, COLD_LIST)] == [0, 0, 0]
    assert [count_column(i) for i in (HOT_LIST, ZEROED_LIST, COLD_LIST)] == [NR_HOT, NR_ZEROED, NR_COLD]


def test_unknown_rules_are_named():
    with pytest.raises(FirsttouchError, match=r"'linux-2\.4'"):
        make_percpu(make_buddy([16]), 1, rules="linux-2.4", has_zeroed=False)


def test_the_hot_list_hovers_between_two_and_three_batches():
    b = make_buddy([256])
    p = lists(b)
    moved, counts = [], []
    for _ in range(20):
        moved.append(pcp_alloc(p, b, 0, 0, 0, False)[2])
        counts.append(int(p.state[0, 0, NR_HOT]))
    # 0, 3, 6 and 9 are at most 8 before the first three refills: 4 come each time, one goes, until 9 are more than 8.
    # 0+4-1 = 3, 3+4-1 = 6, 6+4-1 = 9, 9-1 = 8, then 8+4-1 = 11, 10, 9, 8 again and again: a refill every 4 pages.
    assert counts == [3, 6, 9, 8, *[11, 10, 9, 8] * 4]
    assert moved == [4, 4, 4, 0, *[4, 0, 0, 0] * 4]


def test_a_full_hot_list_spills_its_tail_before_a_free():
    b = make_buddy([256], max_order=4)
    p = lists(b)
    pages = [alloc_block(b, 0, 0, UNZEROED) for _ in range(33)]
    freed = [pcp_free(p, b, 0, 0, pfn, 0, UNZEROED) for pfn in pages]
    # High is 24: the 25th free spills 0..3 (order 2), the 29th 4..7 (with those order 3), the 33rd 8..11 (order 2).
    assert [(n, *what) for n, what in enumerate(freed, 1) if what[0]] == [(25, 4, 2), (29, 4, 3), (33, 4, 2)]
    assert p.state[0, 0, NR_HOT] == 21
    assert [pcp_alloc(p, b, 0, 0, 0, False)[0] for _ in range(3)] == [32, 31, 30]


def test_a_refill_goes_behind_what_was_freed():
    b = make_buddy([256])
    p = lists(b)
    own = alloc_block(b, 0, 0, UNZEROED)
    pcp_free(p, b, 0, 0, own, 0, UNZEROED)
    assert [pcp_alloc(p, b, 0, 0, 0, False) for _ in range(3)] == [(0, 0, 4), (1, 0, 4), (2, 0, 4)]


def test_the_cold_list_is_refilled_when_empty_and_spills_at_two_batches():
    b = make_buddy([256])
    p = lists(b)
    got = [alloc_page(p, b, 0, 0, COLD_LIST) for _ in range(6)]
    assert [what[2] for what in got] == [4, 0, 0, 0, 4, 0]
    spilled = [free_page(p, b, 0, 0, pfn, COLD_LIST)[0] for pfn, _, _ in got] + [
        free_page(p, b, 0, 0, alloc_block(b, 0, 0, UNZEROED), COLD_LIST)[0]
    ]
    # 2 are left; the 6 that come back make it 8; the next free spills a batch first.
    assert spilled == [0, 0, 0, 0, 0, 0, 4]
    assert (p.state[0, 0, NR_COLD], p.state[0, 0, NR_HOT], p.state[0, 0, NR_PAGES]) == (5, 0, 5)
    assert check(p, b) == []


def test_larger_orders_always_go_to_the_zone():
    b = make_buddy([64], max_order=5)
    p = lists(b)
    for k, pfn in ((1, 0), (3, 8), (5, 32)):
        assert pcp_alloc(p, b, 0, 0, k, False) == (pfn, UNZEROED, 1 << k)
        assert pages_on_lists(p) == 0
    assert pcp_free(p, b, 0, 0, 0, 1, UNZEROED) == (2, 3)  # 2..7 are free, 8..15 are not
    assert pcp_free(p, b, 0, 0, 32, 5, ZEROED) == (32, 5)  # nothing is freed as zeroed
    assert b.zero_pages[0] == 0


def half_zeroed(pages=64, k=5):
    """A zone whose first 2**k pages are zeroed."""
    b = make_buddy([pages], max_order=k)
    free_block(b, 0, alloc_block(b, 0, k, UNZEROED), k, ZEROED)
    return b


def test_class_goes_before_order():
    b = half_zeroed()
    single = alloc_block(b, 0, 0, UNZEROED)  # leaves unzeroed blocks of orders 0 to 4
    assert single == 32
    p = lists(b, batch_pages=1)
    assert pcp_alloc(p, b, 0, 0, 0, True) == (0, ZEROED, 1)  # splits 0..31 though 33 is free
    assert pcp_alloc(p, b, 0, 0, 1, False) == (34, UNZEROED, 2)  # though 2..3 are a zeroed block of order 1
    # 48..63 is split though the zeroed 16..31 is whole; order 3 of the unzeroed, 40..47, goes first.
    assert [pcp_alloc(p, b, 0, 0, 3, False)[0] for _ in range(3)] == [40, 48, 56]
    # Nothing unzeroed of that order: a zeroed block, whose zeros are not told.
    assert pcp_alloc(p, b, 0, 0, 3, False) == (8, UNZEROED, 8)


def test_a_zeroed_total_need_not_hold_a_zeroed_block():
    b = make_buddy([16], max_order=3)
    pages = [alloc_block(b, 0, 0, UNZEROED) for _ in range(8)]
    for pfn in pages[::2]:
        free_block(b, 0, pfn, 0, ZEROED)
    p = lists(b)
    assert b.zero_pages[0] == 4
    assert pcp_alloc(p, b, 0, 0, 2, True) == (8, UNZEROED, 4)  # 4 zeroed pages, no block of 4
    assert pcp_alloc(p, b, 0, 0, 0, True)[:2] == (6, ZEROED)  # the page freed last


def test_zeroed_pages_on_the_list_are_stranded_while_the_zone_has_none():
    b = make_buddy([16], max_order=3)
    free_block(b, 0, alloc_block(b, 0, 2, UNZEROED), 2, ZEROED)  # 0..3
    p = lists(b)
    assert pcp_alloc(p, b, 0, 0, 0, True) == (0, ZEROED, 4)
    assert (b.zero_pages[0], p.state[0, 0, NR_ZEROED]) == (0, 3)
    assert pcp_alloc(p, b, 0, 0, 0, True) == (4, UNZEROED, 4)
    assert p.state[0, 0, NR_ZEROED] == 3
    free_block(b, 0, 0, 0, ZEROED)  # the scrubber made one more
    assert pcp_alloc(p, b, 0, 0, 0, True) == (1, ZEROED, 0)  # the list is not empty, so nothing is moved


def test_when_nothing_unzeroed_is_left_zeroed_pages_come_one_by_one_and_count_as_unzeroed():
    b = make_buddy([8], max_order=3, zeroed=True)
    p = lists(b)
    assert [pcp_alloc(p, b, 0, 0, 0, False) for _ in range(2)] == [(0, UNZEROED, 1), (1, UNZEROED, 1)]
    assert pcp_alloc(p, b, 0, 0, 0, True) == (2, ZEROED, 4)
    assert pcp_alloc(p, b, 0, 0, 1, True) == (6, ZEROED, 2)
    # The zone is empty. 3..5 are on the CPU's zeroed list, and out of reach: there is no memory.
    assert pcp_alloc(p, b, 0, 0, 0, False) == (NO_PFN, UNZEROED, 0)
    assert pcp_alloc(p, b, 0, 0, 0, True) == (NO_PFN, UNZEROED, 0)


def test_a_kernel_without_zeroed_lists_has_none():
    b = half_zeroed()
    p = lists(b, has_zeroed=False)
    assert pcp_alloc(p, b, 0, 0, 0, True) == (32, UNZEROED, 4)
    pcp_free(p, b, 0, 0, 32, 0, ZEROED)
    assert take_just_freed(p, b, 0, 0) == NO_PFN
    assert p.state[0, 0, NR_ZEROED] == 0


def test_a_drain_forgets_what_was_zeroed():
    b = half_zeroed(64)
    p = lists(b, nr_cpus=2)
    for cpu in (0, 1):
        assert pcp_alloc(p, b, cpu, 0, 0, True)[1] == ZEROED
    assert alloc_page(p, b, 0, 0, COLD_LIST) == (32, UNZEROED, 4)
    assert b.zero_pages[0] == 24
    # Back go 33..35 and 1..3: order 1 twice. 0, 4 and 32 are held, CPU 1 keeps 5..7: 58 are left.
    assert pcp_drain(p, b, 0) == (6, 1)
    assert (b.free_pages[0], b.zero_pages[0]) == (58, 24)
    assert p.state[1, 0, NR_ZEROED] == 3
    assert check(p, b) == []


def test_only_just_freed_pages_are_zeroed_when_idle():
    b = make_buddy([64], max_order=5)
    p = lists(b, strands=False)
    held = [pcp_alloc(p, b, 0, 0, 0, False)[0] for _ in range(3)]
    assert held == [0, 1, 2]
    assert p.state[0, 0, NR_HOT] == 9
    assert take_just_freed(p, b, 0, 0) == NO_PFN  # the nine were refilled
    for pfn in (1, 2):
        pcp_free(p, b, 0, 0, pfn, 0, UNZEROED)
    assert take_just_freed(p, b, 0, 0) == 2  # the one freed last
    assert give_just_zeroed(p, b, 0, 0, 2) == 0
    assert take_just_freed(p, b, 0, 0) == 1
    assert take_just_freed(p, b, 0, 0) == NO_PFN
    assert give_just_zeroed(p, b, 0, 0, 1) == 0
    assert b.zero_pages[0] == 0  # and yet within reach:
    assert [pcp_alloc(p, b, 0, 0, 0, True) for _ in range(2)] == [(1, ZEROED, 0), (2, ZEROED, 0)]
    assert pcp_alloc(p, b, 0, 0, 0, True) == (3, UNZEROED, 0)


def test_zeroed_just_freed_pages_spill_as_zeroed():
    b = make_buddy([64], max_order=5)
    p = lists(b, batch_pages=2, strands=False)
    for pfn in [alloc_block(b, 0, 0, UNZEROED) for _ in range(5)]:
        pcp_free(p, b, 0, 0, pfn, 0, UNZEROED)
    spilled = [give_just_zeroed(p, b, 0, 0, take_just_freed(p, b, 0, 0)) for _ in range(5)]
    assert spilled == [0, 0, 0, 0, 2]  # high is 4
    assert b.zero_pages[0] == 2


def test_what_was_just_freed_is_forgotten_when_it_is_used_or_spilled():
    b = make_buddy([64], max_order=5)
    p = lists(b, batch_pages=1, strands=False)
    for pfn in [alloc_block(b, 0, 0, UNZEROED) for _ in range(7)]:
        pcp_free(p, b, 0, 0, pfn, 0, UNZEROED)
    assert (p.state[0, 0, NR_HOT], p.state[0, 0, JUST_FREED]) == (6, 6)  # page 0 has spilled
    for _ in range(4):
        pcp_alloc(p, b, 0, 0, 0, False)
    assert p.state[0, 0, JUST_FREED] == 2
    assert pcp_drain(p, b, 0)[0] == p.state[0, 0, NR_PAGES] + 2
    assert p.state[0, 0, JUST_FREED] == 0


def test_check_names_the_invariant_that_is_broken():
    def broken(change):
        b = make_buddy([64])
        p = lists(b)
        pcp_alloc(p, b, 0, 0, 0, False)  # leaves 1, 2, 3 on the hot list
        assert check(p, b) == []
        change(p, b)
        return {line[:2] for line in check(p, b)}

    def cold(p, b):
        p.first[0, 0, [0, COLD_LIST]], p.last[0, 0, [0, COLD_LIST]] = (NO_PFN, 1), (NO_PFN, 3)

    def order_1(p, b):
        p.first[0, 0, [0, 2]], p.last[0, 0, [0, 2]] = (NO_PFN, 1), (NO_PFN, 3)

    assert broken(lambda p, b: p.state.__setitem__((0, 0, NR_HOT), 4)) == {"P6"}
    assert broken(cold) == {"P6"}
    assert "P6" in broken(order_1)
    assert broken(lambda p, b: p.state.__setitem__((0, 0, JUST_FREED), 4)) == {"P7"}
    assert broken(lambda p, b: p.limit.__setitem__((0, BATCH), 0)) == {"P7"}


ORDERS = st.sampled_from((0, 0, 0, 0, 1, 2, 4))
worlds = st.fixed_dictionaries(
    {
        "zones": st.lists(st.sampled_from((7, 64, 300)), min_size=1, max_size=2),
        "max_order": st.sampled_from((5, 9)),
        "zeroed": st.booleans(),
        "batch": st.sampled_from((1, 2, 5)),
        "has_zeroed": st.booleans(),
        "strands": st.booleans(),
    }
)
runs = st.lists(
    st.tuples(
        st.sampled_from(("alloc", "alloc", "free", "free_first", "cold", "free_cold", "zero", "drain")),
        st.integers(0, 1),  # cpu
        st.integers(0, 1),  # zone
        ORDERS,
        st.booleans(),  # wants zeros
        st.sampled_from((1, 3, 10, 40)),  # times
    ),
    max_size=30,
)


def agree(world, trace):
    zones = world["zones"]
    b = make_buddy(zones, world["max_order"], world["zeroed"])
    p = lists(b, 2, world["batch"], world["has_zeroed"], world["strands"])
    twin = HotColdTwin(
        zones, world["max_order"], int(world["zeroed"]), 2, world["batch"], world["has_zeroed"], world["strands"]
    )
    held = {zone: [] for zone in range(len(zones))}

    def same(got, expected, zone, k):
        assert (None if got[0] == NO_PFN else got) == expected
        if expected is not None:
            held[zone].append((expected[0], k))

    for what, cpu, zone, k, flag, times in trace:
        zone %= len(zones)
        if what == "drain":
            assert pcp_drain(p, b, cpu) == twin.drain(cpu)
            continue
        for _ in range(times):
            if what == "alloc":
                same(pcp_alloc(p, b, cpu, zone, k, flag), twin.alloc(cpu, zone, k, flag), zone, k)
            elif what == "cold":
                same(alloc_page(p, b, cpu, zone, COLD_LIST), twin.alloc_from(cpu, zone, "cold"), zone, 0)
            elif what == "zero":
                pfn = take_just_freed(p, b, cpu, zone)
                got = None if pfn == NO_PFN else give_just_zeroed(p, b, cpu, zone, pfn)
                assert got == twin.zero_just_freed(cpu, zone)
            elif held[zone]:
                pfn, order = held[zone].pop(0 if what == "free_first" else -1)
                if what == "free_cold" and order == 0:
                    assert free_page(p, b, cpu, zone, pfn, COLD_LIST) == twin.free_to(cpu, zone, pfn, "cold")
                else:
                    z = ZEROED if flag else UNZEROED
                    assert pcp_free(p, b, cpu, zone, pfn, order, z) == twin.free(cpu, zone, pfn, order)
    assert check(p, b) == []
    assert buddy.check(b) == []
    in_use = sum(2**k for blocks in held.values() for _, k in blocks)
    assert b.free_pages.sum() + pages_on_lists(p) + in_use == sum(zones)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(worlds, runs)
def test_same_blocks_as_the_naive_twin(world, trace):
    agree(world, trace)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None)
@given(worlds, runs)
def test_same_blocks_as_the_naive_twin_deep(world, trace):
    agree(world, trace)


class HotColdMachine(RuleBasedStateMachine):
    """Tracks what every page holds: what is handed out as zeroed must hold zeros, and nothing is in two places."""

    @initialize(zeroed=st.booleans(), batch=st.sampled_from((1, 2, 5)), strands=st.booleans())
    def boot(self, zeroed, batch, strands):
        self.b = make_buddy([200, 33], 6, zeroed)
        self.p = lists(self.b, 2, batch, strands=strands)
        self.zones = (range(200), range(200, 233))
        self.holds = dict.fromkeys(range(233), 0 if zeroed else GARBAGE)
        self.held = []  # (zone, pfn, k)
        self.rules = scrub_rules("scrubd", start=0, stop=0, max_order=6)
        self.s = make_scrub(2)
        self.flying = []  # (zone, pfn, k)

    @rule(
        cpu=st.integers(0, 1),
        zone=st.integers(0, 1),
        k=st.sampled_from((0, 0, 0, 1, 3)),
        wants_zeros=st.booleans(),
        writes=st.booleans(),
        times=st.sampled_from((20, 5, 1)),
    )
    def alloc(self, cpu, zone, k, wants_zeros, writes, times):
        for _ in range(times):
            free = int(self.b.free_pages[zone])
            pfn, z, moved = pcp_alloc(self.p, self.b, cpu, zone, k, wants_zeros)
            assert moved == free - self.b.free_pages[zone]
            if pfn == NO_PFN:
                return
            pages = range(pfn, pfn + 2**k)
            assert pfn % 2**k == 0
            assert all(page in self.zones[zone] for page in pages)
            assert z == UNZEROED or wants_zeros
            if z == ZEROED:
                assert all(self.holds[page] == 0 for page in pages)
            self.held.append((zone, pfn, k))
            if writes:
                self.holds.update(dict.fromkeys(pages, GARBAGE))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), cpu=st.integers(0, 1), cold=st.booleans(), times=st.sampled_from((30, 5, 1)))
    def free(self, data, cpu, cold, times):
        which = data.draw(st.integers(0, len(self.held) - 1)) if times == 1 else 0
        for _ in range(min(times, len(self.held))):
            zone, pfn, k = self.held.pop(which)
            free = int(self.b.free_pages[zone])
            if cold and k == 0:
                spilled, _ = free_page(self.p, self.b, cpu, zone, pfn, COLD_LIST)
            else:
                spilled, _ = pcp_free(self.p, self.b, cpu, zone, pfn, k, UNZEROED)
            assert spilled == self.b.free_pages[zone] - free

    @rule(cpu=st.integers(0, 1), zone=st.integers(0, 1), times=st.sampled_from((10, 1)))
    def zero_just_freed(self, cpu, zone, times):
        for _ in range(times):
            pfn = take_just_freed(self.p, self.b, cpu, zone)
            if pfn != NO_PFN:
                assert pfn in self.zones[zone]
                self.holds[pfn] = 0
                give_just_zeroed(self.p, self.b, cpu, zone, pfn)

    @rule(zone=st.integers(0, 1), times=st.sampled_from((10, 1)))
    def scrub(self, zone, times):
        write_start(self.s, self.rules, self.b, 0, 0)
        for _ in range(times):
            if is_ready(self.s, zone, 0):
                pfn, k, of = next_block(self.s, self.rules, self.b, zone, 0, 0)
                if pfn != NO_PFN:
                    assert of == zone
                    self.flying.append((zone, pfn, k))
                    if times > 1:
                        self.land()

    @precondition(lambda self: self.flying)
    @rule()
    def land(self):
        zone, pfn, k = self.flying.pop()
        self.holds.update(dict.fromkeys(range(pfn, pfn + 2**k), 0))
        done(self.s, self.b, zone, pfn, k, 4096)

    @rule(cpu=st.integers(0, 1), rarely=st.integers(0, 5))
    def drain(self, cpu, rarely):
        if not rarely:
            pcp_drain(self.p, self.b, cpu)
            assert self.p.state[cpu, :, NR_PAGES].tolist() == [0, 0]

    @invariant()
    def every_page_is_in_one_place_and_holds_what_its_list_says(self):
        assert buddy.check(self.b, [(pfn, k) for _, pfn, k in self.flying]) == []
        assert check(self.p, self.b) == []
        free, kept = buddy_pages(self.b), {}
        for cpu, zone, i in np.ndindex(*self.p.first.shape):
            pfn = int(self.p.first[cpu, zone, i])
            while pfn != NO_PFN:
                kept[pfn] = i & 1
                pfn = int(self.b.next[pfn])
        away = [page for _, pfn, k in self.held + self.flying for page in range(pfn, pfn + 2**k)]
        assert sorted([*free, *kept, *away]) == list(range(233))
        assert all(self.holds[page] == 0 for page, z in (free | kept).items() if z == ZEROED)


class DeepHotColdMachine(HotColdMachine):
    pass


TestHotCold = HotColdMachine.TestCase
TestHotCold.settings = settings(
    max_examples=30, stateful_step_count=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
TestHotColdDeep = pytest.mark.slow(DeepHotColdMachine.TestCase)
TestHotColdDeep.settings = settings(
    max_examples=300, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_only_unzeroed_frees_tell_the_scrubber():
    b = half_zeroed(64)
    p = lists(b, batch_pages=1, strands=False)
    for _ in range(3):
        pcp_free(p, b, 0, 0, alloc_block(b, 0, 0, UNZEROED), 0, UNZEROED)
    assert [free_page(p, b, 0, 0, take_just_freed(p, b, 0, 0), ZEROED_LIST) for _ in range(3)] == [
        (0, NO_ORDER),
        (0, NO_ORDER),
        (1, NO_ORDER),
    ]
