"""What the versions of scrubd differ in: defaults, when they wake, what they take, when they rest."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrub_twin import ScrubTwin

from firsttouch.errors import FirsttouchError
from firsttouch.mm.buddy import NO_PFN, UNZEROED, ZEROED, alloc_block, check, free_block, make_buddy
from firsttouch.mm.load import FIXED_1
from firsttouch.mm.scrub import (
    BY_FRACTION,
    BY_ORDER,
    DAY_NS,
    LOAD_AT_PASS,
    LOAD_AT_WAKE_UP,
    LOAD_RETRY_NS,
    NEVER_NS,
    NO_LOAD_TEST,
    NO_SCRUB,
    SCRUBBERS,
    done,
    in_window,
    is_ready,
    make_scrub,
    may_wake,
    next_block,
    next_opening_ns,
    scrub_rules,
    wake_after_free,
    write_start,
)

H_NS = 3_600_000_000_000


@pytest.mark.parametrize(
    ("scrub", "kind", "start", "stop", "load", "test"),
    [
        ("none", NO_SCRUB, 0, 0, 0, NO_LOAD_TEST),
        ("scrubd-v2", BY_ORDER, 11, 2, 0, NO_LOAD_TEST),  # MAX_ORDER: off
        ("scrubd-v3", BY_ORDER, 7, 2, 999, LOAD_AT_WAKE_UP),
        ("scrubd-v4", BY_ORDER, 5, 2, 999, LOAD_AT_WAKE_UP),
        ("scrubd-v6", BY_ORDER, 6, 4, 999, LOAD_AT_WAKE_UP),
        ("scrubd-v8", BY_FRACTION, 100, 300, 1, LOAD_AT_PASS),
    ],
)
def test_defaults_of_the_versions(scrub, kind, start, stop, load, test):
    assert scrub_rules(scrub) == (kind, start, stop, load, test, 0, 0, False, 0)


def test_what_is_given_replaces_the_default():
    r = scrub_rules("scrubd-v6", start=3, stop=0, load=2, from_s=7200, until_s=14400, just_freed=True)
    assert r == (BY_ORDER, 3, 0, 2, LOAD_AT_WAKE_UP, 2 * H_NS, 4 * H_NS, True, 0)
    assert scrub_rules("scrubd-v2", max_order=17).start == 18


@pytest.mark.parametrize(
    ("scrub", "options", "named"),
    [
        ("scrubd-v5", {}, "'scrubd-v5'"),
        ("none", {"start": 3}, "start of none is 3"),
        ("scrubd-v2", {"load": 3}, "load of scrubd-v2 is 3"),
        ("scrubd-v6", {"load": -1}, "load of scrubd-v6 is -1"),
        ("scrubd-v6", {"start": -1}, "start of scrubd-v6 is -1"),
        ("scrubd-v6", {"stop": 11, "start": 11}, "stop of scrubd-v6 is 11"),
        ("scrubd-v6", {"start": 3}, "start of scrubd-v6 is 3"),  # below its stop, 4
        ("scrubd-v8", {"start": 1025}, "start or stop of scrubd-v8 is"),
        ("scrubd-v8", {"stop": 1025}, "start or stop of scrubd-v8 is"),
        ("scrubd", {"from_s": 86401}, "from_s of scrubd is 86401"),
        ("scrubd", {"until_s": -1}, "until_s of scrubd is -1"),
    ],
)
def test_rules_that_cannot_be_are_named(scrub, options, named):
    with pytest.raises(FirsttouchError) as error:
        scrub_rules(scrub, **options)
    assert named in str(error.value)


@pytest.mark.parametrize("scrub", list(SCRUBBERS))
def test_every_scrubber_has_rules_and_sleeps_at_first(scrub):
    assert scrub_rules(scrub).kind == SCRUBBERS[scrub].kind
    assert make_scrub(4, 2).awake.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("scrub", "options", "woke_at"),
    [
        ("none", {}, []),
        ("scrubd-v2", {}, []),
        ("scrubd-v2", {"start": 9}, [9, 10]),
        ("scrubd-v3", {}, [7, 8, 9, 10]),
        ("scrubd-v4", {}, [5, 6, 7, 8, 9, 10]),
        ("scrubd-v6", {}, [6, 7, 8, 9, 10]),
        ("scrubd-v8", {}, list(range(11))),  # nothing is zeroed: any free that reaches the buddy
    ],
)
def test_orders_that_wake(scrub, options, woke_at):
    b, r = make_buddy([2048]), scrub_rules(scrub, **options)
    assert [k for k in range(-1, 11) if may_wake(r, b, 0, k, 0, 0)] == woke_at


@pytest.mark.parametrize(
    ("scrub", "limit", "avenrun", "may"),
    [
        ("scrubd-v3", 999, 998 * FIXED_1, True),
        ("scrubd-v3", 999, 999 * FIXED_1, False),
        ("scrubd-v6", 2, 2 * FIXED_1 - 1, True),
        ("scrubd-v6", 2, 2 * FIXED_1, False),  # at the limit, not above it
        ("scrubd-v6", 0, 0, False),  # 0: never
        ("scrubd-v8", 1, 50 * FIXED_1, True),  # it looks later
        ("scrubd-v2", None, 5000 * FIXED_1, True),  # it does not look
    ],
)
def test_load_at_wake_up(scrub, limit, avenrun, may):
    r = scrub_rules(scrub, load=limit, **({"start": 6} if scrub == "scrubd-v2" else {}))
    assert may_wake(r, make_buddy([2048]), 0, 10, avenrun, 0) == may


def test_fraction_of_zeroed_pages_that_wakes():
    # 1024 free pages: of the default 100 / 1024, 96 zeroed ones are too few and 100 are not.
    b = make_buddy([1024], max_order=5)
    blocks = [alloc_block(b, 0, 2, UNZEROED) for _ in range(25)]
    for pfn in blocks[:24]:
        free_block(b, 0, pfn, 2, ZEROED)
    free_block(b, 0, blocks[24], 2, UNZEROED)
    r = scrub_rules("scrubd-v8")
    assert (b.free_pages[0], b.zero_pages[0]) == (1024, 96)
    assert may_wake(r, b, 0, 0, 0, 0)
    pfn = alloc_block(b, 0, 2, UNZEROED)
    free_block(b, 0, pfn, 2, ZEROED)
    assert not may_wake(r, b, 0, 0, 0, 0)


def scrub_all(s, r, b, node, now_ns=0):
    """Blocks of one run of a daemon, each done before the next."""
    out = []
    while s.awake[node]:
        pfn, k, zone = next_block(s, r, b, node, 0, now_ns)
        if pfn != NO_PFN:
            out.append((pfn, k))
            done(s, b, zone, pfn, k, 4096)
    return out


def test_one_block_of_each_zone_a_pass():
    # Zone 0: 0..7, 8..9, 10. Zone 1: 11, 12..15, 16..23. Zone 2, of another node. Stop is order 1.
    b = make_buddy([11, 13, 8, 1], max_order=3)
    r = scrub_rules("scrubd", start=3, stop=1, max_order=3)
    s = make_scrub(4, 2)
    assert wake_after_free(s, r, b, 1, 3, 0, 0)
    assert s.awake.tolist() == [1, 0]
    assert scrub_all(s, r, b, 0) == [(0, 3), (16, 3), (8, 1), (12, 2)]
    assert s.nr_blocks.tolist() == [4, 0]
    assert s.zeroed_bytes.tolist() == [4096 * (8 + 8 + 2 + 4), 0]
    assert (s.awake[0], s.nr_wakeups[0]) == (0, 1)
    assert b.zero_pages.tolist() == [10, 12, 0, 0]


def test_a_zone_without_work_does_not_end_the_pass():
    b = make_buddy([1, 8], max_order=3)
    r, s = scrub_rules("scrubd", start=3, stop=1, max_order=3), make_scrub(2, 2)
    wake_after_free(s, r, b, 1, 3, 0, 0)
    assert scrub_all(s, r, b, 0) == [(4, 2), (2, 1)]  # 1 and 8 are single pages


def test_the_lowest_orders_first_by_fraction():
    # Ten pages of order 0, four blocks of order 1, one of order 3, kept apart by pages that are in use.
    b = make_buddy([64], max_order=3)
    for _ in range(8):
        alloc_block(b, 0, 3, UNZEROED)
    for page in range(0, 20, 2):
        free_block(b, 0, page, 0, UNZEROED)
    for page in range(24, 40, 4):
        free_block(b, 0, page, 1, UNZEROED)
    free_block(b, 0, 48, 3, UNZEROED)
    r, s = scrub_rules("scrubd-v8", max_order=3), make_scrub(1)
    assert wake_after_free(s, r, b, 0, 3, 0, 0)
    # Order 0: 0 zeroed of 10 plain, 10 * 300 >> 10 = 2: one. Then 1 of 9: 9 * 300 >> 10 = 2: another. 2 of 8: 2.
    # Order 1: 0 of 4: 4 * 300 >> 10 = 1: one; 1 of 3: 0. Order 3: 1 * 300 >> 10 = 0. The blocks freed last.
    assert scrub_all(s, r, b, 0) == [(18, 0), (16, 0), (36, 1)]


def test_by_fraction_each_zone_is_gone_through_from_order_0():
    b = make_buddy([16, 17], max_order=3)  # of order 3: 0, 8; 16, 24; a single page, 32
    r, s = scrub_rules("scrubd-v8", stop=1024, max_order=3), make_scrub(2, 2)
    wake_after_free(s, r, b, 0, 3, 0, 0)
    assert scrub_all(s, r, b, 0) == [(0, 3), (32, 0), (16, 3)]


def test_a_daemon_that_slept_begins_anew():
    for scrub in ("scrubd", "scrubd-v8"):
        b = make_buddy([8], max_order=3)
        r, s = scrub_rules(scrub, start=3 if scrub == "scrubd" else 1024, stop=1024 if scrub == "scrubd-v8" else 0,
                           max_order=3), make_scrub(1)  # fmt: skip
        for _ in range(3):
            assert wake_after_free(s, r, b, 0, 3, 0, 0)
            assert scrub_all(s, r, b, 0) == [(0, 3)]
            free_block(b, 0, alloc_block(b, 0, 3, ZEROED), 3, UNZEROED)
        assert s.nr_wakeups[0] == 3


def test_by_fraction_there_is_one_pass():
    b = make_buddy([64], max_order=3)
    r, s = scrub_rules("scrubd-v8", stop=1024, max_order=3), make_scrub(1)
    wake_after_free(s, r, b, 0, 3, 0, 0)
    assert next_block(s, r, b, 0, 0, 0) == (0, 3, 0)  # nothing below order 3
    pfn = alloc_block(b, 0, 0, UNZEROED)
    assert pfn == 8
    done(s, b, 0, 0, 3, 4096)
    # 9, 10..11 and 12..15 came after their orders were passed. Order 3: 1 of 6, 2 of 5, 3 of 4; then 4 of 3 is enough.
    assert scrub_all(s, r, b, 0) == [(16, 3), (24, 3), (32, 3)]
    assert b.nr_free[0, UNZEROED].tolist() == [1, 1, 1, 3]


def test_load_holds_up_a_pass_not_a_wake_up():
    b = make_buddy([64], max_order=3)
    r, s = scrub_rules("scrubd-v8", max_order=3), make_scrub(1)
    assert wake_after_free(s, r, b, 0, 0, 5 * FIXED_1, 0)
    assert next_block(s, r, b, 0, FIXED_1, 7) == (NO_PFN, 0, 0)
    assert s.awake[0]
    assert not is_ready(s, 0, 7 + LOAD_RETRY_NS - 1)
    assert is_ready(s, 0, 7 + LOAD_RETRY_NS)
    assert not wake_after_free(s, r, b, 0, 0, 0, 100)  # awake: lost
    assert next_block(s, r, b, 0, FIXED_1 - 1, 7 + LOAD_RETRY_NS)[0] != NO_PFN


def test_a_pass_goes_on_whatever_the_load_becomes():
    for scrub in ("scrubd-v6", "scrubd-v8"):
        b = make_buddy([64], max_order=4)
        start, stop = (4, 4) if scrub == "scrubd-v6" else (100, 1024)
        r, s = scrub_rules(scrub, start=start, stop=stop, max_order=4), make_scrub(1)
        assert wake_after_free(s, r, b, 0, 4, 0, 0)
        pfn, k, zone = next_block(s, r, b, 0, 0, 0)
        done(s, b, zone, pfn, k, 4096)
        assert next_block(s, r, b, 0, 10_000 * FIXED_1, 0)[0] != NO_PFN


def test_a_daemon_that_waits_or_is_busy_is_not_ready():
    b = make_buddy([64], max_order=4)
    r, s = scrub_rules("scrubd", max_order=4), make_scrub(1)
    assert not is_ready(s, 0, 0)
    wake_after_free(s, r, b, 0, 4, 0, 0)
    assert is_ready(s, 0, 0)
    pfn, k, zone = next_block(s, r, b, 0, 0, 0)
    assert not is_ready(s, 0, 0)
    assert b.free_pages[0] == 64
    assert done(s, b, zone, pfn, k, 4096) == 4
    assert is_ready(s, 0, 0)


@pytest.mark.parametrize(
    ("from_s", "until_s", "open_at", "shut_at", "opens"),
    [
        (0, 0, [0, 5 * H_NS, DAY_NS - 1], [], {0: NEVER_NS}),
        (7200, 14400, [2 * H_NS, 4 * H_NS - 1, DAY_NS + 3 * H_NS], [0, 2 * H_NS - 1, 4 * H_NS, DAY_NS],
         {0: 2 * H_NS, 2 * H_NS: DAY_NS + 2 * H_NS, DAY_NS + 1: DAY_NS + 2 * H_NS}),
        (79200, 21600, [22 * H_NS, 0, DAY_NS, 6 * H_NS - 1], [6 * H_NS, 12 * H_NS, 22 * H_NS - 1],
         {0: 22 * H_NS, 23 * H_NS: DAY_NS + 22 * H_NS}),
    ],
)  # fmt: skip
def test_the_daily_window(from_s, until_s, open_at, shut_at, opens):
    r = scrub_rules("scrubd", from_s=from_s, until_s=until_s)
    assert all(in_window(r, now_ns) for now_ns in open_at)
    assert not any(in_window(r, now_ns) for now_ns in shut_at)
    assert {now_ns: next_opening_ns(r, now_ns) for now_ns in opens} == opens


def test_outside_the_window_nothing_wakes_and_a_pass_ends():
    b = make_buddy([64], max_order=4)
    r, s = scrub_rules("scrubd", from_s=7200, until_s=14400, max_order=4), make_scrub(1)
    assert not wake_after_free(s, r, b, 0, 4, 0, 0)
    assert wake_after_free(s, r, b, 0, 4, 0, 2 * H_NS)
    pfn, k, zone = next_block(s, r, b, 0, 0, 4 * H_NS - 1)
    done(s, b, zone, pfn, k, 4096)
    assert next_block(s, r, b, 0, 0, 4 * H_NS) == (NO_PFN, 0, 0)
    assert not s.awake[0]


@pytest.mark.parametrize(
    ("scrub", "options", "avenrun", "woken"),
    [
        ("scrubd-v2", {}, 0, 0),  # off
        ("scrubd-v2", {"start": 10}, 0, 2),
        ("scrubd-v6", {}, 0, 2),
        ("scrubd-v6", {}, 999 * FIXED_1, 0),
        ("scrubd-v8", {}, 999 * FIXED_1, 2),
        ("none", {}, 0, 0),
    ],
)
def test_writing_the_start_wakes_every_daemon(scrub, options, avenrun, woken):
    b, s = make_buddy([2048] * 4), make_scrub(4, 2)
    r = scrub_rules(scrub, **options)
    assert write_start(s, r, b, avenrun, 0) == woken
    assert s.awake.sum() == s.nr_wakeups.sum() == woken
    assert write_start(s, r, b, avenrun, 0) == 0


worlds = st.fixed_dictionaries(
    {
        "zones": st.lists(st.sampled_from((5, 16, 64, 100)), min_size=2, max_size=4),
        "zones_per_node": st.sampled_from((1, 2)),
        "scrub": st.sampled_from(("scrubd", "scrubd-v8")),
        "start": st.integers(0, 6),
        "stop": st.integers(0, 5),
    }
)
steps = st.lists(
    st.tuples(
        st.sampled_from(("alloc", "alloc", "free", "free_first", "begin", "done", "scrub")),
        st.integers(0, 3),  # zone or node
        st.sampled_from((0, 0, 0, 1, 2, 4)),
        st.integers(0, 1),  # class
        st.sampled_from((1, 3, 10)),  # times
    ),
    max_size=40,
)


def agree(world, trace):
    per_node = world["zones_per_node"]
    zones = world["zones"][: len(world["zones"]) // per_node * per_node]
    by_fraction = world["scrub"] == "scrubd-v8"
    start, stop = max(world["start"], world["stop"]), world["stop"]
    if by_fraction:
        start, stop = world["start"] * 100, world["stop"] * 200
    b, s = make_buddy(zones, 5), make_scrub(len(zones), per_node)
    r = scrub_rules(world["scrub"], start=start, stop=stop, max_order=5)
    twin = ScrubTwin(zones, 5, per_node, start, stop, by_fraction)
    held = {zone: [] for zone in range(len(zones))}
    flying = [None] * (len(zones) // per_node)
    for what, i, k, z, times in trace:
        zone, node = i % len(zones), i % len(flying)
        for _ in range(times):
            if what == "alloc":
                pfn = alloc_block(b, zone, k, z)
                assert (None if pfn == NO_PFN else pfn) == twin.buddy.alloc(zone, k, z)
                if pfn != NO_PFN:
                    held[zone].append((pfn, k))
            elif what.startswith("free") and held[zone]:
                pfn, order = held[zone].pop(0 if what == "free_first" else -1)
                final = free_block(b, zone, pfn, order, UNZEROED)
                assert final == twin.buddy.free(zone, pfn, order, 0)
                assert wake_after_free(s, r, b, zone, final, 0, 0) == twin.freed(zone, final)
            elif what in ("begin", "scrub") and is_ready(s, node, 0):
                got = next_block(s, r, b, node, 0, 0)
                flying[node] = twin.next_block(node)
                assert (None if got[0] == NO_PFN else got) == flying[node]
            if what in ("done", "scrub") and flying[node] is not None:
                pfn, order, of = flying[node]
                assert done(s, b, of, pfn, order, 1) == twin.done(pfn, order, of)
                flying[node] = None
        assert [bool(awake) for awake in s.awake] == [run is not None for run in twin.passes]
    assert check(b, [(pfn, k) for pfn, k, _ in filter(None, flying)]) == []


@settings(max_examples=80, deadline=None, derandomize=True)
@given(worlds, steps)
def test_same_blocks_as_the_naive_twin(world, trace):
    agree(world, trace)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None)
@given(worlds, steps)
def test_same_blocks_as_the_naive_twin_deep(world, trace):
    agree(world, trace)
