"""Schedule: adds the rows of a DataFrame as delayed jobs."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

from purgatory.errors import PurgatoryError
from purgatory.job_errors import StoreReadOnlyError
from purgatory.jobs import JobError, JobLimits, JobStore, StoreUnavailableError
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import Add, Added
from purgatory.json_value import decode_document
from purgatory.log_text import REDIS_SCHEMES
from purgatory.pipeline.errors import PipelineError
from purgatory.pipeline.spark.schemas import spark_schema
from purgatory.retry_policy import RetryPolicy
from purgatory.timer.clock import Clock, SystemClock


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAddress:
    """A database or a Redis server with jobs.

    `url` is sqlite:///FILE, postgresql://..., or what RedisJobStore takes. Raises ValueError for
    others.
    """

    url: str
    prefix: str = "purgatory"
    """Redis only: the same as in the service."""
    shards: int = 1
    """Redis only: the same as in the service."""
    max_waiting: int = 10_000_000
    """The limit of waiting jobs, the same as in the service."""

    def __post_init__(self) -> None:
        if not (self.is_redis or self.is_sqlite or self.url.startswith("postgresql")):
            scheme = self.url.partition(":")[0]
            raise ValueError(
                f"{scheme!r} is no job store: give sqlite:///FILE, postgresql://... or redis://..."
            )

    @property
    def is_redis(self) -> bool:
        """Whether it is a Redis server."""
        return self.url.partition("://")[0] in REDIS_SCHEMES

    @property
    def is_sqlite(self) -> bool:
        """Whether it is an SQLite file, which has one writer at a time."""
        return self.url.startswith("sqlite")

    def store(self) -> JobStore:
        """Return a store that is not open yet."""
        limits = JobLimits(max_waiting=self.max_waiting)
        # Imported here: the packages of the other store may not be installed.
        if self.is_redis:
            from purgatory.jobs.redis import RedisJobStore

            return RedisJobStore(self.url, self.prefix, self.shards, limits=limits)
        from purgatory.jobs.sql import SqlJobStore

        return SqlJobStore(self.url, limits=limits)


COLUMNS = (
    *("handler", "payload", "delay", "at", "keys", "on_fire", "dedupe_key", "max_attempts"),
    *("misfire", "id"),
)
"""The columns of a row; `handler`, and either `delay` or `at`, are required."""

_OPTIONAL = ("on_fire", "misfire", "max_attempts")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRows:
    """Makes the same job of the same row, every time.

    The id of a job is derived from `name` and the row's `id`, else its `dedupe_key`, else the whole
    row. So a row that was added before is recognised, whatever the state of its job; equal rows are
    one job. A `delay` counts from `started_ms`; if it has passed when its row is added, the job is
    due at once.
    """

    name: str
    started_ms: int
    on_conflict: str = "keep"
    limits: JobLimits
    clock: Clock = field(default_factory=SystemClock, compare=False)
    """Not part of an id."""

    def spec(self, row: Mapping[str, Any]) -> JobSpec:
        """Return the job of a row. Raises ValueError, TypeError or PurgatoryError."""
        given = {name: row[name] for name in _OPTIONAL if row.get(name) is not None}
        given["on_conflict"] = "error" if row.get("dedupe_key") is None else self.on_conflict
        spec = JobSpec.of(
            row.get("handler"),  # type: ignore[arg-type] # refused by name if it is missing
            _payload(row.get("payload")),
            wall_ms=self.started_ms,
            at=self._at(row),
            keys=_keys(row.get("keys")),
            dedupe_key=row.get("dedupe_key"),
            limits=self.limits,
            **given,
        )
        return replace(spec, id=self._id(row))

    def _at(self, row: Mapping[str, Any]) -> datetime:
        delay, at = row.get("delay"), row.get("at")
        if (delay is None) == (at is None):
            raise ValueError(f"delay is {delay!r} and at is {at!r}: give exactly one of the two")
        if delay is None:
            if not isinstance(at, datetime):
                raise TypeError(f"at is {at!r}: give a timestamp")
            return at.astimezone(UTC)
        # Refuses what is too long, negative or not a number.
        delay_ms = JobSpec.of("x", wall_ms=0, delay=delay, limits=self.limits).deadline.delay_ms
        # Not in the past, which the store would refuse: adding millions takes minutes.
        at_ms = max(self.started_ms + (delay_ms or 0), self.clock.wall_ms())
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=at_ms)

    def _id(self, row: Mapping[str, Any]) -> str:
        identity = next(
            ([name, row[name]] for name in ("id", "dedupe_key") if row.get(name) is not None),
            {name: row.get(name) for name in COLUMNS},
        )
        text = json.dumps([self.name, identity], sort_keys=True, default=str)
        digest = hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=10)
        # Like all ids: first the time, then digits that cannot be guessed.
        return f"{self.started_ms & 0xFFFF_FFFF_FFFF:012x}{digest.hexdigest()}"


def _keys(keys: Any) -> Any:
    # In a CSV file keys are a string with commas.
    parts = keys.split(",") if isinstance(keys, str) else keys or ()
    return [part for key in parts if (part := key.strip())]


def _payload(text: Any) -> Any:
    # A struct or an array is used as it is; text is JSON.
    if not isinstance(text, str):
        return text
    try:
        return decode_document(text.encode())
    except ValueError as error:
        raise ValueError(f"the payload is not JSON ({error}): {text[:60]!r}") from error


CHUNK = 1_000
_MAX_ATTEMPTS = 6
_RETRY_POLICY = RetryPolicy(first_ms=250, max_ms=4_000)


@dataclass(frozen=True, slots=True)
class JobAdder:
    """Adds chunks of rows, with retries while the server is unavailable."""

    address: JobAddress
    rows: JobRows

    def add(
        self, chunks: Iterator[Sequence[Mapping[str, Any]]]
    ) -> Generator[list[dict[str, Any]], None, None]:
        """Add the rows of each chunk, in one step of the store; yield its rows of SCHEDULED_SCHEMA.

        Raises StoreUnavailableError if the server stays unavailable; then the same rows can be
        added again, which keeps those already added.
        """
        with opened(self.address) as (runner, store):
            for chunk in chunks:
                yield runner.run(self._add(store, chunk))

    def add_batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Add the rows of `batches`; yield rows of SCHEDULED_SCHEMA."""
        for rows in self.add(_chunks(batches)):
            yield pa.RecordBatch.from_pylist(rows, schema=_ARROW_SCHEMA)

    async def _add(
        self, store: JobStore, chunk: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        counts: Counter[str] = Counter()
        specs: list[JobSpec] = []
        good: list[Mapping[str, Any]] = []
        refused = []
        for row in chunk:
            try:
                specs.append(self.rows.spec(row))
                good.append(row)
            except Exception as error:
                # Any error is one of this row: it is refused, and the others are added.
                refused.append(_refused(row, error))
        for row, added in zip(good, await _added(store, specs), strict=True):
            if isinstance(added, Added):
                counts[str(added.status)] += 1
            else:
                refused.append(_refused(row, added))
        return [{"status": name, "rows": counts[name]} for name in sorted(counts)] + refused


def _refused(row: Mapping[str, Any], error: Exception) -> dict[str, Any]:
    # The reason is one word, for counts.
    is_ours = isinstance(error, JobError | PurgatoryError)
    return {
        "status": "refused",
        "rows": 1,
        "reason": type(error).__name__.removesuffix("Error") if is_ours else "InvalidRow",
        "detail": str(error),
        "row_json": json.dumps(dict(row), default=str),
    }


@contextmanager
def opened(address: JobAddress) -> Iterator[tuple[asyncio.Runner, JobStore]]:
    """Open the store of an address, and close it; what it awaits is run by the runner."""
    with asyncio.Runner() as runner:
        store = address.store()
        runner.run(store.open())
        try:
            yield runner, store
        finally:
            runner.run(store.close())


async def _added(store: JobStore, specs: Sequence[JobSpec]) -> list[Added | JobError]:
    if not specs:
        return []
    for attempt in range(1, _MAX_ATTEMPTS + 1):
        try:
            return await store.run([Add(spec) for spec in specs])
        except (StoreUnavailableError, StoreReadOnlyError):
            if attempt == _MAX_ATTEMPTS:
                raise
        await asyncio.sleep(_RETRY_POLICY.delay_s(attempt))
    raise AssertionError("the last try returned or raised")


_ARROW_SCHEMA = pa.schema(
    [
        pa.field("status", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        *(pa.field(name, pa.string()) for name in ("reason", "detail", "row_json")),
    ]
)
SCHEDULED_SCHEMA = spark_schema(_ARROW_SCHEMA)
"""The counts of jobs by status, for each chunk; and a row for each refused row, with the reason."""

_TYPES = {"delay": "double", "at": "timestamp", "keys": "array<string>", "max_attempts": "int"}


def schedule_jobs(jobs: DataFrame, address: JobAddress, rows: JobRows) -> DataFrame:
    """Add a job for each row of `jobs` when the result is read; return SCHEDULED_SCHEMA.

    Read the result once, by writing it: every read adds the jobs. That is idempotent, as the same
    row makes the same job: a failed task or run can be repeated.

    `jobs` has columns of `job_rows.COLUMNS`; `payload` is JSON text, or a struct, map or array;
    `keys` are an array, or a string with commas. Raises PipelineError for a table without the
    required columns.
    """
    ready = as_jobs(jobs)
    if address.is_sqlite:
        # One writer at a time: others would wait for the lock.
        ready = ready.coalesce(1)
    return ready.mapInArrow(JobAdder(address, rows).add_batches, SCHEDULED_SCHEMA)


def as_jobs(jobs: DataFrame) -> DataFrame:
    """Return `jobs` with the columns and types of JobRows. Raises PipelineError."""
    if "handler" not in jobs.columns or not {"delay", "at"} & set(jobs.columns):
        raise PipelineError(
            f"the table has {', '.join(jobs.columns)}: a job needs `handler`, and "
            "`delay` (seconds) or `at` (a timestamp)"
        )
    given = dict(jobs.dtypes)
    return jobs.select(*(_column(given.get(name), name) for name in COLUMNS))


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[list[dict[str, Any]]]:
    for batch in batches:
        for start in range(0, batch.num_rows, CHUNK):
            yield batch.slice(start, CHUNK).to_pylist()


def _column(given: str | None, name: str) -> Column:
    """Return a column as a job has it; `given` is its type in the table, None without it."""
    wanted = _TYPES.get(name, "string")
    if given is None:
        return F.lit(None).cast(wanted).alias(name)
    column = F.col(f"`{name}`")
    if name == "payload" and given.startswith(("struct<", "map<", "array<")):
        column = F.to_json(column)
    elif name == "keys" and given == "string":
        column = F.split(column, ",")
    elif given == "string" and wanted != "string":
        # Invalid text becomes null, and the row is refused.
        column = column.try_cast(wanted)
    else:
        column = column.cast(wanted)
    return column.alias(name)
