"""DuckDB, in this process: connections, names and values in its SQL, and the rules run by it."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from purgatory.pipeline.schemas import COPY_SCHEMA, EVENT_SCHEMA
from purgatory.pipeline.spark.folder import Folder, LocalFolder
from purgatory.pipeline.sql import outcomes as sql
from purgatory.pipeline.sql.runner import Merge, Place, Runner
from purgatory.pipeline.sql.values import text, texts

# Of the whole process about half as much again is used.
DEFAULT_MEMORY = "2GiB"


def connected(
    *, memory: str = DEFAULT_MEMORY, threads: int | None = None
) -> duckdb.DuckDBPyConnection:
    """Return a connection to a database in memory, which spills to temporary files.

    They are deleted with it.
    """
    # Readable by this user only, which a folder that DuckDB makes is not.
    spilled = tempfile.mkdtemp(prefix="purgatory-duckdb-")
    options: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": memory,
        "temp_directory": spilled,
        "preserve_insertion_order": False,
    }
    if threads is not None:
        options["threads"] = threads
    connection = duckdb.connect(config=options)
    # When it is collected, or at the end of the process.
    weakref.finalize(connection, shutil.rmtree, spilled, ignore_errors=True)
    # Its progress would be on stdout, among the results.
    connection.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
    return connection


def address(connection: duckdb.DuckDBPyConnection, folder: Folder, path: str) -> str:
    """Return `path` in `folder` as `connection` names it, which can read and write it then."""
    if isinstance(folder, LocalFolder):
        return folder.named(path)
    kind = folder.file_system.type_name
    if not connection.filesystem_is_registered(kind):
        # Only needed here.
        from fsspec.implementations.arrow import ArrowFSWrapper

        connection.register_filesystem(ArrowFSWrapper(folder.file_system))
    return f"{kind}://{folder.path(path)}"


def parquet(paths: Iterable[str]) -> str:
    """Return the table of the files at `paths`, which are no patterns."""
    # Brackets in a class stand for themselves.
    escaped = (path.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]") for path in paths)
    return f"read_parquet([{texts(escaped)}], hive_partitioning = false)"


DUCK_ERRORS: tuple[type[Exception], ...] = (duckdb.Error,)


class DuckRunner(Runner):
    """DuckDB runs the rules; relations are views."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Use a connection."""
        self.connection = connection

    def read(self, name: str, schema: pa.Schema, *places: Place, rows: int) -> None:
        """Let `name` be the columns of the Parquet files at paths in folders."""
        columns = ", ".join(f'"{column}"' for column in schema.names)
        if schema is EVENT_SCHEMA:
            # Of the reader, whether or not it is asked to have it among all columns.
            columns, schema = f"{columns}, filename AS file", COPY_SCHEMA
        parts = [
            f"SELECT {columns} FROM {parquet(found)}"
            for folder, paths in places
            if (found := self._addresses(folder, paths))
        ]
        self.define(name, " UNION ALL ".join(parts) or _empty(schema))

    def _addresses(self, folder: Folder, paths: Sequence[str]) -> list[str]:
        if not all(path.endswith(".parquet") for path in paths):
            paths = [file.path for path in paths for file in folder.files(".parquet", path)]
        return [address(self.connection, folder, path) for path in paths]

    def define(self, name: str, query: str) -> None:
        """Let `name` be the rows of `query`."""
        self.connection.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS {query}")

    def rows(self, query: str) -> list[dict[str, Any]]:
        """Return the rows of `query`."""
        found = self.connection.execute(query)
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def write(self, query: str, folder: Folder, path: str) -> None:
        """Write the rows of `query` to a file in the new folder at `path`."""
        self._copy(query, folder, f"{path}/part-0.parquet")

    def write_outcomes(self, folder: Folder, path: str, merge: Merge) -> None:
        """Write the outcomes of a merge to the new folder at `path`, each hour to a folder."""
        parts = [sql.records_of_events(merge.limit)]
        if merge.known is not None:
            parts.append(sql.records_of_outcomes(merge.known))
        found = sql.outcomes(f"({' UNION ALL '.join(parts)})", merge.as_of, merge.grace_s)
        placed = f"SELECT *, {sql.HOUR} AS hour FROM ({found})"
        self._copy(placed, folder, path, ", PARTITION_BY (hour)")

    def _copy(self, query: str, folder: Folder, path: str, options: str = "") -> None:
        if isinstance(folder, LocalFolder):
            folder.local(path).parent.mkdir(parents=True, exist_ok=True)
        place = text(address(self.connection, folder, path))
        self.connection.execute(
            f"COPY ({query}) TO {place} (FORMAT parquet, COMPRESSION zstd{options})"
        )


def _empty(schema: pa.Schema) -> str:
    """Return no rows, with the columns of `schema`."""
    types = {
        pa.timestamp("us", "UTC"): "TIMESTAMPTZ",
        pa.list_(pa.string()): "VARCHAR[]",
        pa.map_(pa.string(), pa.string()): "MAP(VARCHAR, VARCHAR)",
    }
    columns = ", ".join(
        f'NULL::{types.get(field.type, str(field.type))} AS "{field.name}"' for field in schema
    )
    return f"SELECT {columns} WHERE false"
