"""Advice: right where the truth is known, silent where the data is too thin."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from purgatory.pipeline.advise.advice import AdviceTargets, advise
from purgatory.pipeline.advise.timeouts import LEAST_FIRED, Ended, TimeoutAdvice, advise_timeout
from purgatory.pipeline.advise.wheel_geometry import (
    BUCKET_BYTES,
    DEFAULT,
    LEAST_TIMERS,
    TIMER_BYTES,
    Timer,
    advise_geometry,
    measure,
)
from purgatory.pipeline.advise.workers import LEAST_OPERATIONS, Capacity, Minute, advise_workers
from purgatory.pipeline.statistics.survival import Step, kaplan_meier, survival_at

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
    return advise_timeout(Ended("park", 2 * fired, fired, fired, 0, TIMEOUT_US), steps, share)


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


def timers(count: int, delay_ms: int, share: float) -> list[Timer]:
    """Return timers of one delay that leave after `share` of it."""
    return [
        Timer(7 * place, 7 * place + delay_ms, 7 * place + round(delay_ms * share))
        for place in range(count)
    ]


def test_the_default_wheel_is_kept_where_it_is_as_good() -> None:
    """Timers that leave at once never move: there is nothing to gain."""
    found = advise_geometry(timers(1_000, 25_000, 0.001), peak_parked=500)
    assert found.advised is found.default
    assert found.advised is not None
    assert (found.advised.tick_ms, found.advised.wheel_size) == DEFAULT
    assert "Keep the default" in found.reason


def test_a_larger_wheel_is_advised_where_timers_move() -> None:
    """Timers of half a second that expire move once on 256 ms, and never on 512."""
    found = advise_geometry(timers(1_000, 500, 1.1), peak_parked=500)
    assert found.advised is not None and found.default is not None
    assert (found.advised.tick_ms, found.advised.wheel_size) == (1, 512)
    assert (found.advised.cascades, found.default.cascades) == (0, 1)
    assert "With 512 buckets of 1 ms, rather than 256 of 1 ms" in found.reason
    assert "0.00 times rather than 1.00" in found.reason


def test_a_coarser_tick_is_used_if_it_is_allowed() -> None:
    """A tick of 10 ms lets a smaller wheel span the same half second."""
    found = advise_geometry(timers(1_000, 500, 1.1), peak_parked=500, max_tick_ms=10)
    assert found.advised is not None
    assert (found.advised.tick_ms, found.advised.wheel_size) == (10, 64)


def test_memory_is_of_timers_buckets_and_slots() -> None:
    """With few timers each has a bucket; with many there are no more buckets than slots."""
    few = measure(timers(200, 100, 1), 1, 256, peak_parked=10)
    assert few.bytes == 10 * TIMER_BYTES + 10 * BUCKET_BYTES + 256 * 8
    many = measure(timers(200, 100, 1), 1, 256, peak_parked=10_000)
    assert many.bytes == 10_000 * TIMER_BYTES + 256 * BUCKET_BYTES + 256 * 8


def test_few_timers_are_too_thin() -> None:
    """Without timers to go by the default is kept, and no table is made up."""
    found = advise_geometry(timers(LEAST_TIMERS - 1, 100, 1), peak_parked=1)
    assert (found.advised, found.candidates, found.is_thin) == (None, (), True)


def minutes(count: int, operations: int, wait_s: float) -> list[Minute]:
    """Return minutes that are all alike."""
    return [Minute(60 * place, operations, operations * wait_s, 0.0) for place in range(count)]


def test_workers_follow_littles_law() -> None:
    """Ten a second that stay for 20 s are 200 at once; workers hold what is parked, or serve."""
    found = advise_workers(minutes(60, 600, 20), Capacity(parked=100, utilisation=0.5))
    assert found.parked is not None
    assert (found.parked.value, found.parked.low, found.parked.high) == (200, 200, 200)
    assert found.workers == 4
    assert "the number of parked operations" in found.reason
    busy = advise_workers(minutes(60, 60_000, 0.001), Capacity(cpu_us=1_000, utilisation=0.5))
    assert (busy.workers, "bottleneck is CPU" in busy.reason) == (2, True)


def test_the_busiest_hour_is_the_one_that_counts() -> None:
    """A quiet day around one busy hour changes nothing; silent minutes in an hour do."""
    quiet = [Minute(60 * place, 1, 1.0, 0.0) for place in range(600)]
    busy = [Minute(36_000 + 60 * place, 600, 12_000.0, 0.0) for place in range(0, 60, 2)]
    found = advise_workers([*quiet, *busy, *(Minute(90_000, 1, 1.0, 0.0),)])
    assert found.parked is not None and found.hour_start_s is not None
    assert found.parked.value == pytest.approx(100, rel=0.05)
    assert found.parked.low < found.parked.value < found.parked.high
    assert 36_000 - 120 <= found.hour_start_s <= 36_000


def test_a_short_look_is_too_thin() -> None:
    """Few minutes, or few operations, are no hour to plan by."""
    for few in (minutes(5, 10_000, 1), minutes(60, LEAST_OPERATIONS // 100, 1), []):
        found = advise_workers(few)
        assert (found.workers, found.is_thin) == (None, True)
        assert "Too little data" in found.reason


def test_jobs_are_not_parked_and_a_delay_is_no_timeout() -> None:
    """They wait in a store, and one that no key ends is to run at its deadline."""

    def kind_row(kind: str, fired: int) -> dict[str, Any]:
        row = {"kind": kind, "operations": 5_000, "fired": fired, "expired": 5_000 - fired}
        return row | {"lost": 0, "timeout_us_p50": TIMEOUT_US}

    def minutes_of(kind: str, waits_s: float) -> list[dict[str, Any]]:
        hour = [datetime(2026, 11, 20, 6, minute, tzinfo=UTC) for minute in range(60)]
        row = {"kind": kind, "began": 600, "wait_s": waits_s * 600, "parked_peak": 10 * waits_s}
        return [row | {"minute": minute, "parked_mean": 10 * waits_s} for minute in hour]

    ends = {"outcome": "fired", "bucket": 1_000, "count": 4_000}
    found = advise(
        by_kind=[kind_row("park", 4_000), kind_row("job:mail", 0), kind_row("job:cancel", 4_000)],
        wait_counts=[ends | {"kind": kind} for kind in ("park", "job:cancel")],
        parked=[*minutes_of("park", 2), *minutes_of("job:mail", 900)],
        timers=[],
        targets=AdviceTargets(),
    )
    assert {timeout.kind for timeout in found.timeouts} == {"park", "job:cancel"}
    assert found.workers.parked is not None and found.workers.arrivals_per_s is not None
    assert found.workers.arrivals_per_s.value == pytest.approx(10)
    assert found.workers.parked.value == pytest.approx(20)
    assert found.geometry.peak_parked == 20
