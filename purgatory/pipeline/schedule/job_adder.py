"""Adding jobs to a store, within a task of Spark."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from purgatory.jobs import JobError, JobStore, StoreUnavailableError
from purgatory.jobs.model import Add, Added, JobSpec, StoreReadOnlyError
from purgatory.pipeline.schedule.job_address import JobAddress
from purgatory.pipeline.schedule.job_rows import JobRows, reason_of
from purgatory.retry_policy import RetryPolicy

CHUNK = 1_000
_MAX_ATTEMPTS = 6
_RETRY_POLICY = RetryPolicy(first_ms=250, max_ms=4_000)


class Refused(NamedTuple):
    """A row that is not a valid job, or that the store refused."""

    reason: str
    """One word, for counts."""
    detail: str
    row_json: str


@dataclass(slots=True)
class Result:
    """The results of some rows."""

    counts: Counter[str] = field(default_factory=Counter)
    """By `AddStatus`, and "refused"."""
    refused: list[Refused] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class JobAdder:
    """Adds chunks of rows, with retries while the server is unavailable."""

    address: JobAddress
    rows: JobRows

    def add(self, chunks: Iterator[Sequence[Mapping[str, Any]]]) -> Generator[Result, None, None]:
        """Add the rows of each chunk, in one step of the store; yield their results.

        Raises StoreUnavailableError if the server stays unavailable; then the same rows can be
        added again, which keeps those already added.
        """
        with asyncio.Runner() as runner:
            store = runner.run(_opened(self.address))
            try:
                for chunk in chunks:
                    yield runner.run(self._add(store, chunk))
            finally:
                runner.run(store.close())

    async def _add(self, store: JobStore, chunk: Sequence[Mapping[str, Any]]) -> Result:
        result = Result()
        specs: list[JobSpec] = []
        good: list[Mapping[str, Any]] = []
        for row in chunk:
            try:
                specs.append(self.rows.spec(row))
                good.append(row)
            except Exception as error:
                # Any error is one of this row: it is refused, and the others are added.
                _refuse(result, row, error)
        for row, added in zip(good, await _added(store, specs), strict=True):
            if isinstance(added, Added):
                result.counts[str(added.status)] += 1
            else:
                _refuse(result, row, added)
        return result


@asynccontextmanager
async def opened(address: JobAddress) -> AsyncIterator[JobStore]:
    """Open the store of an address, and close it."""
    store = await _opened(address)
    try:
        yield store
    finally:
        await store.close()


async def _opened(address: JobAddress) -> JobStore:
    store = address.store()
    await store.open()
    return store


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


def _refuse(result: Result, row: Mapping[str, Any], error: Exception) -> None:
    reason, detail = reason_of(error)
    result.counts["refused"] += 1
    result.refused.append(Refused(reason, detail, json.dumps(dict(row), default=str)))
