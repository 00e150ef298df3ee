"""How likely: hours are lognormal, with the 80 % interval a prediction carries.

The logarithm of the hours is normal around log(mid) with the standard deviation
log(high / low) / (2 × 1.2816): 80 % of a normal distribution lie within 1.2816 standard deviations
of its centre. Errors of predictions multiply (a step 20 % slower makes the whole experiment
20 % slower), hence the logarithm. An interval that is not symmetric around `mid` on that scale
keeps its width and loses its skew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from segplan.purchase.problem import Hours

_NORMAL = NormalDist()
Z80 = _NORMAL.inv_cdf(0.9)
"""Standard deviations that bound the middle 80 %: 1.2816."""


def spread(hours: Hours) -> float:
    """Standard deviation of the logarithm of the hours; 0 where the interval has no width."""
    if hours.low <= 0 or hours.high <= hours.low:
        return 0.0
    return math.log(hours.high / hours.low) / (2 * Z80)


def chance_within(hours: Hours, limit: float) -> float:
    """Probability that an experiment takes at most `limit` hours."""
    sigma = spread(hours)
    if sigma == 0 or hours.mid <= 0:
        return 1.0 if hours.mid <= limit * (1 + 1e-9) else 0.0
    return _NORMAL.cdf(math.log(limit / hours.mid) / sigma)


def quantile(hours: Hours, probability: float) -> float:
    """Hours that an experiment stays within, with this probability."""
    return hours.mid * math.exp(spread(hours) * _NORMAL.inv_cdf(probability))


def chance_of_capacity(loads: Sequence[tuple[float, Hours]], capacity: float) -> float:
    """Probability that a month's work fits into a capacity.

    Every experiment is taken to be off by the same number of standard deviations at a time:
    predictions for one card share their errors, and independent ones would only average out.

    Args:
        loads: (GPU-hours a month at the expected hours, the hours they come from).
        capacity: GPU-hours a month.
    """

    def load(z: float) -> float:
        return sum(amount * math.exp(spread(hours) * z) for amount, hours in loads)

    low, high = -8.0, 8.0
    if load(high) <= capacity * (1 + 1e-9):
        return 1.0
    if load(low) > capacity * (1 + 1e-9):
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if load(middle) <= capacity else (low, middle)
    return _NORMAL.cdf(low)
