"""The data source of Spark: its options, and the reader or writer that they select."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter
from pyspark.sql.types import StructType

from purgatory.jobs import JobLimits
from purgatory.pipeline.outcomes.journal_files import OnBadFile
from purgatory.pipeline.schedule import JobAdder, JobAddress, JobRows
from purgatory.pipeline.schemas import EVENT_SCHEMA as EVENTS
from purgatory.pipeline.source.jobs_source import JobsReader, JobsWriter
from purgatory.pipeline.source.journal_source import (
    JournalReader,
    JournalWriter,
    ResultsReader,
    schema_of,
)
from purgatory.pipeline.source.redis_stream import RedisStreamReader, RedisStreamWriter
from purgatory.pipeline.source.rows import JOBS, SPARK_JOBS, chosen
from purgatory.pipeline.spark.folder import folder_at
from purgatory.pipeline.spark.schemas import EVENT_SCHEMA, spark_schema

NAME = "purgatory"

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
_REDIS = ("redis", "rediss", "unix")
_OPTIONS = (
    *("path", "table", "onBadFile", "stream", "maxLength", "tasks"),
    *("prefix", "shards", "maxWaiting", "name", "startedMs", "onConflict"),
)


class PurgatoryDataSource(DataSource):
    """The format "purgatory": docs/pipeline/sources.md has its options.

    `table` is "events" (the journal: a folder or a Redis Stream), "jobs" (SQL or Redis), or one of
    the results of the pipeline; the address is the argument of `load` or `save`.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> StructType:
        """Return all columns; with a schema of fewer columns only these are read."""
        if self._is_result:
            return spark_schema(schema_of(self._folder, self._table))
        return SPARK_JOBS if self._is_jobs else EVENT_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader of the table."""
        if self._is_jobs:
            return JobsReader(self._jobs, chosen(JOBS, schema), self._tasks)
        if self._is_result:
            known = schema_of(self._folder, self._table)
            return ResultsReader(self._folder, self._table, known, chosen(known, schema))
        if self._is_redis:
            events = chosen(EVENTS, schema)
            return RedisStreamReader(self._address, self._stream, events, self._tasks)
        return JournalReader(self._folder, chosen(EVENTS, schema), self._on_bad_file)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of the table, which only appends."""
        if overwrite:
            raise ValueError('cannot overwrite: write with mode("append")')
        if self._is_result:
            raise ValueError(f"{self._table} is a result of the pipeline, which writes it")
        if self._is_jobs:
            rows = JobRows(
                name=self.options.get("name", NAME),
                started_ms=self._number("startedMs") or time.time_ns() // 1_000_000,
                on_conflict=self.options.get("onConflict", "keep"),
                limits=JobLimits(max_waiting=self._jobs.max_waiting),
            )
            return JobsWriter(JobAdder(self._jobs, rows))
        chosen(EVENTS, schema)
        missing = [name for name in EVENTS.names if name not in schema.names]
        if missing:
            raise ValueError(f"an event needs all columns; missing: {', '.join(missing)}")
        if self._is_redis:
            length = self._number("maxLength") or 1_000_000
            return RedisStreamWriter(self._address, self._stream, length)
        return JournalWriter(self._folder)

    @property
    def _address(self) -> str:
        known = {name.lower() for name in _OPTIONS}
        for name in self.options:
            if name.lower() not in known:
                raise ValueError(f"unknown option {name!r}: choose from {', '.join(_OPTIONS)}")
        address = self.options.get("path")
        if not address:
            raise ValueError("no address: give load() or save() a folder or a URL")
        return address

    @property
    def _table(self) -> str:
        name = self.options.get("table", "events")
        if name not in ("events", "jobs", "outcomes", "waits") and not name.startswith("waits/"):
            raise ValueError(
                f"option table is {name!r}: give one of events, jobs, outcomes, waits, waits/NAME"
            )
        return "waits/by_kind" if name == "waits" else name

    @property
    def _is_result(self) -> bool:
        return self._table not in ("events", "jobs")

    @property
    def _is_jobs(self) -> bool:
        return self._table == "jobs"

    @property
    def _is_redis(self) -> bool:
        return urlsplit(self._address).scheme in _REDIS

    @property
    def _folder(self) -> str:
        """Return the address of a folder. Raises PipelineError for an unknown scheme."""
        # Absolute: the working directory of the reading processes is another one.
        return str(folder_at(self._address))

    @property
    def _stream(self) -> str:
        return self.options.get("stream", "purgatory:journal")

    @property
    def _on_bad_file(self) -> OnBadFile:
        value = self.options.get("onBadFile", "refuse")
        if value not in (allowed := tuple(OnBadFile)):
            raise ValueError(f"option onBadFile is {value!r}: give one of {', '.join(allowed)}")
        return OnBadFile(value)

    @property
    def _tasks(self) -> int:
        return self._number("tasks") or 4

    @property
    def _jobs(self) -> JobAddress:
        return JobAddress(
            url=self._address,
            prefix=self.options.get("prefix", "purgatory"),
            shards=self._number("shards") or 1,
            max_waiting=self._number("maxWaiting") or JobLimits().max_waiting,
        )

    def _number(self, name: str) -> int | None:
        text = self.options.get(name)
        if text is None:
            return None
        if not text.isascii() or not text.isdigit() or int(text) < 1:
            raise ValueError(f"option {name} is {text!r}: give a whole number of 1 or more")
        return int(text)


def register(spark: SparkSession) -> None:
    """Register the format "purgatory", and enable the pushdown of filters."""
    spark.conf.set(_PUSHDOWN, "true")
    spark.dataSource.register(PurgatoryDataSource)
