"""Reading jobs, without a transaction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from sqlalchemy import Connection, select

from purgatory.errors import PurgatoryClosedError
from purgatory.group_commit import GroupCommit
from purgatory.job_errors import CorruptJobError
from purgatory.jobs.model.job import BlockedBy, Job, JobState
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.queries import (
    HandlerState,
    JobCounts,
    JobFilter,
    JobPage,
)
from purgatory.jobs.model.steps import Paused
from purgatory.jobs.sql.database import Database, DatabaseClock
from purgatory.jobs.sql.engine import setting_warnings
from purgatory.jobs.sql.tables import CONCURRENCY_MARK, is_storable, job_of
from purgatory.jobs.stores.protocol import StoredFire

T = TypeVar("T")

# Jobs that are counted by handler: they take some tenths of a second.
MAX_COUNTED: Final = 100_000


class SqlReader(ABC):
    """The queries of an SqlJobStore, in the pool of connections."""

    def __init__(self, database: Database, clock: DatabaseClock, limits: JobLimits) -> None:
        self.limits: JobLimits = limits
        self._database = database
        self._is_open = False
        self._statements = database.statements.reads
        self._many = database.statements.dialect.many
        self._clock = clock
        # Each second: to build one takes longer than to run it.
        self._next_due = [
            self._statements.next_due(clock.expression, of_handlers=each) for each in (False, True)
        ]
        self._keys = GroupCommit(self._look_up, weigh=list.__len__, max_weight=limits.max_batch)
        # Thousands may poll for the end of a job each: they share one query too.
        self._gets = GroupCommit(self._get_all, weigh=len, max_weight=limits.max_batch)

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
        statement = self._statements.page_ids(where, is_first=after is None)
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
        statement = self._statements.counts
        row = await self._read(lambda connection: connection.execute(statement).mappings().one())
        return JobCounts(**{name: int(count) for name, count in row.items()})

    async def handler_counts(self) -> dict[HandlerState, int] | None:
        """Return how many jobs of each handler wait and run, and what blocks them.

        None if that are very many. Reads a row for each.
        """
        counts = await self.counts()
        if counts.waiting + counts.running > MAX_COUNTED:
            return None
        statement = self._statements.handler_counts
        rows = await self._read(lambda connection: connection.execute(statement).all())
        # A corrupt record may have a handler of another type.
        return {
            HandlerState(str(handler), JobState(state), BlockedBy(by) if by else None): count
            for handler, state, by, count in rows
        }

    async def paused(self) -> Paused:
        """Return the handlers that are paused, and how many of their jobs are due."""
        statements = self._statements

        def read(connection: Connection) -> Paused:
            names = set(connection.scalars(statements.paused))
            jobs = connection.scalars(statements.paused_jobs).one()
            return Paused(tuple(sorted(names - {""})), "" in names, jobs)

        return await self._read(read)

    async def stored_fires(
        self, origin: str, *, is_own: bool = True, after: int = 0, limit: int
    ) -> list[StoredFire]:
        """Return the first fires of `origin`, or of all others, in order."""
        reads = self._statements
        statement = reads.own_fires if is_own else reads.fires_of_others
        asked = {"origin": origin, "after": after, "limit": limit}
        rows = await self._read(lambda connection: connection.execute(statement, asked).all())
        return [StoredFire(*row) for row in rows]

    def _require_open(self) -> None:
        if not self._is_open:
            raise PurgatoryClosedError("the store of jobs is not open: open it first")

    def _read(self, query: Callable[[Connection], T]) -> Awaitable[T]:
        self._require_open()
        return self._database.read(query)

    @abstractmethod
    async def _quarantine(self, job_ids: list[str]) -> None:
        """Quarantine the records with these ids, which are corrupt."""

    async def _have_jobs(self, keys: list[str]) -> list[bool]:
        """Return for each key whether an undecided job is on it."""
        found: list[bool] = await self._keys.submit(keys)
        return found

    async def _join_reads(self) -> None:
        """Wait for the queries under way, which go on while the store closes."""
        await self._keys.join()
        await self._gets.join()
        await self._database.join()

    async def _look_up(self, batch: list[list[str]]) -> list[list[bool]]:
        """Return for each caller's keys whether an undecided job is on them."""
        keys = {key for asked in batch for key in asked if is_storable(key)}
        given = {"keys": self._many(keys)}
        statement = self._statements.keys_with_jobs
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
        statement = self._statements.get
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
