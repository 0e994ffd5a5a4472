"""Intervals of a mean and of a share, the spread of times, and a test of pairs, without SciPy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np


def mean_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """(mean, low, high); low and high are NaN for one value. For values that are about normal and independent."""
    count = len(values)
    mean = sum(values) / count
    if count < 2:
        return mean, math.nan, math.nan
    variance = sum((value - mean) ** 2 for value in values) / (count - 1)
    half = student_quantile((1 + level) / 2, count - 1) * math.sqrt(variance / count)
    return mean, mean - half, mean + half


def spread(times: Any) -> dict[str, float]:
    """Their median, and what a tenth of them are below and above."""
    low, median, high = np.quantile(times, [0.1, 0.5, 0.9])
    return {"median": float(median), "p10": float(low), "p90": float(high)}


def student_quantile(share: float, degrees: int) -> float:
    """The x that a variable of Student's t distribution stays below with probability `share`, which is from 0.5 to below 1."""
    if not 0.5 <= share < 1 or degrees < 1:
        raise ValueError(f"share is {share} and degrees {degrees}; allowed are 0.5 to below 1, and at least 1")
    # P(t < x) = 1 - I(degrees / (degrees + x^2)) / 2, with t = sqrt(degrees) tan(angle): the density is cos(angle)^(degrees - 1).
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(math.pi)

    def below(angle: float, steps: int = 400) -> float:
        width = angle / steps  # Simpson's rule
        inner = sum((4 if at % 2 else 2) * math.cos(at * width) ** (degrees - 1) for at in range(1, steps))
        return 0.5 + scale * (1 + inner + math.cos(angle) ** (degrees - 1)) * width / 3

    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < share else (low, middle)
    return math.sqrt(degrees) * math.tan(low)


def wilson_interval(hits: int, count: int, level: float = 0.95) -> tuple[float, float, float]:
    """(share, low, high) of `hits` successes in `count` >= 1 independent trials (E. B. Wilson, 1927)."""
    share, z = hits / count, NormalDist().inv_cdf((1 + level) / 2)
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return share, min(share, middle - half), max(share, middle + half)  # at 0 and 1 the ends are these, but for rounding


def sign_test(fewer: int, more: int) -> float:
    """Two-sided p of pairs that differ one way and the other, where both ways are as likely: McNemar's test, exact; 1 for no pair."""
    count = fewer + more
    tail = sum(math.comb(count, one) for one in range(min(fewer, more) + 1)) / 2**count
    return min(1.0, 2 * tail)
