"""What a share that was counted says of the true one."""

from __future__ import annotations

import math

CONFIDENCE = 0.95


def clopper_pearson(
    successes: int, trials: int, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Return the exact interval of a binomial share: it holds the true one at least so often.

    Raises ValueError unless 0 <= successes <= trials and trials is at least 1.

    Source: Clopper and Pearson, Biometrika 26 (1934).
    """
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"{successes} of {trials}: give a count of at most all, and one or more")
    tail = (1 - confidence) / 2
    low = 0.0 if not successes else _beta_quantile(tail, successes, trials - successes + 1)
    high = (
        1.0 if successes == trials else _beta_quantile(1 - tail, successes + 1, trials - successes)
    )
    return low, high


def _beta_quantile(share: float, a: float, b: float) -> float:
    """Return x with I_x(a, b) = share, by halving: 60 steps are more than a double has bits."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if beta_cdf(middle, a, b) < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def beta_cdf(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b), for a and b above 0.

    Source: Lentz's continued fraction, as in Numerical Recipes, 6.4.
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    # The fraction converges fast on one side of the mean only.
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_cdf(1 - x, b, a)
    log_front = (
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    return math.exp(log_front) * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    c, d = 1.0, 1 / _not_zero(1 - (a + b) * x / (a + 1))
    value = d
    # Needs about the square root of a + b: a million rounds are for a trillion trials.
    for m in range(1, 1_000_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _not_zero(1 + term * d)
            c = _not_zero(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return value


def _not_zero(value: float) -> float:
    return value if abs(value) > 1e-300 else 1e-300
