"""A job store in SQLite or PostgreSQL."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncEngine

from purgatory.group_commit import GroupCommit
from purgatory.job_errors import JobError, StoreError
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import Added, Fire, KeyFired, Renew, Result, Start, Step
from purgatory.jobs.sql.application import ApplicationSteps
from purgatory.jobs.sql.batch_runner import BatchRunner, LockedRows, RowLockedError, Steps, Write
from purgatory.jobs.sql.database import Database, DatabaseClock
from purgatory.jobs.sql.job_transaction import Quarantine, StoreFire, TakeFires
from purgatory.jobs.sql.migrations import check_revision
from purgatory.jobs.sql.reader import SqlReader
from purgatory.jobs.sql.unit_of_work import UnitOfWork
from purgatory.jobs.stores.protocol import (
    CloseOnce,
    OnCommit,
    StoredFire,
    StoreListener,
    StoreListeners,
    TakenFires,
)

_log = logging.getLogger("purgatory.jobs")


class SqlJobStore(SqlReader):
    """A `JobStore` in SQLite, for the processes of one machine, or in PostgreSQL.

    Steps of all callers go through one connection, batch by batch, each batch a transaction
    (see `GroupCommit`); queries go through the pool. Listeners are not notified of what others do:
    poll.
    """

    def __init__(
        self,
        url_or_engine: str | URL | AsyncEngine,
        *,
        limits: JobLimits | None = None,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        """Connect to nothing yet. An engine of yours stays open when the store is closed.

        Raises ValueError for another database than these two, and for SQLite in memory.
        """
        database = Database(url_or_engine)
        clock = DatabaseClock(database.statements.dialect, now_ms)
        super().__init__(database, clock, JobLimits() if limits is None else limits)
        self._commit = self._group_commit(database.write, clock)
        # Kinds of steps that no others hold up: leases must not run out, nor jobs be late.
        self._own_commits: dict[type[Step[Any]], GroupCommit[Steps]] = {}
        if not database.statements.dialect.is_sqlite:
            for kind in (Renew, Start):
                write = database.another_writer().write
                self._own_commits[kind] = self._group_commit(write, clock)
        self._locked_rows = LockedRows(self._runner(database.write_pooled, clock))
        self._application = ApplicationSteps(database, clock, self.limits, announce=self._announce)
        self._closing = CloseOnce(self._close)
        self._listeners = StoreListeners()

    async def open(self) -> None:
        """Connect, and check that the tables are at the revision that this version needs."""
        self._database.check_file()
        self._database.check_pool()
        self._database.restart()
        try:
            await self._database.read(check_revision)
            await self._application.open()
            await self._database.open_look_up()
        except BaseException:
            # It may be cancelled because the process ends.
            self._database.hurry()
            await self._database.close()
            raise
        self._closing = CloseOnce(self._close)
        self._is_open = True

    def hurry(self) -> None:
        """Leave half a second to what is under way on a server, as the process ends."""
        self._database.hurry()

    async def close(self) -> None:
        """Wait for the steps under way, then release every connection."""
        self._is_open = False
        await self._closing.wait()

    async def _close(self) -> None:
        try:
            await self._join_reads()
            await self._commit.join()
            for commit in self._own_commits.values():
                await commit.join()
            await self._locked_rows.join()
        finally:
            await self._database.close()

    @property
    def hears_others(self) -> bool:
        """False: NOTIFY would let all commits of a PostgreSQL server wait for one another."""
        return False

    def subscribe(self, listener: StoreListener) -> Callable[[], None]:
        """Notify `listener` of changes made through this object; return the function to end it."""
        return self._listeners.subscribe(listener)

    async def run(self, steps: Sequence[Step[Result]]) -> list[Result]:
        """Run steps in order; return a result for each."""
        self._require_open()
        results: list[Result] = []
        for kind, several in groupby(steps, type):
            of_kind: list[Any] = list(several)
            if kind is Fire:
                results += await self._fire(of_kind)
            else:
                results += await self._submit(of_kind)
        return results

    def may_wait_on(self, key: str) -> bool:
        """Return what an indexed look-up in a SQLite file says; else True.

        With PostgreSQL or an engine of yours a fire asks, as another process may have added a job
        this very moment; the fires of one moment share one look-up.
        """
        return self._database.may_have_jobs(key)

    # Transactions of the application

    async def add_in(self, session: Any, specs: Sequence[JobSpec]) -> list[Added | JobError]:
        """Run `Add` for each spec in the transaction of `session`."""
        self._require_open()
        self._database.check_open_file()
        return await self._application.add(session, specs)

    async def fire_in(
        self,
        session: Any,
        *,
        key: str,
        value_json: str,
        owner: str | None,
        origin: str,
        on_commit: OnCommit,
        traceparent: str | None = None,
    ) -> None:
        """Store a fire in the transaction of `session`."""
        self._require_open()
        self._database.check_open_file()
        await self._application.fire(
            session,
            key=key,
            value_json=value_json,
            owner=owner,
            origin=origin,
            on_commit=on_commit,
            traceparent=traceparent,
        )

    async def store_fire(self, key: str, value_json: str, *, traceparent: str | None) -> None:
        """Store a fire of CLIENT_ORIGIN in a transaction of the store's own."""
        await self._submit([StoreFire(key, value_json, traceparent)])

    async def take_fires(self, fires: Sequence[StoredFire]) -> TakenFires:
        """Decide the jobs on the keys of fires, and remove these, in one transaction."""
        [taken] = await self._submit([TakeFires(tuple(fires))])
        found: TakenFires = taken
        return found

    def _runner(self, write: Write[Any], clock: DatabaseClock) -> BatchRunner:
        statements = self._database.statements
        return BatchRunner(write, statements, clock, self.limits, on_commit=self._announce)

    def _group_commit(self, write: Write[Any], clock: DatabaseClock) -> GroupCommit[Steps]:
        run = self._runner(write, clock).run
        return GroupCommit(run, weigh=len, max_weight=self.limits.max_batch)

    async def _fire(self, steps: list[Fire]) -> list[Any]:
        if self._database.has_look_up:
            # `may_wait_on` has looked: there are jobs on most of these keys.
            return await self._submit(steps)
        # Most keys have no jobs: looking for them needs no transaction.
        have_jobs = await self._have_jobs([step.key for step in steps])
        with_jobs = [step for step, has_jobs in zip(steps, have_jobs, strict=True) if has_jobs]
        fired = iter(await self._submit(with_jobs) if with_jobs else ())
        return [next(fired) if has_jobs else KeyFired() for has_jobs in have_jobs]

    async def _submit(self, steps: Sequence[Step[Any]]) -> list[Any]:
        """Return the results of steps of one kind, once they are committed."""
        self._require_open()
        maximum = self.limits.max_batch
        if len(steps) <= maximum:
            return await self._commit_part(steps)
        # Queued together: they stay in order, and callers that come meanwhile wait behind them. One
        # transaction for all would hold the event loop, and the locks, for as long as it takes.
        parts = [steps[at : at + maximum] for at in range(0, len(steps), maximum)]
        several = await asyncio.gather(*map(self._commit_part, parts))
        return [result for some in several for result in some]

    async def _commit_part(self, steps: Sequence[Step[Any]]) -> list[Any]:
        commit = self._own_commits.get(type(steps[0]), self._commit)
        try:
            results: list[Any] = await commit.submit(steps)
        except RowLockedError:
            if not self._locked_rows.is_busy:
                # Once for all who were in a batch with it.
                _log.warning(
                    "another transaction keeps a job locked: the steps of a batch, such as %s, are "
                    "tried one by one",
                    type(steps[0]).__name__,
                    extra={"action": "job-locked"},
                )
            return await self._locked_rows.run(steps)
        return results

    async def _quarantine(self, job_ids: list[str]) -> None:
        try:
            await self._submit([Quarantine(job_id) for job_id in job_ids])
        except StoreError as exc:
            # The reader does not fail for it; the next one that reads them tries again.
            _log.warning(
                "could not quarantine %d corrupt records: %s",
                len(job_ids),
                exc,
                extra={"action": "quarantine"},
            )

    def _announce(self, work: UnitOfWork) -> None:
        if not self._listeners:
            return
        until_ms = work.now_ms + self.limits.horizon_ms
        for job in work.announced.values():
            self._listeners.notify_of(job, until_ms)
