"""The job `waits`: writes the tables of waits from rollups, and reads them.

Large ones are relations of DuckDB: a year has millions of rows, too many for Python. They are read
from files: to register a table of Arrow imports pandas, which takes longer than the rest of a
report's imports.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from purgatory.pipeline.console import OnProgress
from purgatory.pipeline.rollups.rollup_files import NodeFiles, Part, Rollups
from purgatory.pipeline.spark.tables import Tables
from purgatory.pipeline.sql import waits as sql
from purgatory.pipeline.sql.duck import DuckRunner, address, connected, parquet
from purgatory.pipeline.sql.values import text

JOB = "waits"

_WIDTHS_S = (60, 300, 900, 3_600, 21_600, 86_400)
_MOST_STEPS = 300


def step_width_s(span_s: int) -> int:
    """Return a width of the timeline's steps with which a chart of `span_s` has not too many."""
    return next((width for width in _WIDTHS_S if span_s / width <= _MOST_STEPS), _WIDTHS_S[-1])


Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Relation = duckdb.DuckDBPyRelation

PERCENTS = ("p50", "p90", "p99")

FailedJobs = Sequence[Mapping[str, Any]]
"""Rows of kind, jobs (their number), and error (of the one that failed last)."""


def failed_jobs(connection: duckdb.DuckDBPyConnection, rollups: Rollups) -> FailedJobs:
    """Return the failed jobs by kind, most first."""
    return DuckRunner(connection).rows(
        f"""
        SELECT kind, sum(count) FILTER (part = {Part.FAILED.value})::BIGINT AS jobs,
               min_by(name, struct_pack(later := -number, name := name))
                   FILTER (part = {Part.ERROR.value}) AS error
        FROM {parquet(rollups.of_all())}
        WHERE part IN ({Part.FAILED.value}, {Part.ERROR.value})
        GROUP BY kind ORDER BY jobs DESC, kind
        """  # `parquet` quotes the paths
    )


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

    def fill(new: str) -> None:
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

    tables.fill(JOB, fill)
    connection.execute(f"DROP TABLE {_PARTS}")


def _timeline(rollups: Rollups) -> str:
    hours = rollups.manifest.hours.values()
    width_s = step_width_s(max(hour.last_s for hour in hours) - min(hour.first_s for hour in hours))
    # Days have hours, months have six hours, and the shorter the width, the fewer are the files.
    if width_s >= 21_600:
        return sql.timeline(_PARTS, width_s)
    files = rollups.of_days("parts") if width_s >= 3_600 else rollups.of_hours()
    return sql.timeline(parquet(files), width_s)


def relation(tables: Tables, name: str) -> Relation:
    """Return a table that `waits` wrote. Raises NothingToReadError if it has not run."""

    def read() -> Relation:
        # One thread adds numbers in the same order each time.
        connection = connected(threads=1)
        paths = tables.paths(JOB, name)
        files = parquet(address(connection, tables.folder, path) for path in paths)
        # Read once: an object store would be asked for each query.
        connection.execute(f"CREATE TEMP TABLE {name} AS SELECT * FROM {files}")
        return connection.table(name)

    return tables.known(JOB, name, Relation, read)


def rows_of(table: Relation, query: str) -> list[Any]:
    """Return the rows, as tuples, of a query over `found`, which is the table."""
    result = table.query("found", query)
    assert result is not None, "a query has rows"
    return result.fetchall()
