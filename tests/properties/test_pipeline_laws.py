"""Laws of what the pipeline computes without Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import repeat
from warnings import catch_warnings, simplefilter

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from purgatory.pipeline.advise.advice import minutes_of_kinds
from purgatory.pipeline.advise.workers import advise_workers
from purgatory.pipeline.statistics import (
    bucket,
    bucket_end,
    bucket_start,
    kaplan_meier,
    poisson_upper,
    wilson_interval,
)
from tests.nightly import NIGHTLY
from tests.pipeline.columns import parked_minutes

WAITS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=20
)


@given(st.integers(0, 2**61))
def test_a_bucket_holds_its_value(value: int) -> None:
    """Buckets cover all numbers, in order, and none is wider than 1/128 of what is in it."""
    index = bucket(value)
    assert bucket_start(index) <= value <= bucket_end(index)
    assert bucket(bucket_end(index) + 1) == index + 1
    assert (bucket_end(index) - bucket_start(index)) * 128 <= value


@NIGHTLY  # by day tests/pipeline/test_advice.py knows what was drawn
@given(WAITS)
def test_kaplan_meier_agrees_with_scipy(waits: list[tuple[int, int, int]]) -> None:
    """Of operations one by one, scipy says the same, interval included."""
    # Here: it takes a second to import, which every process of the tests would spend.
    from scipy.stats import CensoredData, ecdf

    ended = [time for time, fired, _ in waits for _ in range(fired)]
    censored = [time for time, _, censored in waits for _ in range(censored)]
    assume(ended)
    are_censored = [*repeat(0, len(ended)), *repeat(1, len(censored))]
    curve = ecdf(CensoredData.right_censored(ended + censored, are_censored)).sf
    with catch_warnings():
        # Where nobody or everybody survives there is no interval.
        simplefilter("ignore", RuntimeWarning)
        interval = curve.confidence_interval(method="log-log")
    for step in kaplan_meier(waits):
        assert step.survival == pytest.approx(curve.evaluate(step.time_us), abs=1e-12)
        if 0 < step.survival < 1:
            assert step.low == pytest.approx(interval.low.evaluate(step.time_us), abs=1e-9)
            assert step.high == pytest.approx(interval.high.evaluate(step.time_us), abs=1e-9)


@NIGHTLY
@given(st.integers(1, 10**7).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
@example((0, 1))
@example((1, 1))
def test_the_interval_of_a_share_agrees_with_scipy(counted: tuple[int, int]) -> None:
    """And it holds the share, its ends included."""
    from scipy.stats import binomtest

    successes, trials = counted
    low, high = wilson_interval(successes, trials)
    assert 0 <= low <= successes / trials <= high <= 1
    judge = binomtest(successes, trials).proportion_ci(0.95, method="wilson")
    assert [low, high] == pytest.approx([judge.low, judge.high], abs=1e-12)


@given(st.integers(0, 10**7), st.sampled_from([1.0, 10.0, 1_000.0]))
@example(0, 10.0)
def test_the_upper_bound_of_a_count_is_the_exact_one_but_for_a_hundredth(
    count: int, factor: float
) -> None:
    """Also of a count that is scaled up from a sample."""
    from scipy.special import gammaincinv

    # Without any, the factor is not known.
    factor = factor if count else 1.0
    bound = poisson_upper(count * factor, count * factor**2)
    assert bound == pytest.approx(factor * gammaincinv(count + 1, 0.975), rel=0.01)


@given(st.lists(st.tuples(st.integers(30, 500), st.integers(0, 10**6)), min_size=40, max_size=90))
def test_a_peak_is_within_its_interval(loads: list[tuple[int, int]]) -> None:
    """Whatever the minutes, and in whichever order they come."""
    rows = [
        {"kind": "park", "minute": datetime.fromtimestamp(60 * place, UTC)}
        | {"began": count, "parked_peak": parked}
        for place, (count, parked) in enumerate(loads)
    ]
    found, reversed_ = (
        advise_workers(minutes_of_kinds(parked_minutes(some), {})) for some in (rows, rows[::-1])
    )
    assert found == reversed_
    assert found.arrivals_per_s is not None and found.parked is not None
    for peak, loads_of_it in (
        (found.arrivals_per_s, [count / 60 for count, _ in loads]),
        (found.parked, [parked for _, parked in loads]),
    ):
        assert peak.low <= peak.value <= peak.highest <= peak.high
        assert peak.highest == max(loads_of_it)
    assert found.workers is not None
    assert found.workers * found.capacity.parked >= found.parked.highest
