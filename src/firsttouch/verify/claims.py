"""A claim: what the model says the kernel will count, and whether it does.

| observable | measured by | tolerance | why that much |
|---|---|---|---|
| faults | ru_minflt + ru_majflt | 1 %, or 2 | counts do not depend on how fast the machine is |
| system_ns | rusage, split by samples of the CPU clock | 15 % | a sample is half a ms of either (split.py) |
| cpu_ns | ru_utime + ru_stime | 5 % | exact in itself; caches and other programs make it vary |
| wall_ns | from spawn to exit | 3 % | |
| peak_rss_bytes | ru_maxrss | 3 % | the model has anonymous pages; the rest is that of a run with base pages |
| untouched_bytes | ru_maxrss against `never` | 3 % of the peak | what is mapped at the peak and was not touched |

A claim holds if its error is within the tolerance, or if the prediction lies within the measured interval while that
is not wider than twice the tolerance on either side: then the measurement cannot tell them apart. A wider interval
measures nothing. Time in faults has no counter in the kernel; it is part of system_ns.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from firsttouch.verify.statistics import Interval, error_ratio

Verdict = Literal["pass", "fail", "not measurable"]

TOLERANCE_RATIO = {
    "faults": 0.01,
    "system_ns": 0.15,
    "cpu_ns": 0.05,
    "wall_ns": 0.03,
    "peak_rss_bytes": 0.03,
    "untouched_bytes": 0.03,
}
FLOOR = {"faults": 2.0}  # so small a difference is none, however short the program: exec copies a page more or less
INTERVAL_LIMIT = 2.0  # half an interval, in tolerances, that still measures something


class Predicted(NamedTuple):
    """What the model says, and the interval that its costs and recordings leave."""

    value: float
    low: float
    high: float


class Measured(msgspec.Struct, frozen=True):
    """The median of `n` runs and its 95 % interval."""

    median: float
    low: float
    high: float
    n: int


class Claim(msgspec.Struct, frozen=True):
    """One row of the table."""

    program: str
    knob: str
    observable: str
    predicted: float | None
    predicted_low: float | None
    predicted_high: float | None
    measured: Measured | None
    error_ratio: float | None  # (predicted - measured) / measured; untouched_bytes: / peak memory
    tolerance_ratio: float
    verdict: Verdict
    why: str


def judge(
    program: str, knob: str, observable: str, predicted: Predicted, measured: Interval, scale: float | None = None
) -> Claim:
    """Compare a prediction with a measurement; `scale` is what errors are a share of, if not of the measured value."""
    tolerance = TOLERANCE_RATIO[observable]
    whole = abs(measured.median) if scale is None else scale
    error = error_ratio(predicted.value, measured.median, whole)
    half = (measured.high - measured.low) / 2 / whole if whole else 0.0
    verdict: Verdict
    if abs(error) <= tolerance or abs(predicted.value - measured.median) <= FLOOR.get(observable, 0.0):
        verdict, why = "pass", ""
    elif half > INTERVAL_LIMIT * tolerance:
        verdict, why = "not measurable", f"the runs differ too much: the interval is +-{half:.1%}"
    elif measured.low <= predicted.value <= measured.high:
        verdict, why = "pass", "within the measured interval"
    else:
        verdict, why = "fail", f"off by {error:+.1%}, tolerance {tolerance:.0%}"
    return Claim(
        program=program, knob=knob, observable=observable, predicted=predicted.value, predicted_low=predicted.low,
        predicted_high=predicted.high, measured=Measured(*measured), error_ratio=error, tolerance_ratio=tolerance,
        verdict=verdict, why=why,
    )  # fmt: skip


def not_measurable(program: str, knob: str, observable: str, why: str, predicted: Predicted | None = None) -> Claim:
    """A claim that cannot be checked here, with the reason."""
    value, low, high = predicted or (None, None, None)
    return Claim(
        program=program, knob=knob, observable=observable, predicted=value, predicted_low=low, predicted_high=high,
        measured=None, error_ratio=None, tolerance_ratio=TOLERANCE_RATIO[observable], verdict="not measurable", why=why,
    )  # fmt: skip


def summary(claims: Sequence[Claim]) -> dict[str, Any]:
    """How many claims there are, how many hold, and the median and worst error of each observable."""
    errors: dict[str, dict[str, float]] = {}
    for observable in TOLERANCE_RATIO:
        mine = [abs(claim.error_ratio) for claim in _judged(claims, observable) if claim.error_ratio is not None]
        if mine:
            errors[observable] = {"median": statistics.median(mine), "worst": max(mine), "n": len(mine)}
    count = {verdict: sum(claim.verdict == verdict for claim in claims) for verdict in ("pass", "fail")}
    return {
        "claims": len(claims),
        "passed": count["pass"],
        "failed": count["fail"],
        "not_measurable": len(claims) - count["pass"] - count["fail"],
        "errors": errors,
    }


def _judged(claims: Iterable[Claim], observable: str) -> list[Claim]:
    return [claim for claim in claims if claim.observable == observable and claim.verdict != "not measurable"]
