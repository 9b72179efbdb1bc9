"""Medians and their intervals against values that can be worked out on paper."""

import pytest

from firsttouch.verify.statistics import error_ratio, median_interval, spread_ratio


@pytest.mark.parametrize(
    ("values", "median", "low", "high"),
    [
        ([7.0], 7.0, 7.0, 7.0),
        ([3.0, 3.0, 3.0], 3.0, 3.0, 3.0),
        # Of two values a resample's median is 0 (1 in 4), 5 (2 in 4) or 10 (1 in 4): both ends are far above 2.5 %.
        ([0.0, 10.0], 5.0, 0.0, 10.0),
        # Of three, 7 of 27 resamples have the smallest at least twice, and 7 the largest.
        ([1.0, 2.0, 9.0], 2.0, 1.0, 9.0),
        # An outlier among twenty would have to be drawn ten times: about 1 in 10^8.
        ([0.0] * 19 + [100.0], 0.0, 0.0, 0.0),
        # Five: the median is the smallest if it is drawn 3 times or more: (10 * 16 + 5 * 4 + 1) / 3125 = 5.8 %.
        ([1.0, 2.0, 3.0, 4.0, 50.0], 3.0, 1.0, 50.0),
    ],
)
def test_the_interval_of_a_median(values: list[float], median: float, low: float, high: float) -> None:
    assert median_interval(values) == (median, low, high, len(values))


def test_the_interval_narrows_with_more_values_and_is_the_same_each_time() -> None:
    # Nine: the median is the smallest in P(Bin(9, 1/9) >= 5) = 0.1 % of resamples, one of the two smallest in
    # P(Bin(9, 2/9) >= 5) = 3.0 %: the 2.5 % point is the second smallest.
    values = [float(k) for k in range(1, 10)]
    first = median_interval(values)
    assert (first.median, first.low, first.high) == (5.0, 2.0, 8.0)
    assert median_interval(list(reversed(values))) == first == median_interval(values)


def test_half_of_an_interval_as_a_share() -> None:
    assert median_interval([0.0, 10.0]).half_width_ratio == 1.0
    assert median_interval([0.0]).half_width_ratio == 0.0


def test_nothing_has_no_median() -> None:
    with pytest.raises(ValueError):
        median_interval([])


def test_spread_is_the_range_over_the_median() -> None:
    assert spread_ratio([90, 100, 120]) == 0.3
    assert spread_ratio([100]) == spread_ratio([]) == spread_ratio([0, 0, 5]) == 0.0


def test_errors_have_a_sign_and_an_answer_to_nothing() -> None:
    assert error_ratio(110, 100, 100) == pytest.approx(0.1)
    assert error_ratio(90, 100, 200) == pytest.approx(-0.05)
    assert error_ratio(0, 0, 0) == 0.0
    assert error_ratio(5, 0, 0) == 1.0
