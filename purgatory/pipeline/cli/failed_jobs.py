"""The delayed jobs that ended as failed, by each engine: their outcome is how their wait ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

from purgatory.pipeline.duck.connection import addresses, parquet
from purgatory.pipeline.duck.duck_table import DuckOutcomeTable

FailedJobs = Sequence[Mapping[str, Any]]
"""Rows of kind, jobs (their number), and error (of the one that failed last)."""

_COLUMNS = ("kind", "jobs", "error")


def failed_by_spark(outcomes: DataFrame) -> FailedJobs:
    """Return the failed jobs of `outcomes`, by kind."""
    rows = (
        outcomes.where("state = 'failed'")
        .groupBy("kind")
        .agg(
            F.expr("count(*)").alias("jobs"),
            F.expr(
                "max_by(error, struct(completed_at, operation_id)) FILTER (WHERE error IS NOT NULL)"
            ).alias("error"),
        )
        .select(*_COLUMNS)
        .collect()
    )
    return [row.asDict() for row in rows]


def failed_by_duckdb(connection: duckdb.DuckDBPyConnection, table: DuckOutcomeTable) -> FailedJobs:
    """Return the failed jobs of `table`, by kind."""
    files = parquet(addresses(table.folder, *table.published()))
    rows = connection.execute(
        f"""
        SELECT kind, count(*), max_by(error, struct_pack(at := completed_at, id := operation_id))
            FILTER (WHERE error IS NOT NULL)
        FROM {files} WHERE state = 'failed' GROUP BY kind
        """  # noqa: S608 # `parquet` quotes the paths
    ).fetchall()
    return [dict(zip(_COLUMNS, row, strict=True)) for row in rows]
