"""Records dated after the present: a wrong clock wrote them.

Believing one of them would make it the latest event of the journal, and every operation that waits
today lost. They are kept apart, and are merged by the first run for which they are in the past.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

from purgatory.pipeline.outcomes.event_summary import from_micros, is_future
from purgatory.pipeline.outcomes.outcomes import has_times
from purgatory.pipeline.outcomes.schema import COMPLETIONS, EVENT_SCHEMA, WATCHED

DEFAULT_TOLERANCE_S = 300.0
"""How far the clocks of the workers may be ahead of this machine's."""


def past_events(events: DataFrame, limit: datetime) -> DataFrame:
    """Return `events` without those after `limit`."""
    return events.where(~F.coalesce(has_times() & is_future(limit), F.lit(False)))


def future_events(events: DataFrame, limit: datetime) -> DataFrame:
    """Return the valid `events` after `limit`."""
    return events.where(has_times() & is_future(limit))


def events_of_outcomes(outcomes: DataFrame, limit: datetime) -> DataFrame:
    """Return the future ends and starts in a table of outcomes, as the events they were made of."""
    event = F.when(F.col("outcome").isin(*COMPLETIONS), F.col("outcome")).otherwise(WATCHED)
    columns = {"event": event, "at": F.coalesce("completed_at", "watched_at")}
    return outcomes.where(_has_future(limit)).select(
        *(
            columns.get(field.name, F.col(field.name)).cast(field.dataType).alias(field.name)
            for field in EVENT_SCHEMA
        )
    )


def past_outcomes(outcomes: DataFrame, limit: datetime) -> DataFrame:
    """Return outcomes without what is after `limit`: an end then leaves the operation open."""
    is_ahead = _has_future(limit)
    # Of an operation with a single record, nothing but its end is known.
    is_kept = ~is_ahead | ((F.col("watched_at") <= F.lit(limit)) & (F.col("records") > 1))
    of_end = ("completed_at", "wait_us", "lateness_us", "completed_by")
    return outcomes.where(is_kept).withColumns(
        {
            "outcome": F.when(is_ahead, "open").otherwise(F.col("outcome")),
            "records": F.col("records") - is_ahead.cast("int"),
            **{name: F.when(~is_ahead, F.col(name)) for name in of_end},
        }
    )


def latest_time(outcomes: DataFrame) -> datetime | None:
    """Return the latest event that a table of outcomes shows."""
    latest = F.unix_micros(F.max(F.coalesce("completed_at", "watched_at")))
    micros = outcomes.agg(latest).collect()[0][0]
    return None if micros is None else from_micros(micros)


def _has_future(limit: datetime) -> Column:
    return F.greatest("watched_at", "completed_at") > F.lit(limit)
