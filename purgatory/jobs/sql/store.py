"""Jobs in SQLite or PostgreSQL."""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import Any, TypeVar

from sqlalchemy import Connection, select
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from purgatory.errors import PurgatoryClosedError
from purgatory.jobs.model.deadline import Deadline
from purgatory.jobs.model.errors import CorruptJobError, JobError, StoreError, StoreUnavailableError
from purgatory.jobs.model.job import Job, JobClaim
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.sql.database import Database
from purgatory.jobs.sql.database_clock import DatabaseClock
from purgatory.jobs.sql.database_errors import is_to_be_repeated, store_error
from purgatory.jobs.sql.job_transaction import JobTransaction, LookFirstError
from purgatory.jobs.sql.migrations import check_revision
from purgatory.jobs.sql.records import is_storable, job_of
from purgatory.jobs.sql.step import Step
from purgatory.jobs.stores.base import (
    Added,
    Claimed,
    JobCounts,
    JobFilter,
    JobPage,
    JobResult,
    JobReturn,
    KeyFire,
    KeyFired,
    QuarantinedRecord,
    StoreListener,
)
from purgatory.jobs.stores.close_once import CloseOnce
from purgatory.jobs.stores.group_commit import GroupCommit
from purgatory.jobs.stores.listeners import StoreListeners
from purgatory.timer import SystemClock

T = TypeVar("T")

_log = logging.getLogger("purgatory.jobs")
# Rows of counts: as many processes can add to theirs without waiting for one another.
_SHARDS = 64
# Within so many seconds nobody adds so many jobs, in however many processes.
_COUNT_SECONDS = 1.0
_FAR = 1_000_000
# Each time another transaction was in the way, which is over then.
_MAX_TRIES = 20


class SqlJobStore:
    """A `JobStore` in SQLite, for the processes of one machine, or in PostgreSQL.

    Steps of all callers go through one connection, batch by batch, each batch a transaction
    (see `GroupCommit`); what only reads goes through the pool. Listeners do not hear others: poll.
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
        self.limits: JobLimits = JobLimits() if limits is None else limits
        self._database = Database(url_or_engine, is_fast=True)
        self._statements = self._database.statements
        self._clock = DatabaseClock(self._statements, now_ms)
        most = self.limits.max_batch
        self._commit = GroupCommit(self._run, weigh=Step.__len__, most=most)
        self._fires = GroupCommit(self._look_up, weigh=list.__len__, most=most)
        # Thousands may poll for the end of a job each: they share one question too.
        self._gets = GroupCommit(self._get_all, weigh=len, most=most)
        self._shard = secrets.randbelow(_SHARDS)
        self._active, self._counted_at = 0, -inf
        self._is_open = False
        self._closing = CloseOnce(self._close)
        self._reads: set[asyncio.Task[Any]] = set()
        self._listeners = StoreListeners()

    async def open(self) -> None:
        """Connect, and look whether the tables are those that this version works with."""
        try:
            await self._database.read(check_revision)
        except BaseException:
            await self._database.close()
            raise
        self._closing = CloseOnce(self._close)
        self._is_open = True

    async def close(self) -> None:
        """Wait for the steps under way, then let go of every connection."""
        self._is_open = False
        await self._closing.wait()

    async def _close(self) -> None:
        try:
            await self._fires.join()
            await self._gets.join()
            await self._commit.join()
            while self._reads:
                await asyncio.wait(self._reads)
        finally:
            await self._database.close()

    async def check(self) -> list[str]:
        """Return warnings about the database's settings."""
        return await self._read(self._warnings)

    async def now_ms(self) -> int:
        """Return the server's clock; this machine's for SQLite."""
        self._check_open()
        local_ms = self._clock.local_ms()
        if local_ms is not None:
            return local_ms
        clock = select(self._clock.expression())
        return int(await self._read(lambda connection: connection.scalars(clock).one()))

    @property
    def hears_others(self) -> bool:
        """False: NOTIFY would let all commits of a PostgreSQL server wait for one another."""
        return False

    def subscribe(self, listener: StoreListener) -> Callable[[], None]:
        """Tell `listener` of changes made through this object; return the function that ends it."""
        return self._listeners.subscribe(listener)

    # Those who want something done

    async def add(self, specs: Sequence[JobSpec]) -> list[Added | JobError]:
        """Store jobs durably; return for each what was done, or why it was refused."""
        added: list[Added | JobError] = await self._do("add", specs)
        return added

    def may_wait_on(self, key: str) -> bool:
        """Return True: another process may have added a job this very moment.

        So a fire asks; the fires of one moment share one indexed look-up.
        """
        return True

    async def fire(self, fires: Sequence[KeyFire], *, limit: int) -> list[KeyFired]:
        """Decide the undecided jobs on each key, up to `limit` of each."""
        self._check_open()
        if not fires:
            return []
        keys: list[bool] = await self._fires.ask([fire.key for fire in fires])
        waited_on = [fire for fire, has_jobs in zip(fires, keys, strict=True) if has_jobs]
        fired = iter(await self._do("fire", waited_on, limit))
        return [next(fired) if has_jobs else KeyFired() for has_jobs in keys]

    async def cancel(self, job_id: str, *, if_version: int | None = None) -> Job:
        """Cancel a waiting job; return it."""
        return await self._change("cancel", (job_id, if_version))

    async def cancel_for_key(self, key: str, *, limit: int) -> KeyFired:
        """Cancel up to `limit` of the undecided jobs on `key`."""
        (fired,) = await self._do("cancel_for_key", [key], limit)
        assert isinstance(fired, KeyFired)
        return fired

    async def reschedule(
        self, job_id: str, deadline: Deadline, *, if_version: int | None = None
    ) -> Job:
        """Move an undecided job's deadline, not beyond its ceiling; return the job."""
        return await self._change("reschedule", (job_id, deadline, if_version))

    async def run_now(self, job_id: str, *, if_version: int | None = None) -> Job:
        """Let a waiting job be due now; return the job."""
        return await self._change("run_now", (job_id, if_version))

    # Those who run jobs

    async def claim(self, worker: str, *, within_ms: int, limit: int, lease_ms: int) -> Claimed:
        """Lease the first jobs that are due within `within_ms`."""
        (claimed,) = await self._do("claim", [(worker, within_ms, limit, lease_ms)])
        assert isinstance(claimed, Claimed)
        return claimed

    async def renew(self, claims: Sequence[JobClaim], *, lease_ms: int) -> list[JobClaim]:
        """Let leases end `lease_ms` from now; return the claims that are lost, or finished."""
        renewed = await self._do("renew", claims, lease_ms)
        return [claim for claim in renewed if claim is not None]

    async def start(self, claims: Sequence[JobClaim], *, lease_ms: int) -> list[Job | None]:
        """Start claimed jobs; None where the claim is lost, unchanged where it is not due yet."""
        jobs: list[Job | None] = await self._do("start", claims, lease_ms)
        return jobs

    async def finish(self, results: Sequence[JobResult]) -> list[bool]:
        """Record how running jobs ended."""
        finished: list[bool] = await self._do("finish", results)
        return finished

    async def miss(self, claims: Sequence[JobClaim]) -> list[bool]:
        """Record that undecided jobs are not to run any more."""
        missed: list[bool] = await self._do("miss", claims)
        return missed

    async def give_back(self, returns: Sequence[JobReturn]) -> list[bool]:
        """Let others have jobs that wait or run."""
        given_back: list[bool] = await self._do("give_back", returns)
        return given_back

    async def next_due_ms(self) -> int | None:
        """Return the earliest due_ms of the jobs that can be claimed now."""
        statement = self._statements.next_due(self._clock.expression())
        return await self._read(lambda connection: connection.scalars(statement).one())

    # Those who look on

    async def get(self, job_ids: Sequence[str]) -> list[Job | None]:
        """Return jobs by id; None for what there is not."""
        self._check_open()
        if not job_ids:
            return []
        jobs: list[Job | None] = await self._gets.ask(job_ids)
        return jobs

    async def query(self, where: JobFilter, *, after: str | None = None, limit: int) -> JobPage:
        """Return a page of the jobs that match, having looked at no more than a batch."""
        self._check_open()
        asked = {"state": where.state, "handler": where.handler, "key": where.key, "after": after}
        given = {name: str(value) for name, value in asked.items() if value is not None}
        if not all(map(is_storable, given.values())):
            return JobPage([], next=None)
        is_filtered = sum(name != "after" for name in given) > 1
        limit = min(limit, self.limits.max_batch)
        looked_at = self.limits.max_batch if is_filtered else limit
        statement = self._statements.page_ids(where, is_first=after is None)
        rows = await self._read(
            lambda connection: connection.execute(
                statement, {**given, "limit": looked_at + 1}
            ).all()
        )
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
        """Return how many jobs there are; a sum of a few rows."""
        row = await self._read(
            lambda connection: connection.execute(self._statements.counts).mappings().one()
        )
        counts = {name: int(count) for name, count in row.items()}
        return JobCounts(quarantined=counts.pop("set_aside"), **counts)

    # Those who clean up

    async def prune(self, *, finished_before_ms: int, keep: int, limit: int) -> int:
        """Forget finished jobs, the earliest finished first; return how many."""
        (pruned,) = await self._do("prune", [(finished_before_ms, keep, limit)])
        assert isinstance(pruned, int)
        return pruned

    async def quarantined(self, *, limit: int) -> list[QuarantinedRecord]:
        """Return records that were set aside because they are no jobs, the latest last."""
        rows = await self._read(
            lambda connection: connection.execute(
                self._statements.quarantined, {"limit": limit}
            ).all()
        )
        return [QuarantinedRecord(*row) for row in reversed(rows)]

    # Writing

    def _check_open(self) -> None:
        if not self._is_open:
            raise PurgatoryClosedError("the store of jobs is not open: open it first")

    async def _do(self, name: str, items: Sequence[Any], *options: Any) -> list[Any]:
        self._check_open()
        if not items:
            return []
        most = self.limits.max_batch
        if len(items) <= most:
            results: list[Any] = await self._commit.ask(Step(name, items, options))
            return results
        # Queued together: they stay in order, and whoever comes meanwhile waits behind them. One
        # transaction for all would hold the event loop, and the locks, for as long as it takes.
        steps = [Step(name, items[at : at + most], options) for at in range(0, len(items), most)]
        several = await asyncio.gather(*map(self._commit.ask, steps))
        return [result for some in several for result in some]

    async def _change(self, name: str, item: Any) -> Job:
        (job,) = await self._do(name, [item])
        if isinstance(job, JobError):
            raise job
        assert isinstance(job, Job)
        return job

    async def _run(self, batch: list[Step]) -> list[Any]:
        """Do a batch in one transaction; each step by itself if one of them is refused."""
        try:
            return await self._transact(batch)
        except StoreError:
            raise
        except Exception as exc:
            error = store_error(exc) or exc
            # Only what the database has against a value is one step's own fault.
            if type(error) is not StoreError or len(batch) == 1:
                raise error from exc
        results: list[Any] = []
        for step in batch:
            try:
                results += await self._run([step])
            except Exception as exc:
                results.append(exc)
        return results

    async def _transact(self, batch: list[Step]) -> list[Any]:
        is_careful = False
        for _ in range(_MAX_TRIES):
            try:
                results, transaction = await self._database.write(
                    functools.partial(self._do_all, batch, is_careful)
                )
            except LookFirstError:
                is_careful = True
            except DBAPIError as exc:
                if not is_to_be_repeated(exc):
                    raise
                is_careful = True
            else:
                self._announce(transaction)
                return results
        raise StoreUnavailableError(
            f"others changed the same jobs {_MAX_TRIES} times in a row: ask again; nothing was done"
        )

    def _do_all(
        self, batch: list[Step], is_careful: bool, connection: Connection
    ) -> tuple[list[Any], JobTransaction]:
        transaction = JobTransaction(
            connection,
            self._statements,
            self._clock,
            self.limits,
            shard=self._shard,
            is_counting=not self._has_room() and any(step.name == "add" for step in batch),
            is_careful=is_careful,
        )
        groups = _grouped(batch)
        items = {
            group: [item for step in steps for item in step.items]
            for group, steps in groups.items()
        }
        transaction.lock_ahead(items)
        results: dict[Step, list[Any]] = {}
        for (name, options), steps in groups.items():
            answers = iter(transaction.run(name, items[name, options], options))
            for step in steps:
                results[step] = [next(answers) for _ in step.items]
        transaction.end()
        if transaction.active is not None:
            self._active, self._counted_at = transaction.active, _now()
        return [results[step] for step in batch], transaction

    def _has_room(self) -> bool:
        """Return True iff the limit is out of reach for so long that there is no need to count."""
        is_recent = _now() < self._counted_at + _COUNT_SECONDS
        return is_recent and self._active + _FAR < self.limits.max_waiting

    def _announce(self, transaction: JobTransaction) -> None:
        if not self._listeners:
            return
        until_ms = transaction.now_ms + self.limits.horizon_ms
        for job in transaction.announced.values():
            self._listeners.tell_of(job, until_ms)

    # Reading

    async def _look_up(self, batch: list[list[str]]) -> list[list[bool]]:
        """Return for each caller's keys whether an undecided job is on them."""
        keys = {key for asked in batch for key in asked if is_storable(key)}
        given = {"keys": self._statements.many(keys)}
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
        asked = {"ids": self._statements.many(job_ids)}
        records = await self._read(
            lambda connection: connection.execute(self._statements.get, asked).mappings().all()
        )
        jobs = {}
        corrupt = []
        for record in records:
            try:
                jobs[record["id"]] = job_of(dict(record))
            except CorruptJobError as exc:
                corrupt.append(exc.job_id)
        if corrupt:
            await self._set_aside(corrupt)
        return jobs

    async def _set_aside(self, job_ids: list[str]) -> None:
        try:
            await self._do("set_aside", job_ids)
        except StoreError as exc:
            # Whoever reads is not to suffer from that; the next who comes upon them tries again.
            _log.warning(
                "corrupt jobs stay where they are: %s", exc, extra={"action": "quarantine"}
            )

    async def _read(self, work: Callable[[Connection], T]) -> T:
        self._check_open()
        return await self._finish(self._database.read(work))

    async def _finish(self, reading: Coroutine[Any, Any, T]) -> T:
        """Return what `reading` returns; it goes on where the caller is cancelled.

        So that a connection is never left in the middle of an answer.
        """
        task = asyncio.create_task(reading, name="purgatory-jobs-read")
        self._reads.add(task)
        task.add_done_callback(self._reads.discard)
        task.add_done_callback(_retrieve)
        return await asyncio.shield(task)

    def _warnings(self, connection: Connection) -> list[str]:
        if self._statements.is_sqlite:
            mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()
            return [] if mode == "wal" else [_NOT_WAL.format(mode=mode)]
        return [
            warning
            for setting, warning in _POSTGRESQL_WARNINGS.items()
            if connection.exec_driver_sql(f"SHOW {setting}").scalar_one() == "off"
        ]


_NOT_WAL = (
    "The journal mode of the SQLite file is {mode}, so that readers and the writer wait for one "
    "another: keep the file on a local disk, where WAL can be used"
)
_POSTGRESQL_WARNINGS = {
    "synchronous_commit": (
        "synchronous_commit is off, so that a crash of the PostgreSQL server loses the jobs that "
        "were acknowledged just before: set it to on"
    ),
    "fsync": "fsync is off, so that a power cut may lose every job in PostgreSQL: set it to on",
    "full_page_writes": (
        "full_page_writes is off, so that a power cut may damage jobs in PostgreSQL: set it to on"
    ),
}


def _now() -> float:
    # Not the loop's: a transaction may run in a thread.
    return SystemClock().now_ns() / 1_000_000_000


def _grouped(batch: list[Step]) -> dict[tuple[str, tuple[Any, ...]], list[Step]]:
    groups: dict[tuple[str, tuple[Any, ...]], list[Step]] = {}
    for step in batch:
        groups.setdefault((step.name, step.options), []).append(step)
    return groups


def _retrieve(task: asyncio.Task[Any]) -> None:
    # Where the caller was cancelled, nobody else does, and the loop would complain.
    if not task.cancelled():
        task.exception()
