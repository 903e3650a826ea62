"""Crashes: when the worker of a lost operation died.

A lost operation waited until then at least. Leaving it out would make waits look shorter: under a
crash loop the long ones are those that are lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

from purgatory.pipeline.outcomes.event_summary import WorkerStart

CRASHED_AT = "crashed_at"


def with_crashes(outcomes: DataFrame, starts: Mapping[str, WorkerStart]) -> DataFrame:
    """Return `outcomes` with the time of the last record of a lost operation's worker.

    Column `crashed_at`: null for other operations, and if the worker was alive at the deadline: it
    did not crash, and the record of an end that may have come earlier is missing.
    """
    if not starts:
        return with_crash_column(outcomes)
    last = outcomes.sparkSession.createDataFrame(
        [(name, datetime.fromisoformat(start.last_at)) for name, start in starts.items()],
        "start string, last_at timestamp",
    )
    of_lost = F.when(F.col("outcome") == "lost", F.substring_index("operation_id", "-", 1))
    joined = outcomes.withColumn("start", of_lost).join(F.broadcast(last), "start", "left")
    is_crash = F.col("last_at") < F.col("deadline")
    return joined.withColumn(CRASHED_AT, F.when(is_crash, F.col("last_at"))).drop(
        "start", "last_at"
    )


def with_crash_column(outcomes: DataFrame) -> DataFrame:
    """Return `outcomes` with the column of `with_crashes`, null if nothing is known."""
    if CRASHED_AT in outcomes.columns:
        return outcomes
    return outcomes.withColumn(CRASHED_AT, F.lit(None).cast("timestamp"))
