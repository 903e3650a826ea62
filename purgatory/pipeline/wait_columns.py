"""The tables of waits as relations of DuckDB: a year has millions of rows, too many for Python.

They are read from files: to register a table of Arrow imports pandas, which takes longer than the
rest of a report's imports.
"""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from purgatory.pipeline.spark.tables import Tables
from purgatory.pipeline.sql.duck import address, attach, connected, parquet

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


def relation(tables: Tables, name: str) -> Relation:
    """Return a table that `waits` wrote. Raises NothingToReadError if it has not run."""

    def read() -> Relation:
        # One thread adds numbers in the same order each time.
        connection = connected(threads=1)
        folder = attach(connection, tables.folder)
        files = parquet(address(folder, path) for path in tables.paths(JOB, name))
        # Read once: an object store would be asked for each query.
        connection.execute(f"CREATE TEMP TABLE {name} AS SELECT * FROM {files}")
        return connection.table(name)

    return tables.known(JOB, name, Relation, read)


def rows_of(table: Relation, query: str) -> list[Any]:
    """Return the rows, as tuples, of a query over `found`, which is the table."""
    result = table.query("found", query)
    assert result is not None, "a query has rows"
    return result.fetchall()
