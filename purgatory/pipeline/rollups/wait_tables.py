"""The job `waits`: writes the tables of waits from rollups."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import duckdb

from purgatory.pipeline.console import OnProgress
from purgatory.pipeline.rollups.rollup_files import NodeFiles, Part, Rollups
from purgatory.pipeline.spark.tables import Tables
from purgatory.pipeline.sql import waits as sql
from purgatory.pipeline.sql.duck import parquet
from purgatory.pipeline.sql.values import text
from purgatory.pipeline.wait_columns import JOB, step_width_s

FailedJobs = Sequence[Mapping[str, Any]]
"""Rows of kind, jobs (their number), and error (of the one that failed last)."""

_COLUMNS = ("kind", "jobs", "error")


def failed_jobs(connection: duckdb.DuckDBPyConnection, rollups: Rollups) -> FailedJobs:
    """Return the failed jobs by kind, most first."""
    rows = connection.execute(
        f"""
        SELECT kind, sum(count) FILTER (part = {Part.FAILED.value})::BIGINT,
               min_by(name, struct_pack(later := -number, name := name))
                   FILTER (part = {Part.ERROR.value})
        FROM {parquet(rollups.of_all())}
        WHERE part IN ({Part.FAILED.value}, {Part.ERROR.value}) GROUP BY kind ORDER BY 2 DESC, kind
        """  # `parquet` quotes the paths
    ).fetchall()
    return [dict(zip(_COLUMNS, row, strict=True)) for row in rows]


_PARTS = "rollup_parts"


def write_waits(
    connection: duckdb.DuckDBPyConnection,
    rollups: Rollups,
    tables: Tables,
    on_progress: OnProgress,
) -> None:
    """Write the tables."""
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {_PARTS} AS FROM {parquet(rollups.of_all())}")
    queries = {
        "by_kind": sql.by_kind(_PARTS),
        "polls": sql.polls(_PARTS),
        "by_key_prefix": sql.by_key_prefix(_PARTS),
        "hot_keys": sql.hot_keys(_PARTS),
        "timeline": _timeline(rollups),
        "wait_counts": sql.wait_counts(_PARTS),
        "lateness_counts": sql.lateness_counts(_PARTS),
    }
    on_progress(f"{JOB}: tables")
    tables.fill(JOB, lambda new: _fill(connection, rollups, tables, queries, new))
    connection.execute(f"DROP TABLE {_PARTS}")


def _fill(
    connection: duckdb.DuckDBPyConnection,
    rollups: Rollups,
    tables: Tables,
    queries: Mapping[str, str],
    new: str,
) -> None:
    files = NodeFiles(tables.folder)
    for name, query in queries.items():
        path = files.path(f"{new}/{name}/part-0.parquet")
        path.parent.mkdir(parents=True)
        connection.execute(f"COPY ({query}) TO {text(str(path))} (FORMAT parquet)")
    for name in ("by_hour", "parked"):
        folder = files.path(f"{new}/{name}")
        folder.mkdir(parents=True)
        for number, file in enumerate(rollups.of_months(name)):
            shutil.copyfile(file, folder / f"part-{number}.parquet")
    files.publish(new)


def _timeline(rollups: Rollups) -> str:
    hours = rollups.manifest.hours.values()
    width_s = step_width_s(max(hour.last_s for hour in hours) - min(hour.first_s for hour in hours))
    # Days have hours, months have six hours, and the shorter the width, the fewer are the files.
    if width_s >= 21_600:
        return sql.timeline(_PARTS, width_s)
    files = rollups.of_days("parts") if width_s >= 3_600 else rollups.of_hours()
    return sql.timeline(parquet(files), width_s)
