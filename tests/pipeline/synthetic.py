"""A synthetic journal that was written, with what is true of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from purgatory.pipeline import EVENT_SCHEMA
from tests.synthetic_journal import SyntheticJournal, Truth


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


def events(spark: SparkSession, *rows: Mapping[str, Any]) -> DataFrame:
    """Return rows of a journal, with null for what they do not say."""
    names = EVENT_SCHEMA.names
    return spark.createDataFrame([tuple(map(row.get, names)) for row in rows], EVENT_SCHEMA)


def append(spark: SparkSession, folder: Path, *rows: Mapping[str, Any]) -> None:
    """Add a file with rows to a journal."""
    frame = events(spark, *rows).coalesce(1)
    frame.write.format("purgatory").mode("append").save(str(folder))
