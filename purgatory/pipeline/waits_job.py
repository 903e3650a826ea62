"""The job `waits`: from the table of outcomes to the tables that a person reads."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

from purgatory.pipeline.outcome_table import OutcomeTable
from purgatory.pipeline.parked import parked
from purgatory.pipeline.progress import Say
from purgatory.pipeline.tables import Tables
from purgatory.pipeline.waits import (
    MEASURES,
    hot_keys,
    lateness_counts,
    timeline,
    wait_counts,
    waits_by,
    with_hours,
    with_prefixes,
)

JOB = "waits"

_WIDTHS_S = (60, 300, 900, 3_600, 21_600, 86_400)
_MOST_STEPS = 300


def run(outcome_table: OutcomeTable, tables: Tables, say: Say) -> None:
    """Write the tables. Raises NothingToReadError where there are no outcomes."""
    outcomes = outcome_table.read()
    as_of = outcome_table.manifest().as_of_time()
    assert as_of is not None, "what was published has seen an event"
    tables.write(JOB, wait_tables(outcomes, as_of=as_of, width_s=_width_s(outcomes)), say)


def wait_tables(outcomes: DataFrame, *, as_of: datetime, width_s: int) -> dict[str, DataFrame]:
    """Return every table of the job by its name."""
    return {
        "by_kind": waits_by(outcomes, ["kind"], (*MEASURES, "timeout_us")),
        "by_key_prefix": waits_by(with_prefixes(outcomes), ["key_prefix"]),
        "by_hour": waits_by(with_hours(outcomes), ["kind", "hour"]),
        "hot_keys": hot_keys(outcomes),
        "parked": parked(outcomes, as_of=as_of),
        "timeline": timeline(outcomes, width_s),
        "wait_counts": wait_counts(outcomes, as_of=as_of),
        "lateness_counts": lateness_counts(outcomes),
    }


def _width_s(outcomes: DataFrame) -> int:
    """Return a width of the timeline's steps with which they are not too many for a chart."""
    seconds = F.unix_seconds("watched_at")
    span_s = outcomes.agg(F.max(seconds) - F.min(seconds)).first()[0] or 0  # type: ignore[index] # an aggregate has a row
    return next((width for width in _WIDTHS_S if span_s / width <= _MOST_STEPS), _WIDTHS_S[-1])
