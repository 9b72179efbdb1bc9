"""Medians and what is known of them: bootstrap intervals, with a fixed seed, so that a table can be made again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

NR_RESAMPLES = 10_000
CONFIDENCE = 0.95
SEED = 2004


class Interval(NamedTuple):
    """A median of `n` values, and the interval that holds it with 95 % confidence."""

    median: float
    low: float
    high: float
    n: int

    @property
    def half_width_ratio(self) -> float:
        """Half of the interval, as a share of the median; 0 for a median of 0."""
        return (self.high - self.low) / 2 / abs(self.median) if self.median else 0.0


def median_interval(values: Sequence[float]) -> Interval:
    """The median of some values, with its bootstrap percentile interval. Raises ValueError for no values.

    All equal values give an interval of no width; so does a single one, whose `n` tells what that is worth.
    """
    if not values:
        raise ValueError("there is no median of nothing")
    data = np.asarray(values, float)
    rng = np.random.default_rng(SEED)
    medians = np.median(data[rng.integers(0, len(data), (NR_RESAMPLES, len(data)))], axis=1)
    tail = (1 - CONFIDENCE) / 2 * 100
    low, high = np.percentile(medians, [tail, 100 - tail])
    return Interval(float(np.median(data)), float(low), float(high), len(data))


def spread_ratio(values: Sequence[float]) -> float:
    """The range of some values, as a share of their median; 0 for fewer than two, or a median of 0."""
    if len(values) < 2:
        return 0.0
    middle = float(np.median(values))
    return float(max(values) - min(values)) / abs(middle) if middle else 0.0


def error_ratio(predicted: float, measured: float, whole: float) -> float:
    """How far a prediction is from a measurement, as a share of `whole`; of nothing: 0 if they are equal, else 1."""
    if whole == 0:
        return 0.0 if predicted == measured else 1.0
    return (predicted - measured) / abs(whole)
