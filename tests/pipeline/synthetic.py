"""A synthetic journal that was written, with what is true of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from purgatory.pipeline.outcomes.manifest import read_manifest
from purgatory.pipeline.spark.folder import Folder
from tests.synthetic_journal import SyntheticJournal, Truth

TABLES = (
    *("by_kind", "polls", "by_key_prefix", "by_hour", "hot_keys", "parked", "timeline"),
    *("wait_counts", "lateness_counts"),
)
"""Those of waits."""


@dataclass(frozen=True, slots=True)
class Written:
    """A journal in a folder."""

    folder: Path
    truth: Truth
    journal: SyntheticJournal

    @property
    def glob(self) -> str:
        """The files that are there for every reader: a dot hides."""
        return f"{self.folder}/*/*/*.parquet"


def write(folder: Path, **options: Any) -> Written:
    """Write a journal; `options` are those of SyntheticJournal."""
    journal = SyntheticJournal(**options)
    return Written(folder, journal.write(folder), journal)


def outcomes(folder: Folder) -> list[dict[str, Any]]:
    """Return the published outcomes of a table by their identifiers, read by neither engine."""
    found = []
    for path in read_manifest(folder).paths():
        with folder.open(path) as opened:
            found += pq.ParquetFile(opened).read().to_pylist()
    return sorted(found, key=lambda row: str(row["operation_id"]))
