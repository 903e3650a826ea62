"""The results of the pipeline as a source of Spark: outcomes, and the tables of waits."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import InputPartition

from purgatory.pipeline.errors import NothingToReadError
from purgatory.pipeline.outcomes.journal_files import OnBadFile
from purgatory.pipeline.outcomes.manifest import read_manifest
from purgatory.pipeline.schemas import OUTCOME_SCHEMA
from purgatory.pipeline.source.journal_source import JournalReader, grouped
from purgatory.pipeline.spark.folder import File
from purgatory.pipeline.spark.folders import folder_at

OUTCOMES = "outcomes"


def schema_of(folder: str, table: str) -> pa.Schema:
    """Return the columns of a table of results. Raises NothingToReadError without any."""
    if table == OUTCOMES:
        return OUTCOME_SCHEMA
    with folder_at(f"{folder}/{table}").open(_files(folder, table)[0].path) as file:
        return pq.read_schema(file)


def _files(folder: str, table: str) -> list[File]:
    place = folder_at(f"{folder}/{table}")
    files = place.files(".parquet")
    if table == OUTCOMES:
        published = {*read_manifest(place).paths()}
        files = [file for file in files if file.path in published]
    if not files:
        raise NothingToReadError(f"No {table} in {folder}: run the job that writes it first.")
    return files


class ResultsReader(JournalReader):
    """Reads a table of results; of outcomes, those files that the manifest names."""

    def __init__(self, folder: str, table: str, schema: pa.Schema) -> None:
        super().__init__(f"{folder}/{table}", schema, OnBadFile.REFUSE)
        self._of_results = folder, table
        self._columns = schema_of(folder, table)

    def partitions(self) -> Sequence[InputPartition]:
        """Return groups of files. Raises NothingToReadError without any."""
        return grouped(folder_at(self._folder), _files(*self._of_results))
