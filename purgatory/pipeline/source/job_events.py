"""Events of delayed jobs, from their store, in the schema of the journal."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

from purgatory.pipeline.outcomes.schema import EVENT_SCHEMA, JOB_KIND

_FINAL = ("done", "failed", "cancelled")
_NOBODY = "nobody"


def job_events(jobs: DataFrame) -> DataFrame:
    """Return an event (EVENT_SCHEMA) for each job of `jobs` that has ended.

    `jobs` is the table "jobs" of the format "purgatory". The identifiers are the same as in a
    journal: with its events in one DataFrame, `outcomes` has each job once. Keys are as in the
    store, whatever the journal's key rule.
    """
    # As in `purgatory.jobs.end_listeners`: a missed job has not run and will not.
    event = F.when(F.col("outcome") == "missed", "cancelled").otherwise(F.col("outcome"))
    lateness_us = F.greatest("lateness_ms", F.lit(0).cast("long")) * 1_000
    # The two times may come from two clocks.
    at = F.greatest("finished", "created")
    columns = {
        "operation_id": F.concat(F.lit(JOB_KIND), "id"),
        "event": event,
        "seq": F.lit(0),
        "kind": F.concat(F.lit(JOB_KIND), "handler"),
        "keys": F.col("keys"),
        "worker": F.coalesce("worker", F.lit(_NOBODY)),
        "at": at,
        "watched_at": F.col("created"),
        "deadline": F.col("deadline"),
        "completed_at": at,
        "lateness_us": F.when((event == "expired") & F.col("lateness_ms").isNotNull(), lateness_us),
        "completed_by": F.col("fired_key"),
        "job_id": F.col("id"),
        "handler": F.col("handler"),
        "attempt": F.col("attempt"),
        "state": F.col("state"),
        "error": F.col("error"),
    }
    return jobs.where(F.col("state").isin(*_FINAL)).select(
        *(columns[field.name].cast(field.dataType).alias(field.name) for field in EVENT_SCHEMA)
    )
