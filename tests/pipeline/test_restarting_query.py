"""Queries that start again if Spark's Python worker was too slow; on Spark in test_live.py."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import SparkRuntimeException, StreamingQueryException

from purgatory.pipeline.stream.queries import MAX_STARTS, RestartingQuery

SLOW = "Python worker failed to connect back."


class Query:
    """A query that has ended, with an error or without."""

    name = "purgatory-waits"
    isActive = False  # noqa: N815 # Spark's name

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def exception(self) -> Exception | None:
        return self.error


class Starts:
    """Starts queries that end, or cannot be started, with the errors of a list."""

    def __init__(self, *errors: Exception | None, is_at_start: bool = False) -> None:
        self.errors = list(errors)
        self.is_at_start = is_at_start
        self.number = 0

    def __call__(self) -> Any:
        self.number += 1
        error = self.errors.pop(0)
        if error is not None and self.is_at_start:
            raise error
        return Query(error)


def test_restarts_are_further_and_further_apart() -> None:
    """The process that was too slow is to end before the next one starts."""
    pauses: list[float] = []
    query = RestartingQuery(Starts(*[StreamingQueryException(SLOW)] * MAX_STARTS), pauses.append)
    while query.isActive:
        pass
    assert len(pauses) == MAX_STARTS - 1
    assert max(pauses[:2]) < min(pauses[-2:])


def ended(starts: Starts) -> RestartingQuery:
    query = RestartingQuery(starts, lambda seconds: None)
    while query.isActive:
        pass
    return query


def test_a_slow_start_is_repeated() -> None:
    """Whether the query ends with it, or does not start: on Spark Connect."""
    slow = StreamingQueryException(SLOW)
    starts = Starts(slow, slow, None)
    assert ended(starts).exception() is None
    assert starts.number == 3
    starts = Starts(SparkRuntimeException(SLOW), None, is_at_start=True)
    ended(starts)
    assert starts.number == 2


def test_other_errors_end_the_query_at_once() -> None:
    """So does a machine that is too slow each time."""
    starts = Starts(StreamingQueryException("the disk is full"))
    assert "the disk is full" in str(ended(starts).exception())
    starts = Starts(*[StreamingQueryException(SLOW)] * MAX_STARTS)
    assert SLOW in str(ended(starts).exception())
    assert starts.number == MAX_STARTS
    starts = Starts(SparkRuntimeException("no such table"), is_at_start=True)
    with pytest.raises(SparkRuntimeException, match="no such table"):
        ended(starts)
