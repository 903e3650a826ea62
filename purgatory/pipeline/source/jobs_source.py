"""The reader and the writer of delayed jobs, in SQL and in Redis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceReader,
    EqualTo,
    Filter,
    InputPartition,
    WriterCommitMessage,
)

from purgatory.jobs import JobState, JobStore
from purgatory.jobs.model.job import JobFilter
from purgatory.pipeline.console import counted
from purgatory.pipeline.errors import RefusedRowsError
from purgatory.pipeline.schedule import CHUNK, JobAdder, JobAddress, opened
from purgatory.pipeline.schemas import JOB_KIND
from purgatory.pipeline.source.rows import column_of, job_batch
from purgatory.pipeline.spark.schemas import EVENT_SCHEMA

_FINAL = ("done", "failed", "cancelled")
_NOBODY = "nobody"


def job_events(jobs: DataFrame) -> DataFrame:
    """Return an event (EVENT_SCHEMA) for each job of `jobs` that has ended.

    `jobs` is the table "jobs" of the format "purgatory". The identifiers are the same as in a
    journal: with its events in one DataFrame, `outcomes` has each job once. Keys are as in the
    store, whatever the journal's key rule.
    """
    # As in `purgatory.jobs.worker.result_reporter`: a missed job has not run and will not.
    event = F.when(F.col("outcome") == "missed", "cancelled").otherwise(F.col("outcome"))
    lateness_us = F.greatest("lateness_ms", F.lit(0).cast("long")) * 1_000
    # The two times may come from two clocks.
    at = F.greatest("finished", "created")
    columns = {
        "operation_id": F.concat(F.lit(JOB_KIND), "id"),
        "event": event,
        "seq": F.lit(0),
        "kind": F.concat(F.lit(JOB_KIND), "handler"),
        "keys": F.col("keys"),
        "worker": F.coalesce("worker", F.lit(_NOBODY)),
        "at": at,
        "watched_at": F.col("created"),
        "deadline": F.col("deadline"),
        "completed_at": at,
        "lateness_us": F.when((event == "expired") & F.col("lateness_ms").isNotNull(), lateness_us),
        "completed_by": F.col("fired_key"),
        "job_id": F.col("id"),
        "handler": F.col("handler"),
        "attempt": F.col("attempt"),
        "state": F.col("state"),
        "error": F.col("error"),
        "labels": F.lit(None),
    }
    return jobs.where(F.col("state").isin(*_FINAL)).select(
        *(columns[field.name].cast(field.dataType).alias(field.name) for field in EVENT_SCHEMA)
    )


# The leading hexadecimal digits of an id that are the time.
_TIME_DIGITS = 12
_MOST_EXAMPLES = 3


@dataclass
class IdRange(InputPartition):
    """Jobs with ids in [not_below, below); None for no bound."""

    below: str | None
    not_below: str | None


class JobsReader(DataSourceReader):
    """Reads jobs page by page, several ranges of ids in parallel.

    An id begins with the time at which the job was created, so that a range of ids is one of time.
    The store filters by equality of `state` and `handler`; Spark checks the rest.
    """

    def __init__(self, address: JobAddress, schema: pa.Schema, tasks: int) -> None:
        self._address = address
        self._schema = schema
        self._tasks = tasks
        self._where = JobFilter()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 # Spark's name
        """Take the filters that the store can apply; yield the others."""
        wanted: dict[str, str] = {}
        for given in filters:
            column = column_of(given)
            if (
                isinstance(given, EqualTo)
                and column not in wanted
                and (column == "handler" or (column == "state" and given.value in set(JobState)))
            ):
                wanted[column] = str(given.value)
            else:
                yield given
        state = wanted.get("state")
        self._where = JobFilter(
            state=JobState(state) if state else None, handler=wanted.get("handler")
        )

    def partitions(self) -> Sequence[InputPartition]:
        """Return ranges of ids of about equal intervals of time."""
        with opened(self._address) as (runner, store):
            return runner.run(self._ranges(store))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the jobs of a range."""
        # If there are no partitions, Spark asks for one that is None.
        if not isinstance(partition, IdRange):
            return
        after, least = partition.below, partition.not_below or ""
        with opened(self._address) as (runner, store):
            while True:
                page = runner.run(store.query(self._where, after=after, limit=CHUNK))
                if jobs := [job for job in page.jobs if job.id >= least]:
                    yield job_batch(jobs, self._schema)
                after = page.next
                if after is None or after < least:
                    return

    async def _ranges(self, store: JobStore) -> list[IdRange]:
        first = await _first_below(store, self._where, None)
        if first is None:
            return []
        high = _time_of(first)
        low = await self._lowest_time(store, high)
        edges = [
            f"{low + (high - low) * number // self._tasks:0{_TIME_DIGITS}x}"
            for number in range(1, self._tasks)
        ]
        bounds = [None, *dict.fromkeys(edges), None]
        return [IdRange(below=high, not_below=low) for low, high in pairwise(bounds)]

    async def _lowest_time(self, store: JobStore, high: int) -> int:
        """Return about the time of the lowest id, by bisection."""
        low = 0
        while high - low > 1_000:
            middle = (low + high) // 2
            found = await _first_below(store, self._where, f"{middle:0{_TIME_DIGITS}x}")
            if found is None:
                low = middle
            else:
                high = min(middle, _time_of(found))
        return low


class JobsWriter(DataSourceArrowWriter):
    """Adds jobs. Refused rows are reported when all others are stored; writing again is safe."""

    def __init__(self, adder: JobAdder) -> None:
        self._adder = adder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Add one task's rows."""
        refused = 0
        examples: list[str] = []
        for batch in self._adder.add_batches(iterator):
            for detail in batch.column("detail").drop_null().to_pylist():
                refused += 1
                if len(examples) < _MOST_EXAMPLES:
                    examples.append(detail)
        return RefusedRows(refused, examples)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Raise RefusedRowsError if rows were refused."""
        found = [message for message in messages if isinstance(message, RefusedRows)]
        refused = sum(message.count for message in found)
        if refused:
            examples = [example for message in found for example in message.examples]
            raise RefusedRowsError(
                f"{counted(refused, 'row')} refused, all others are stored. For example: "
                f"{'; '.join(examples[:_MOST_EXAMPLES])}. The job `schedule` lists all of them."
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: added jobs stay, and adding them again keeps them."""


@dataclass
class RefusedRows(WriterCommitMessage):
    """The number of refused rows of a task, and the reasons of some."""

    count: int
    examples: list[str]


async def _first_below(store: JobStore, where: JobFilter, below: str | None) -> str | None:
    after = below
    while True:
        page = await store.query(where, after=after, limit=1)
        if page.jobs:
            return page.jobs[0].id
        if page.next is None:
            return None
        after = page.next


def _time_of(job_id: str) -> int:
    try:
        return int(job_id[:_TIME_DIGITS], 16)
    except ValueError:
        # An id in another format: the ranges become uneven, but stay correct.
        return int(16**_TIME_DIGITS) - 1
