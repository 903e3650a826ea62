"""The delayed jobs that ended as failed, from rollups: their outcome is how their wait ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import duckdb

from purgatory.pipeline.duck.connection import parquet
from purgatory.pipeline.rollups.parts import Part
from purgatory.pipeline.rollups.rollup_files import Rollups

FailedJobs = Sequence[Mapping[str, Any]]
"""Rows of kind, jobs (their number), and error (of the one that failed last)."""

_COLUMNS = ("kind", "jobs", "error")


def failed_jobs(connection: duckdb.DuckDBPyConnection, rollups: Rollups) -> FailedJobs:
    """Return the failed jobs, by kind."""
    rows = connection.execute(
        f"""
        SELECT kind, sum(count) FILTER (part = {Part.FAILED.value})::BIGINT,
               min_by(name, struct_pack(later := -number, name := name))
                   FILTER (part = {Part.ERROR.value})
        FROM {parquet(rollups.of_all())}
        WHERE part IN ({Part.FAILED.value}, {Part.ERROR.value}) GROUP BY kind
        """  # `parquet` quotes the paths
    ).fetchall()
    return [dict(zip(_COLUMNS, row, strict=True)) for row in rows]
