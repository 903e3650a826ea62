"""Connections to DuckDB, and names and values in its SQL."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable
from datetime import datetime

import duckdb

from purgatory.pipeline.spark.folder import Folder, LocalFolder
from purgatory.pipeline.spark.folders import RemoteFolder

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
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def text(value: str) -> str:
    """Return `value` as a literal."""
    return "'" + value.replace("'", "''") + "'"


def texts(values: Iterable[str]) -> str:
    """Return `values` as a list of literals, with commas."""
    return ", ".join(map(text, values))


def time(value: datetime) -> str:
    """Return `value` as a literal."""
    return f"TIMESTAMPTZ {text(value.isoformat())}"


def attach(connection: duckdb.DuckDBPyConnection, folder: Folder) -> Folder:
    """Let `connection` read and write the files of `folder`, and return it."""
    if isinstance(folder, RemoteFolder):
        # Only needed here.
        from fsspec.implementations.arrow import ArrowFSWrapper

        kind = folder.file_system.type_name
        if not connection.filesystem_is_registered(kind):
            connection.register_filesystem(ArrowFSWrapper(folder.file_system))
    return folder


def address(folder: Folder, path: str) -> str:
    """Return `path` in `folder` as DuckDB names it, once `attach` was called."""
    if isinstance(folder, RemoteFolder):
        return f"{folder.file_system.type_name}://{folder.path(path)}"
    return folder.named(path)


def new_address(folder: Folder, path: str) -> str:
    """Return the address of a file or folder that is to be written, in a folder that exists."""
    if isinstance(folder, LocalFolder):
        folder.local(path).parent.mkdir(parents=True, exist_ok=True)
    return address(folder, path)


def addresses(folder: Folder, *paths: str) -> list[str]:
    """Return the addresses of the Parquet files below `paths` in `folder`."""
    return [address(folder, file.path) for path in paths for file in folder.files(".parquet", path)]


def parquet(paths: Iterable[str]) -> str:
    """Return the table of the files at `paths`, which are no patterns."""
    # Brackets in a class stand for themselves.
    escaped = (path.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]") for path in paths)
    return f"read_parquet([{texts(escaped)}], hive_partitioning = false)"
