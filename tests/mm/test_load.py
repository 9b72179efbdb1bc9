"""The load average: integers by hand, and what it tends to."""

import math

import pytest

from firsttouch.mm.load import EXP_1, FIXED_1, FSHIFT, LOAD_FREQ_NS, advance_load, make_load, update_load

S_NS = 1_000_000_000


def test_constants():
    assert round(FIXED_1 * math.exp(-5 / 60)) == EXP_1
    assert FIXED_1 == 2048
    assert LOAD_FREQ_NS == 5 * S_NS


def test_one_thread_on_an_idle_machine():
    # 2048 * 164 = 335872; / 2048 = 164.
    # 164 * 1884 = 308976, + 335872 = 644848; / 2048 = 314.8.
    # 314 * 1884 = 591576, + 335872 = 927448; / 2048 = 452.8.
    load, seen = 0, []
    for _ in range(3):
        load = update_load(load, 1)
        seen.append(load)
    assert seen == [164, 314, 452]


def test_it_falls_when_nothing_runs():
    # 2048 * 1884 / 2048; 1884 * 1884 = 3549456, / 2048 = 1733.1; 1733 * 1884 = 3264972, / 2048 = 1594.2
    load, seen = FIXED_1, []
    for _ in range(3):
        load = update_load(load, 0)
        seen.append(load)
    assert seen == [1884, 1733, 1594]


@pytest.mark.parametrize("nr_threads", [1, 2, 8, 104])
def test_it_stays_at_a_load_that_does_not_change(nr_threads):
    assert update_load(nr_threads << FSHIFT, nr_threads) == nr_threads << FSHIFT


def test_after_a_minute_it_has_come_63_percent_of_the_way():
    load = make_load()
    assert advance_load(load, 60 * S_NS, 10) / FIXED_1 == pytest.approx(10 * (1 - 1 / math.e), rel=0.01)


def test_refreshes_come_every_five_seconds():
    load = make_load()
    assert advance_load(load, 5 * S_NS - 1, 1) == 0
    assert advance_load(load, 5 * S_NS, 1) == 164
    assert advance_load(load, 10 * S_NS - 1, 8) == 164  # what runs between refreshes does not count
    assert advance_load(load, 15 * S_NS, 1) == 452  # two at once


def test_a_long_time_is_as_good_as_its_refreshes():
    step, leap = make_load(5 * FIXED_1), make_load(5 * FIXED_1)
    for at_s in range(0, 3601, 5):
        advance_load(step, at_s * S_NS, 2)
    assert advance_load(leap, 3600 * S_NS, 2) == step.avenrun[0]
    assert leap.next_ns[0] == step.next_ns[0] == 3605 * S_NS
    advance_load(leap, 10**6 * 3600 * S_NS + 1, 2)  # a million hours, in no time
    assert leap.next_ns[0] == (10**6 * 3600 + 5) * S_NS
