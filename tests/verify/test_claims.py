"""When a claim holds."""

import pytest

from firsttouch.verify import claims
from firsttouch.verify.claims import Predicted, judge, not_measurable
from firsttouch.verify.statistics import Interval


def verdict(observable: str, predicted: float, median: float, low: float, high: float) -> tuple[str, str]:
    claim = judge("p", "k", observable, Predicted(predicted, predicted, predicted), Interval(median, low, high, 5))
    return claim.verdict, claim.why


@pytest.mark.parametrize(
    ("predicted", "low", "high", "want"),
    [
        (1000, 1000, 1000, "pass"),
        (1010, 1000, 1000, "pass"),  # the tolerance of counts is 1 %
        (1011, 1000, 1000, "fail"),
        (989, 1000, 1000, "fail"),
        (1015, 985, 1016, "pass"),  # within the interval, and that is no wider than 2 % on either side
        (1015, 990, 1010, "fail"),
        (1015, 980, 1021, "not measurable"),
        (1500, 970, 1031, "not measurable"),  # a wide interval refutes nothing either
        (1005, 500, 1500, "pass"),  # right in the middle
    ],
)
def test_verdicts_on_counts(predicted: float, low: float, high: float, want: str) -> None:
    found, why = verdict("faults", predicted, 1000, low, high)
    assert found == want
    assert bool(why) == (want != "pass" or abs(predicted - 1000) > 10)


def test_each_observable_has_its_own_tolerance() -> None:
    assert verdict("system_ns", 1.14e6, 1e6, 1e6, 1e6)[0] == "pass"
    assert verdict("system_ns", 1.16e6, 1e6, 1e6, 1e6)[0] == "fail"
    assert verdict("wall_ns", 1.029e6, 1e6, 1e6, 1e6)[0] == "pass"
    assert verdict("wall_ns", 1.031e6, 1e6, 1e6, 1e6)[0] == "fail"


def test_two_faults_are_no_difference_in_the_shortest_program() -> None:
    assert verdict("faults", 88, 86, 86, 86)[0] == verdict("faults", 84, 86, 86, 86)[0] == "pass"
    assert verdict("faults", 89, 86, 86, 86)[0] == "fail"
    assert verdict("wall_ns", 88, 86, 86, 86)[0] == "pass" and verdict("wall_ns", 89, 86, 86, 86)[0] == "fail"


def test_an_error_may_be_a_share_of_something_else() -> None:
    claim = judge("p", "k", "untouched_bytes", Predicted(30, 30, 30), Interval(10, 10, 10, 3), scale=1000.0)
    assert (claim.error_ratio, claim.verdict) == (0.02, "pass")
    assert claim.measured == claims.Measured(10, 10, 10, 3)


def test_what_cannot_be_measured_keeps_its_prediction_and_its_reason() -> None:
    claim = not_measurable("p", "k", "faults", "it needs root", Predicted(5, 4, 6))
    assert (claim.predicted, claim.predicted_low, claim.predicted_high) == (5, 4, 6)
    assert (claim.measured, claim.error_ratio, claim.why) == (None, None, "it needs root")


def test_the_summary_counts_verdicts_and_takes_medians_of_what_was_judged() -> None:
    def claim(predicted: float) -> claims.Claim:
        return judge("p", "k", "faults", Predicted(predicted, predicted, predicted), Interval(100, 100, 100, 3))

    some = [claim(100), claim(99), claim(150), not_measurable("p", "k", "wall_ns", "no")]
    found = claims.summary(some)
    assert (found["claims"], found["passed"], found["failed"], found["not_measurable"]) == (4, 2, 1, 1)
    assert found["errors"] == {"faults": {"median": pytest.approx(0.01), "worst": 0.5, "n": 3}}
