"""What runs the rules on an engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pyspark.sql.types import StructType

from purgatory.pipeline.console import OnProgress
from purgatory.pipeline.spark.folder import Folder

FEW_RECORDS = 50_000
"""Fewer are handled by one task of Spark: a shuffle would cost more."""


class Runner(ABC):
    """An engine with named relations, which the queries of `sql` read."""

    errors: tuple[type[Exception], ...]
    """The errors of the engine, among them those of damaged files."""

    @abstractmethod
    def read(
        self,
        name: str,
        schema: StructType,
        *places: tuple[Folder, Sequence[str]],
        rows: int,
        has_file: bool = False,
    ) -> None:
        """Let `name` be the columns of the Parquet files at paths in folders, about `rows`.

        With `has_file` there is one more column, `file`, the path of the row's file.
        """

    @abstractmethod
    def define(self, name: str, query: str) -> None:
        """Let `name` be the rows of `query`, which may read relations of other names."""

    @abstractmethod
    def rows(self, query: str) -> Sequence[Any]:
        """Return the rows of `query`, whose columns are read by name."""

    @abstractmethod
    def write(self, query: str, folder: Folder, path: str) -> None:
        """Write the rows of `query`, which are few, to a file in the new folder at `path`."""

    @abstractmethod
    def write_outcomes(
        self,
        folder: Folder,
        path: str,
        *,
        known: str | None,
        limit: datetime,
        as_of: datetime,
        grace_s: float,
        hours: int,
        records: int,
    ) -> None:
        """Write the outcomes of the events up to `limit` to the new folder at `path`.

        They are merged with the outcomes of the relation `known`, if given. `records` of both are
        in `hours` hours, each of which has a folder.
        """

    @abstractmethod
    def damaged(
        self,
        error: Exception,
        journal: Folder,
        table: Folder,
        rows: Mapping[str, int],
        *,
        is_first_enough: bool,
        on_progress: OnProgress,
    ) -> dict[str, str]:
        """Return the damaged files of the journal by path, and why; raise errors of other causes.

        `rows` are the rows of the new files by path.
        """


def of_outcomes(table: Folder) -> str:
    """Return what to do if none of the journal's files is damaged."""
    return (
        f"It belongs to the outcomes, not to the journal: restore {table} from a backup, or, if "
        "the journal still has all of its files, delete it and run again."
    )
