"""A job store in SQLite or PostgreSQL."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, select
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncEngine

from purgatory.errors import PurgatoryClosedError
from purgatory.group_commit import GroupCommit
from purgatory.job_errors import CorruptJobError, JobError, StoreError
from purgatory.jobs.model.job import (
    BlockedBy,
    HandlerState,
    Job,
    JobCounts,
    JobFilter,
    JobPage,
    JobState,
)
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import Added, Fire, KeyFired, Paused, Renew, Result, Start, Step
from purgatory.jobs.sql.application import ApplicationSteps
from purgatory.jobs.sql.batch_runner import BatchRunner, LockedRows, RowLockedError, Steps, Write
from purgatory.jobs.sql.database import Database
from purgatory.jobs.sql.engine import check_file, setting_warnings
from purgatory.jobs.sql.job_transaction import Quarantine, StoreFire, TakeFires
from purgatory.jobs.sql.migrations import check_revision
from purgatory.jobs.sql.tables import CONCURRENCY_MARK, is_storable, job_of
from purgatory.jobs.sql.unit_of_work import UnitOfWork
from purgatory.jobs.stores.protocol import (
    CloseOnce,
    NewFire,
    OnCommit,
    StoredFire,
    StoreListener,
    StoreListeners,
    TakenFires,
)

_log = logging.getLogger("purgatory.jobs")

T = TypeVar("T")

# Jobs that are counted by handler: they take some tenths of a second.
MAX_COUNTED: Final = 100_000


class SqlJobStore:
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
        self._database = database = Database(url_or_engine, limits, now_ms)
        self.limits: JobLimits = database.limits
        self._reads = database.statements.reads
        self._many = database.statements.dialect.many
        self._clock = database.clock
        self._is_open = False
        # Each second: to build one takes longer than to run it.
        self._next_due = [
            self._reads.next_due(self._clock.expression, of_handlers=each) for each in (False, True)
        ]
        self._keys = GroupCommit(
            self._look_up, weigh=list.__len__, max_weight=self.limits.max_batch
        )
        # Thousands may poll for the end of a job each: they share one query too.
        self._gets = GroupCommit(self._get_all, weigh=len, max_weight=self.limits.max_batch)
        self._commit = self._group_commit(database.write)
        # Kinds of steps that no others hold up: leases must not run out, nor jobs be late.
        self._own_commits: dict[type[Step[Any]], GroupCommit[Steps]] = {}
        if not database.statements.dialect.is_sqlite:
            for kind in (Renew, Start):
                write = database.another_writer().write
                self._own_commits[kind] = self._group_commit(write)
        self._locked_rows = LockedRows(self._runner(database.write_pooled))
        self._application = ApplicationSteps(database, announce=self._announce)
        self._closing = CloseOnce(self._close)
        self._listeners = StoreListeners()

    async def open(self) -> None:
        """Connect, and check that the tables are at the revision that this version needs."""
        check_file(self._database.url)
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
            # Queries, too, go on while the store closes.
            for running in (self._keys, self._gets, self._database.reads, self._commit):
                await running.join()
            for commit in self._own_commits.values():
                await commit.join()
            await self._locked_rows.running.join()
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

        With PostgreSQL a fire asks, as another process may have added a job this very moment; the
        fires of one moment share one look-up.
        """
        return self._database.may_have_jobs(key)

    # Queries, in the pool of connections

    async def check(self) -> list[str]:
        """Return warnings about the database's settings, and about the pool of an engine."""
        return [*self._database.check_pool(), *await self._read(setting_warnings)]

    async def now_ms(self) -> int:
        """Return the server's clock; this machine's for SQLite."""
        self._require_open()
        local_ms = self._clock.local_ms()
        if local_ms is not None:
            return local_ms
        clock = select(self._clock.expression)
        return int(await self._read(lambda connection: connection.scalars(clock).one()))

    async def next_due_ms(self, handlers: Sequence[str] | None = None) -> int | None:
        """Return the earliest due_ms of the jobs that can be claimed now."""
        statement = self._next_due[handlers is not None]
        asked = None if handlers is None else {"handlers": self._many(handlers)}
        return await self._read(lambda connection: connection.scalars(statement, asked).one())

    async def get(self, job_ids: Sequence[str]) -> list[Job | None]:
        """Return jobs by id; None for an id without a job."""
        self._require_open()
        if not job_ids:
            return []
        jobs: list[Job | None] = await self._gets.submit(job_ids)
        return jobs

    async def query(self, where: JobFilter, *, after: str | None = None, limit: int) -> JobPage:
        """Return a page of the jobs that match, having looked at a batch at most."""
        self._require_open()
        asked = {
            "state": where.state,
            "handler": where.handler,
            "key": where.key,
            "after": after,
        }
        if where.concurrency_key is not None:
            asked["concurrency_key"] = CONCURRENCY_MARK + where.concurrency_key
        given = {name: str(value) for name, value in asked.items() if value is not None}
        if not all(map(is_storable, given.values())):
            return JobPage([], next=None)
        filters = len(given) - (after is not None) + where.is_blocked
        limit = self.limits.cut(limit)
        looked_at = self.limits.max_batch if filters > 1 else limit
        statement = self._reads.page_ids(where, is_first=after is None)
        parameters = {**given, "limit": looked_at + 1}
        rows = await self._read(lambda connection: connection.execute(statement, parameters).all())
        ids: list[str] = []
        last: str | None = None
        for job_id, is_match in rows[:looked_at]:
            if len(ids) == limit:
                break
            last = job_id
            if is_match:
                ids.append(job_id)
        jobs = await self._get(ids) if ids else {}
        # It may have changed since.
        found = [jobs[job_id] for job_id in ids if job_id in jobs and where.matches(jobs[job_id])]
        return JobPage(found, next=None if not rows or rows[-1][0] == last else last)

    async def counts(self) -> JobCounts:
        """Return how many jobs are in each state, a sum of a few rows; and are blocked."""
        statement = self._reads.counts
        row = await self._read(lambda connection: connection.execute(statement).mappings().one())
        return JobCounts(**{name: int(count) for name, count in row.items()})

    async def handler_counts(self) -> dict[HandlerState, int] | None:
        """Return how many jobs of each handler wait and run, and what blocks them.

        None if that are very many. Reads a row for each.
        """
        counts = await self.counts()
        if counts.waiting + counts.running > MAX_COUNTED:
            return None
        statement = self._reads.handler_counts
        rows = await self._read(lambda connection: connection.execute(statement).all())
        # A corrupt record may have a handler of another type.
        return {
            HandlerState(str(handler), JobState(state), BlockedBy(by) if by else None): count
            for handler, state, by, count in rows
        }

    async def paused(self) -> Paused:
        """Return the handlers that are paused, and how many of their jobs are due."""
        statements = self._reads

        def read(connection: Connection) -> Paused:
            names = set(connection.scalars(statements.paused))
            jobs = connection.scalars(statements.paused_jobs).one()
            return Paused(tuple(sorted(names - {""})), "" in names, jobs)

        return await self._read(read)

    async def stored_fires(
        self, origin: str, *, is_own: bool = True, after: int = 0, limit: int
    ) -> list[StoredFire]:
        """Return the first fires of `origin`, or of all others, in order."""
        reads = self._reads
        statement = reads.own_fires if is_own else reads.fires_of_others
        asked = {"origin": origin, "after": after, "limit": limit}
        rows = await self._read(lambda connection: connection.execute(statement, asked).all())
        return [StoredFire(*row) for row in rows]

    # Transactions of the application

    async def add_in(self, session: Any, specs: Sequence[JobSpec]) -> list[Added | JobError]:
        """Run `Add` for each spec in the transaction of `session`."""
        self._require_open()
        self._database.file.check()
        return await self._application.add(session, specs)

    async def fire_in(self, session: Any, fire: NewFire, on_commit: OnCommit) -> None:
        """Store a fire in the transaction of `session`."""
        self._require_open()
        self._database.file.check()
        await self._application.fire(session, fire, on_commit)

    async def store_fire(self, fire: NewFire) -> None:
        """Store a fire in a transaction of the store's own."""
        await self._submit([StoreFire(fire)])

    async def take_fires(self, fires: Sequence[StoredFire]) -> TakenFires:
        """Decide the jobs on the keys of fires, and remove these, in one transaction."""
        results: list[TakenFires] = await self._submit([TakeFires(tuple(fires))])
        return results[0]

    def _runner(self, write: Write[Any]) -> BatchRunner:
        return BatchRunner(self._database, write, on_commit=self._announce)

    def _group_commit(self, write: Write[Any]) -> GroupCommit[Steps]:
        run = self._runner(write).run
        return GroupCommit(run, weigh=len, max_weight=self.limits.max_batch)

    async def _fire(self, steps: list[Fire]) -> list[Any]:
        if self._database.statements.dialect.is_sqlite:
            # `may_wait_on` has looked: there are jobs on most of these keys.
            return await self._submit(steps)
        # Most keys have no jobs: looking for them needs no transaction.
        have_jobs: list[bool] = await self._keys.submit([step.key for step in steps])
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
            if not self._locked_rows.running:
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

    def _require_open(self) -> None:
        if not self._is_open:
            raise PurgatoryClosedError("the store of jobs is not open: open it first")

    def _read(self, query: Callable[[Connection], T]) -> Awaitable[T]:
        self._require_open()
        return self._database.read(query)

    async def _look_up(self, batch: list[list[str]]) -> list[list[bool]]:
        """Return for each caller's keys whether an undecided job is on them."""
        keys = {key for asked in batch for key in asked if is_storable(key)}
        given = {"keys": self._many(keys)}
        statement = self._reads.keys_with_jobs
        found = set(
            await self._database.read(lambda connection: connection.scalars(statement, given).all())
        )
        return [[key in found for key in asked] for asked in batch]

    async def _get_all(self, batch: list[Sequence[str]]) -> list[list[Job | None]]:
        """Return for each caller the jobs of its ids."""
        ids = list({job_id for asked in batch for job_id in asked if is_storable(job_id)})
        jobs = await self._get(ids) if ids else {}
        return [[jobs.get(job_id) for job_id in asked] for asked in batch]

    async def _get(self, job_ids: Sequence[str]) -> dict[str, Job]:
        asked = {"ids": self._many(job_ids)}
        statement = self._reads.get
        records = await self._database.read(
            lambda connection: connection.execute(statement, asked).mappings().all()
        )
        jobs = {}
        corrupt = []
        for record in records:
            try:
                jobs[record["id"]] = job_of(dict(record))
            except CorruptJobError as exc:
                corrupt.append(exc.job_id)
        if corrupt:
            await self._quarantine(corrupt)
        return jobs
