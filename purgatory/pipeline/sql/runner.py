"""What runs the rules on an engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from purgatory.pipeline.spark.folder import Folder

Place = tuple[Folder, Sequence[str]]
"""A folder, and paths in it."""

FEW_RECORDS = 50_000
"""Fewer are handled by one task of Spark: a shuffle would cost more."""


# Most of the time of a footer is a round trip to the object store.
_READERS = 8
READ_AHEAD = 256
"""Files of which footers are read ahead of the first bad one, and by a task of a cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Events up to `limit`, and the outcomes that they are merged with."""

    known: str | None
    """The relation of the outcomes, if there are any."""
    limit: datetime
    as_of: datetime
    grace_s: float
    hours: int
    records: int
    """Of both, in so many hours."""


class Runner(ABC):
    """An engine with named relations, which the queries of `sql` read."""

    def each(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        """Yield the results of a function that reads a file, in the order of `items`."""
        with ThreadPoolExecutor(_READERS) as readers:
            for start in range(0, len(items), READ_AHEAD):
                yield from readers.map(function, items[start : start + READ_AHEAD])

    @abstractmethod
    def read(self, name: str, schema: pa.Schema, *places: Place, rows: int) -> None:
        """Let `name` be the columns of the Parquet files at places, about `rows`.

        Events have one more column, `file`, the path of the row's file.
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
    def write_outcomes(self, folder: Folder, path: str, merge: Merge) -> None:
        """Write the outcomes of a merge to the new folder at `path`, by the numbers of hours."""
