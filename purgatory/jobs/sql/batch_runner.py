"""Batches of steps: transactions, repeated after conflicts."""

from __future__ import annotations

import asyncio
import functools
import secrets
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from math import inf
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from purgatory.background import Uncancelled
from purgatory.job_errors import StoreBusyError, StoreError, StoreUnavailableError
from purgatory.jobs.model.steps import Add, Step
from purgatory.jobs.sql.database import Database
from purgatory.jobs.sql.errors import is_lock_timeout, must_repeat, store_error
from purgatory.jobs.sql.job_transaction import JobTransaction, MustLookFirstError
from purgatory.jobs.sql.unit_of_work import UnitOfWork
from purgatory.timer import SystemClock
from purgatory.timer.clock import NS_PER_MS

T = TypeVar("T")

Steps = Sequence[Step[Any]]
"""Steps of one caller, of one kind."""

# Rows of counts: as many processes can add to theirs without waiting for one another.
_SHARDS = 64
# Within this time, however many processes there are, fewer jobs than this are added.
_COUNT_SECONDS = 1.0
_FAR = 1_000_000
# Each time another transaction was in the way, which is over then.
_MAX_TRIES = 20


Write = Callable[[Callable[[Connection], T]], Awaitable[T]]
"""`Database.write`, or `write_pooled`."""


class RowLockedError(Exception):
    """Another transaction has locked a row for so long that nothing of a batch was done."""


class BatchRunner:
    """Runs the steps of many callers in one transaction.

    `on_commit` is called with each unit of work that was committed.
    """

    def __init__(
        self, database: Database, write: Write[Any], *, on_commit: Callable[[UnitOfWork], object]
    ) -> None:
        self._database = database
        self._write = write
        self._on_commit = on_commit
        self._shard = secrets.randbelow(_SHARDS)
        self._active, self._counted_at = 0, -inf

    async def run(self, batch: list[Steps]) -> list[Any]:
        """Return the results of each caller's steps, or an exception.

        In one transaction; each caller's by themselves if the database refuses one of them. Raises
        RowLockedError if another transaction kept a row locked.
        """
        try:
            return await self._transact(batch)
        except (StoreError, RowLockedError):
            raise
        except Exception as exc:
            error = store_error(exc) or exc
            # Only what the database has against a value is the fault of one step.
            if type(error) is not StoreError or len(batch) == 1:
                raise error from exc
        results: list[Any] = []
        for steps in batch:
            try:
                results += await self.run([steps])
            except Exception as exc:
                results.append(exc)
        return results

    async def _transact(self, batch: list[Steps]) -> list[list[Any]]:
        is_careful = False
        results: list[list[Any]]
        for _ in range(_MAX_TRIES):
            try:
                results, work = await self._write(
                    functools.partial(self._run_all, batch, is_careful)
                )
            except MustLookFirstError:
                is_careful = True
            except DBAPIError as exc:
                if is_lock_timeout(exc):
                    raise RowLockedError from exc
                if not must_repeat(exc):
                    raise
                is_careful = True
            else:
                self._on_commit(work)
                return results
        raise StoreUnavailableError(
            f"other processes changed the same jobs {_MAX_TRIES} times in a row: nothing was "
            "done; try again"
        )

    def _run_all(
        self, batch: list[Steps], is_careful: bool, connection: Connection
    ) -> tuple[list[list[Any]], UnitOfWork]:
        kinds: dict[type[Step[Any]], list[Any]] = {}
        for steps in batch:
            kinds.setdefault(type(steps[0]), []).extend(steps)
        work = UnitOfWork(
            connection,
            self._database,
            shard=self._shard,
            is_counting=Add in kinds and not self._has_room(),
        )
        results = JobTransaction(work, is_careful=is_careful).run(kinds)
        if work.active is not None:
            self._active, self._counted_at = work.active, _now_seconds()
        return [list(islice(results[type(steps[0])], len(steps))) for steps in batch], work

    def _has_room(self) -> bool:
        """Return True iff the limit is out of reach for so long that counting is not needed."""
        is_recent = _now_seconds() < self._counted_at + _COUNT_SECONDS
        return is_recent and self._active + _FAR < self._database.limits.max_waiting


def _now_seconds() -> float:
    # Not the loop's: a transaction may run in a thread.
    return SystemClock().now_ns() / 1_000_000_000


# How long the steps of one call are tried. Each attempt waits for the lock as any transaction does.
BUDGET_MS = 5_000
# Transactions at once, each with a connection of the pool.
MAX_LOCKED = 4


class LockedRows:
    """Tries steps one by one, apart from the batches of others, until the row is free."""

    def __init__(self, runner: BatchRunner) -> None:
        """Run steps with `runner`, several at the same time."""
        self._runner = runner
        self._slots = asyncio.Semaphore(MAX_LOCKED)
        self.running = Uncancelled("purgatory-jobs-locked")

    async def run(self, steps: Sequence[Step[Any]]) -> list[Any]:
        """Return the results of steps; raise StoreBusyError if a row stays locked.

        Then some of the steps may be done. It goes on if the caller is cancelled.
        """
        return await self.running.run(self._run(steps))

    async def _run(self, steps: Sequence[Step[Any]]) -> list[Any]:
        until_ns = SystemClock().now_ns() + BUDGET_MS * NS_PER_MS
        return [await self._run_one(step, until_ns) for step in steps]

    async def _run_one(self, step: Step[Any], until_ns: int) -> Any:
        while True:
            try:
                async with self._slots:
                    [[result]] = await self._runner.run([[step]])
            except RowLockedError as exc:
                if SystemClock().now_ns() < until_ns:
                    continue
                raise StoreBusyError(
                    f"another transaction has had a job locked for {BUDGET_MS // 1_000} s: nothing "
                    "was done with it; try again, and see pg_locks for who holds the lock"
                ) from exc
            return result
