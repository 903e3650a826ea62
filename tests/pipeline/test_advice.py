"""Advice: right where the truth is known, silent where the data is too thin."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from purgatory.fastapi.watch.streams import ParkedStream
from purgatory.pipeline.advise.advice import (
    LEAST_FIRED,
    Targets,
    TimeoutAdvice,
    advise_settings,
    advise_timeout,
    minutes_of_kinds,
    survival_of_kinds,
)
from purgatory.pipeline.advise.workers import LEAST_OPERATIONS, Capacity, Minutes, advise_workers
from purgatory.pipeline.statistics import Step, kaplan_meier, survival_at
from tests.pipeline.columns import parked_minutes

TIMEOUT_US = 5_000_000


def exponential_steps(operations: int, mean_us: float, censored_at_us: int) -> list[Step]:
    """Return the curve of exponential waits that a timeout and some cancelling cut short."""
    chance = random.Random(7)
    waits = []
    for _ in range(operations):
        wait_us = round(chance.expovariate(1 / mean_us))
        end_us = min(censored_at_us, round(chance.expovariate(1 / (3 * mean_us))))
        waits.append((min(wait_us, end_us), int(wait_us <= end_us), int(wait_us > end_us)))
    return kaplan_meier(waits)


def advice_on(steps: Sequence[Step], share: float, fired: int = 1_000) -> TimeoutAdvice:
    """Return the advice on a kind of which half expired."""
    row = {"kind": "park", "operations": 2 * fired, "fired": fired, "expired": fired, "lost": 0}
    return advise_timeout(row | {"timeout_us_p50": TIMEOUT_US}, steps, share)


def test_survival_is_found_in_spite_of_censoring() -> None:
    """Waits of which a third was cut short show the distribution they were drawn from."""
    steps = exponential_steps(20_000, 1_000_000, TIMEOUT_US)
    for seconds in (0.1, 0.5, 1, 2, 4):
        truth = math.exp(-seconds)
        assert survival_at(steps, seconds * 1e6) == pytest.approx(truth, abs=0.015)
    # At 95 % for each time by itself; neighbours agree, so most of the curve is in or out at once.
    inside = [step.low <= math.exp(-step.time_us / 1e6) <= step.high for step in steps]
    assert sum(inside) > 0.9 * len(inside)


def test_the_advised_timeout_is_the_quantile() -> None:
    """For one in a hundred it is where one in a hundred of the true waits is longer."""
    found = advice_on(exponential_steps(50_000, 1_000_000, 8_000_000), 0.01)
    truth_us = -math.log(0.01) * 1e6
    assert found.low_us is not None and found.high_us is not None
    assert found.low_us <= truth_us <= found.high_us
    assert found.advised_us == pytest.approx(truth_us, rel=0.05)
    assert "A shorter timeout is enough" not in found.reason


def test_nothing_is_advised_beyond_what_was_seen() -> None:
    """If the timeout cuts the curve off above the share, the advice is to look further."""
    found = advice_on(exponential_steps(5_000, 10_000_000, TIMEOUT_US), 0.01)
    assert (found.advised_us, found.is_thin) == (None, False)
    assert "No observed wait is long enough: after 5 s " in found.reason


def test_few_fires_are_too_thin() -> None:
    """A handful of fires, or of operations at the tail, is said to be too few."""
    steps = kaplan_meier([(number, 1, 0) for number in range(1, LEAST_FIRED)])
    few = advice_on(steps, 0.5, fired=LEAST_FIRED - 1)
    assert (few.advised_us, few.is_thin) == (None, True)
    assert "29 operations fired, and at least 30 are needed" in few.reason
    tail = advice_on(exponential_steps(200, 1_000_000, 90_000_000), 0.001, fired=150)
    assert (tail.advised_us, tail.is_thin) == (None, True)
    assert "choose a larger share" in tail.reason


Load = tuple[int, int, int]
"""The start of a minute in seconds, the operations that began, and those that were parked."""


def minutes(count: int, operations: int, parked: int, start_s: int = 0) -> list[Load]:
    """Return minutes that are all alike."""
    return [(start_s + 60 * place, operations, parked) for place in range(count)]


def joined(*parts: list[Load]) -> Minutes:
    """Return all minutes of `parts`."""
    rows = [
        {"kind": "park", "minute": datetime.fromtimestamp(start_s, UTC)}
        | {"began": operations, "parked_peak": parked}
        for part in parts
        for start_s, operations, parked in part
    ]
    return minutes_of_kinds(parked_minutes(rows), {})


def test_a_peak_is_not_a_mean() -> None:
    """Five minutes of 210,000 parked in a quiet day are what workers must hold."""
    found = advise_workers(joined(minutes(700, 60, 20), minutes(5, 60, 210_000, start_s=42_000)))
    assert found.parked is not None
    assert (found.parked.value, found.parked.highest) == (210_000, 210_000)
    assert found.parked.highest_start_s == 42_000
    assert found.workers == 4
    assert "they use <0.1% of the CPU and 52.5% of the places of 4 workers each" in found.reason
    burst = joined(minutes(60, 60, 20), minutes(1, 60, 934, start_s=3_600))
    parked = advise_workers(burst).parked
    assert parked is not None
    assert parked.low == 20 < parked.value == 934 < parked.high < 1_000


def test_arrivals_and_parked_are_searched_separately() -> None:
    """Long waits at night do not hide the arrivals of the day, and the other way round."""
    night = minutes(60, 10, 60_000)
    day = minutes(60, 600_000, 1_000, start_s=43_200)
    found = advise_workers(joined(night, day))
    assert found.arrivals_per_s is not None and found.parked is not None
    assert found.arrivals_per_s.value == 10_000
    assert found.parked.value == 60_000
    assert found.workers == 8
    assert "62.5% of the CPU and 7.5% of the places of 8 workers each." in found.reason


def test_arrivals_are_those_of_a_second() -> None:
    """A minute of 30,000 may be a second of 30,000, which takes one worker 15 seconds."""
    start = datetime(2026, 11, 20, 6, tzinfo=UTC)
    rows = [
        {"kind": "park", "minute": start + timedelta(minutes=place), "began": 30_000}
        | {"began_peak": 30_000 if place % 5 == 0 else 500}
        for place in range(1_440)
    ]
    found = advise_workers(minutes_of_kinds(parked_minutes(rows), {}))
    assert found.arrivals_per_s is not None
    assert (found.arrivals_per_s.value, found.workers) == (30_000, 22)
    assert "30,000 operations arrive in a second" in found.reason
    once = [row | {"began_peak": 30_000 if place == 7 else 500} for place, row in enumerate(rows)]
    found = advise_workers(minutes_of_kinds(parked_minutes(once), {}))
    assert found.workers == 1
    assert "For the highest peak alone, of 30,000 in a second and 0 parked" in found.reason


def test_one_minute_in_a_thousand_may_have_more() -> None:
    """Of a whole day the second highest minute counts; of other days' peaks the highest one."""
    day = [(60 * place, 60 + place, place) for place in range(1_440)]
    found = advise_workers(joined(day, minutes(100, 60, 5, start_s=86_400))).parked
    assert found is not None
    assert (found.low, found.value, found.highest) == (1_435, 1_438, 1_439)
    assert found.high == pytest.approx(1_439 + 1.96 * math.sqrt(1_439), rel=0.01)


def test_a_sample_is_scaled_and_less_certain() -> None:
    """A tenth of the operations stands for all of them."""
    row = {"kind": "park", "began": 60, "parked_peak": 40}
    hour = [datetime(2026, 11, 20, 6, minute, tzinfo=UTC) for minute in range(60)]
    rows = parked_minutes(row | {"minute": minute} for minute in hour)
    found = {
        share: advise_workers(minutes_of_kinds(rows, {"park": share})).parked
        for share in (1.0, 0.1)
    }
    assert found[1.0] is not None and found[0.1] is not None
    assert (found[1.0].value, found[0.1].value) == (40, 400)
    assert found[0.1].high == pytest.approx(10 * found[1.0].high)


def test_a_short_look_is_too_thin() -> None:
    """Few minutes, or few operations, are no hour to plan by."""
    for few in (minutes(5, 10_000, 1), minutes(60, LEAST_OPERATIONS // 100, 1), []):
        found = advise_workers(joined(few))
        assert (found.workers, found.is_thin) == (None, True)
        assert "Too little data" in found.reason


def test_jobs_are_not_parked_and_a_delay_is_no_timeout() -> None:
    """They wait in a store, and their deadline is when they are meant to run.

    Nor has an event stream a timeout to advise on: no fire ends it.
    """

    def kind_row(kind: str, fired: int) -> dict[str, Any]:
        row = {"kind": kind, "operations": 5_000, "fired": fired, "expired": 5_000 - fired}
        return row | {"lost": 0, "timeout_us_p50": TIMEOUT_US}

    def minutes_of(kind: str, waits_s: float) -> list[dict[str, Any]]:
        hour = [datetime(2026, 11, 20, 6, minute, tzinfo=UTC) for minute in range(60)]
        row = {"kind": kind, "began": 600, "wait_s": waits_s * 600, "parked_peak": 10 * waits_s}
        return [row | {"minute": minute, "parked_mean": 10 * waits_s} for minute in hour]

    kinds = {"park": 4_000, "job:mail": 0, "job:cancel": 4_000, ParkedStream.kind: 0}
    ends = {"outcome": "fired", "bucket": 1_000, "count": 4_000}
    found = advise_settings(
        by_kind=[kind_row(*row) for row in kinds.items()],
        survival=survival_of_kinds([ends | {"kind": kind} for kind in ("park", "job:cancel")]),
        parked=parked_minutes([*minutes_of("park", 2), *minutes_of("job:mail", 900)]),
        targets=Targets(),
        capacity=Capacity(),
    )
    assert {timeout.kind for timeout in found.timeouts} == {"park"}
    assert found.workers.parked is not None and found.workers.arrivals_per_s is not None
    assert found.workers.arrivals_per_s.value == pytest.approx(10)
    assert found.workers.parked.value == pytest.approx(20)
