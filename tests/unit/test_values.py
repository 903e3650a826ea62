"""Values that are checked when they are given, and copied as they are."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import redis

from purgatory.client import RefusedError
from purgatory.errors import CursorExpiredError, LimitReachedError, PurgatoryError
from purgatory.job_errors import CorruptJobError
from purgatory.jobs import (
    DuplicateJobError,
    InvalidDeadlineError,
    Job,
    JobChangedError,
    JobConflictError,
    JobNotFoundError,
    JobsNotFiredError,
    RetryJobError,
    RetryPolicy,
    StoreUnavailableError,
)
from purgatory.jobs.redis import RedisJobStore
from purgatory.ownership.redis import RedisLeaseStore
from purgatory.signals.redis import RedisSignals
from tests.cases import cases


def test_ceilings_double_up_to_the_maximum() -> None:
    """However many attempts there were."""
    policy = RetryPolicy(first_ms=100, max_ms=1_000)
    assert [policy.ceiling_ms(attempt) for attempt in (1, 2, 3, 4, 5, 1_000)] == [
        100, 200, 400, 800, 1_000, 1_000,
    ]  # fmt: skip
    slower = RetryPolicy(first_ms=100, max_ms=1_000, factor=1.5)
    assert [slower.ceiling_ms(attempt) for attempt in (1, 2, 3, 10**6)] == [100, 150, 225, 1_000]


@cases("jitter, shortest_ms", [(0.5, 51), (1.0, 0), (0.25, 76), (0.0, 101), (1 / 3, 68)])
def test_the_share_jitter_of_a_delay_is_random(jitter: float, shortest_ms: int) -> None:
    """From the ceiling, both included, down to what is not random."""
    drawn = 0.0
    policy = RetryPolicy(first_ms=101, max_ms=101, jitter=jitter, random=lambda: drawn)
    assert (policy.delay_ms(1), policy.delay_s(1)) == (101, 0.101)
    drawn = 1 - 2**-53
    assert policy.delay_ms(7) == shortest_ms


def test_delays_differ() -> None:
    """By default between a half and all of the ceiling."""
    delays = {RetryPolicy(first_ms=100, max_ms=1_000).delay_ms(4) for _ in range(500)}
    assert len(delays) > 100
    assert 400 <= min(delays) <= max(delays) <= 800


@cases(
    "options, name",
    [
        ({"first_ms": 0}, "first_ms"),
        ({"first_ms": 2, "max_ms": 1}, "first_ms"),
        ({"first_ms": 1e3}, "first_ms"),
        ({"max_ms": 10**15}, "max_ms"),
        ({"factor": 0.5}, "factor"),
        ({"factor": float("nan")}, "factor"),
        ({"factor": 1001}, "factor"),
        ({"factor": float("inf")}, "factor"),
        ({"jitter": 1.1}, "jitter"),
        ({"jitter": -0.1}, "jitter"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], name: str) -> None:
    """With the name of the option."""
    with pytest.raises(ValueError, match=f"{name} is "):
        RetryPolicy(**options)


JOB = Job(id="1", handler="note", payload_json="null", deadline_ms=3, due_ms=3, created_ms=1)


@cases(
    "error",
    [
        PurgatoryError(),
        CursorExpiredError(key="k", earliest="a-1", head="a-2"),
        LimitReachedError("full", limit="max_parked", maximum=3),
        InvalidDeadlineError("late", param="at"),
        JobNotFoundError("1"),
        DuplicateJobError(JOB),
        JobConflictError(JOB, "cancelled"),
        JobChangedError(JOB, 7),
        CorruptJobError("1", "it is no JSON"),
        RetryJobError("busy", after=3),
        StoreUnavailableError("away"),
        JobsNotFiredError("k", "a-1", "away"),
        RefusedError(422, {"type": "/problems/bad-parameter", "detail": "no"}),
    ],
)
def test_an_error_is_copied_as_it_is(error: PurgatoryError) -> None:
    """Also through pickle, as from a process of a pool, which else would hang or break."""
    error.add_note("seen")
    for other in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert type(other) is type(error)
        assert (str(other), other.args, vars(other)) == (str(error), error.args, vars(error))


@cases("make", [RedisSignals, RedisJobStore, RedisLeaseStore])
@cases(
    "given, shown",
    [
        (5, "5 of <class 'int'>"),
        (None, "None of <class 'NoneType'>"),
        (b"redis://:secret@localhost", r"\*\*\*@localhost' of <class 'bytes'>"),
        (redis.Redis(), "of <class 'redis.client.Redis'>"),
    ],
)
def test_what_is_no_server_is_refused(
    make: Callable[[Any], object], given: Any, shown: str
) -> None:
    """By the value, without a password, and what to give."""
    with pytest.raises(TypeError, match=f'{shown}: give a URL, such as "redis://') as caught:
        make(given)
    assert "secret" not in str(caught.value)
