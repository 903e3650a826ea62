"""The job `waits`: writes the tables of waits from the table of outcomes."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

from purgatory.pipeline.console.progress import OnProgress
from purgatory.pipeline.outcomes.outcome_table import OutcomeTable
from purgatory.pipeline.spark.cached import Cached
from purgatory.pipeline.spark.tables import Tables
from purgatory.pipeline.statistics.percentiles import places, value_counts
from purgatory.pipeline.waits.aggregates import aggregates, bucket_counts
from purgatory.pipeline.waits.concurrency import concurrency
from purgatory.pipeline.waits.wait_statistics import (
    MEASURES,
    PERCENTS,
    frequent_prefixes,
    hot_keys,
    lateness_counts,
    timeline,
    wait_counts,
    waits_by,
    waits_of_aggregates,
    with_hours,
    with_prefixes,
)

JOB = "waits"

_BY_HOUR = ["kind", "hour"]
_WIDTHS_S = (60, 300, 900, 3_600, 21_600, 86_400)
_MOST_STEPS = 300


def run(outcome_table: OutcomeTable, tables: Tables, on_progress: OnProgress) -> None:
    """Write the tables. Raises NothingToReadError if there are no outcomes."""
    outcomes = outcome_table.read()
    as_of = outcome_table.manifest().as_of_time()
    assert as_of is not None, "a published table has an event"
    with Cached() as cached:
        found = wait_tables(outcomes, as_of=as_of, width_s=_width_s(outcomes), cached=cached)
        tables.write(JOB, found, on_progress)


def wait_tables(
    outcomes: DataFrame, *, as_of: datetime, width_s: int, cached: Cached
) -> dict[str, DataFrame]:
    """Return all tables of the job by name.

    What several of them are made from is computed once, by hour, and added to `cached`.
    """
    hourly, measures = with_hours(outcomes), (*MEASURES, "timeout_us")
    counted = cached.add(aggregates(hourly, _BY_HOUR, measures, as_of=as_of))
    values = cached.add(value_counts(hourly, _BY_HOUR, measures, _places_by_hour_and_kind(counted)))
    frequent = cached.add(frequent_prefixes(outcomes))
    return {
        "by_kind": waits_of_aggregates(counted, values, ["kind"], measures),
        "by_key_prefix": waits_by(with_prefixes(outcomes, frequent), ["key_prefix"]),
        "by_hour": waits_of_aggregates(counted, values, _BY_HOUR),
        "hot_keys": hot_keys(outcomes),
        "parked": concurrency(outcomes, as_of=as_of),
        "timeline": timeline(outcomes, width_s),
        "wait_counts": wait_counts(counted),
        "lateness_counts": lateness_counts(counted),
    }


def _places_by_hour_and_kind(counted: DataFrame) -> DataFrame:
    """Return the buckets of each hour with a percentile of the hour or of the whole kind."""
    bucket = ["kind", "measure", "bucket"]
    hourly = bucket_counts(counted, _BY_HOUR)
    of_kinds = places(bucket_counts(counted, ["kind"]), ["kind"], PERCENTS)
    in_kinds = hourly.join(F.broadcast(of_kinds), bucket, "left_semi")
    own = places(hourly.where(F.col("measure").isin(*MEASURES)), _BY_HOUR, PERCENTS)
    columns = [*_BY_HOUR, "measure", "bucket"]
    return in_kinds.select(*columns).union(own.select(*columns)).distinct()


def _width_s(outcomes: DataFrame) -> int:
    """Return a width of the timeline's steps with which a chart has not too many."""
    seconds = F.unix_seconds("watched_at")
    span_s = outcomes.agg(F.max(seconds) - F.min(seconds)).first()[0] or 0  # type: ignore[index] # an aggregate has a row
    return next((width for width in _WIDTHS_S if span_s / width <= _MOST_STEPS), _WIDTHS_S[-1])
