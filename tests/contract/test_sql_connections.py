"""Connections and engines of databases, and the plans of what they read."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
from collections.abc import Coroutine, Generator, Iterator
from typing import Any

import asyncpg  # type: ignore[import-untyped]  # it has no types
import pytest
import sqlalchemy
from sqlalchemy import BigInteger, Connection, event, insert, literal, make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool, Pool, StaticPool
from sqlalchemy.util import await_only

from purgatory import Purgatory
from purgatory.job_errors import StoreNotReadyError
from purgatory.jobs import JobContext, JobLimits, StoreUnavailableError
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.sql import SqlJobStore, migrate
from purgatory.jobs.sql.database import Database
from purgatory.jobs.sql.statements import Statements
from purgatory.jobs.sql.tables import job_keys, jobs, record_of
from tests.contract.job_stores import MakeJobStores
from tests.contract.postgresql_server import PostgresqlServer
from tests.contract.sql_job_stores import SqlJobStores, plan_of
from tests.patience import PATIENCE_S, until


class CancelledAt:
    """A coroutine that is cancelled while it awaits for the nth time, or just after."""

    def __init__(
        self, coroutine: Coroutine[Any, Any, object], number: int, *, is_after: bool
    ) -> None:
        self._coroutine = coroutine
        self._number = number
        self._is_after = is_after

    def __await__(self) -> Generator[Any, None, None]:
        resume: Any = self._coroutine.send
        argument: object = None
        count = 0
        while True:
            try:
                awaited = resume(argument)
            except StopIteration:
                return
            count += 1
            if count == self._number and not self._is_after:
                # As Task.cancel does.
                awaited.cancel()
            try:
                yield awaited
            except BaseException as exc:
                resume, argument = self._coroutine.throw, exc
            else:
                resume, argument = self._coroutine.send, None
            if count == self._number and self._is_after:
                resume, argument = self._coroutine.throw, asyncio.CancelledError()


class Opened:
    """The connections that were opened, and threads that were started, since this was made."""

    def __init__(self) -> None:
        # Kept, so that garbage collection closes none of them.
        self._connections: list[Any] = []
        self._threads = set(threading.enumerate())

    def note(self, connection: Any, record: Any) -> None:
        self._connections.append(record.driver_connection)

    def is_nothing(self) -> bool:
        """Return True iff they are closed; those of SQLite are if their threads have ended."""
        if not self._threads.issuperset(threading.enumerate()):
            return False
        asynchronous = [one for one in self._connections if isinstance(one, asyncpg.Connection)]
        return all(connection.is_closed() for connection in asynchronous)


@pytest.fixture
def opened() -> Iterator[Opened]:
    opened = Opened()
    event.listen(Pool, "connect", opened.note)
    yield opened
    event.remove(Pool, "connect", opened.note)


def read_one(connection: Connection) -> int:
    return int(connection.scalars(text("SELECT 1")).one())


@pytest.mark.skipif(
    sqlalchemy.__version__ < "2.1", reason="its pool abandons connections that it was opening"
)
# aiosqlite drops what it was opening, for the garbage collector to close; its thread ends. Python
# 3.13 is the first to say so: https://github.com/omnilib/aiosqlite/issues/259
@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")
@pytest.mark.parametrize("is_after", [False, True], ids=["during", "after"])
@pytest.mark.parametrize("method", ["read", "_read", "write"])
@pytest.mark.parametrize("is_ours", [False, True], ids=["engine", "url"])
async def test_a_cancelled_caller_leaves_no_connection(
    opened: Opened, database: SqlJobStores, is_ours: bool, method: str, is_after: bool
) -> None:
    """Wherever it is cancelled, it ends as cancelled, and closing closes all."""
    number = 0
    is_cancelled = True
    while is_cancelled:
        number += 1
        engine = database.engine()
        subject = Database(database.url if is_ours else engine)
        try:
            await CancelledAt(getattr(subject, method)(read_one), number, is_after=is_after)
            is_cancelled = False
        except asyncio.CancelledError:
            pass
        await subject.close()
        await engine.dispose()
        await until(opened.is_nothing)
        # In SQLite, a transaction also lasts as long as the cursors in the exception's traceback.
        gc.collect(1)
    assert number > 1


async def test_a_read_under_way_at_a_failover_leaves_no_connection(
    opened: Opened, postgresql_server: PostgresqlServer
) -> None:
    """The pool that it took its connection from has been replaced when it returns it."""
    subject = Database(postgresql_server.url)
    is_reading, may_end = asyncio.Event(), asyncio.Event()

    def read(connection: Connection) -> int:
        is_reading.set()
        await_only(may_end.wait())
        return read_one(connection)

    def write(connection: Connection) -> None:
        connection.execute(text("SET TRANSACTION READ ONLY"))
        connection.execute(text("CREATE TABLE a (b int)"))

    reading = asyncio.create_task(subject.read(read))
    await is_reading.wait()
    with pytest.raises(sqlalchemy.exc.DBAPIError, match="read-only"):
        await subject.write(write)
    may_end.set()
    assert await reading == 1
    assert opened.is_nothing()
    await subject.close()


async def test_a_start_that_is_ended_while_it_connects_leaves_no_error() -> None:
    """Asyncpg would leave one that nobody retrieves, which the loop logs when it is collected."""
    loop = asyncio.get_running_loop()
    said: list[object] = []
    loop.set_exception_handler(lambda _, context: said.append(context))

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        for turns in range(60):
            store = SqlJobStore(f"postgresql://user:password@{host}:{port}/jobs")
            opening = asyncio.create_task(store.open())
            for _ in range(turns):
                await asyncio.sleep(0)
            opening.cancel()
            with pytest.raises((asyncio.CancelledError, StoreUnavailableError)):
                await opening
    del opening, store
    gc.collect()
    assert said == []


@pytest.mark.parametrize("pool", [{"pool_size": 1, "max_overflow": 0}, {"poolclass": StaticPool}])
async def test_a_pool_that_is_too_small_for_the_store_is_refused(
    postgresql_server: PostgresqlServer, pool: dict[str, Any]
) -> None:
    """Its reads would wait for the connection on which it writes."""
    url = postgresql_server.url.replace("postgresql://", "postgresql+asyncpg://")
    engine = create_async_engine(url, **pool)
    with pytest.raises(StoreNotReadyError, match="has 1 connections at most"):
        await SqlJobStore(engine).open()
    await engine.dispose()


@pytest.mark.parametrize(
    ("pool", "said"),
    [
        ({"pool_size": 2, "max_overflow": 1}, ["3 connections at most", "holds 3", "4 or more"]),
        ({"pool_size": 3, "max_overflow": 1}, []),
        ({"pool_size": 1, "max_overflow": -1}, []),
        ({"poolclass": NullPool}, []),
    ],
)
async def test_a_pool_that_is_too_small_for_handlers_is_a_warning(
    postgresql_server: PostgresqlServer, pool: dict[str, Any], said: list[str]
) -> None:
    """With the number that it takes: three are held, and another one reads."""
    url = postgresql_server.url.replace("postgresql://", "postgresql+asyncpg://")
    engine = create_async_engine(url, **pool)
    warnings = Database(engine).check_pool()
    assert len(warnings) == bool(said)
    assert all(each in warnings[0] for each in said)


async def test_a_query_of_a_file_is_one_round_trip_to_its_thread(
    sqlite_job_stores: MakeJobStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers poll: what one takes is the time of each idle process, and of each virtual second."""
    store = await sqlite_job_stores(JobLimits(), lambda: 1_000).connect()
    await store.next_due_ms(None)
    loop, wake_ups = asyncio.get_running_loop(), 0
    wake = loop.call_soon_threadsafe

    def count(*args: Any, **options: Any) -> asyncio.Handle:
        nonlocal wake_ups
        wake_ups += 1
        return wake(*args, **options)

    monkeypatch.setattr(loop, "call_soon_threadsafe", count)
    await store.next_due_ms(None)
    monkeypatch.undo()
    assert wake_ups == 1
    await store.close()


async def test_jobs_through_psycopg(postgresql_server: PostgresqlServer) -> None:
    """They run at a deadline and by a fire, and commit with a session of the engine."""
    url = make_url(postgresql_server.url).set(drivername="postgresql+psycopg")
    engine = create_async_engine(url)
    await migrate(engine)
    purgatory = Purgatory(jobs=SqlJobStore(engine))
    ran: asyncio.Queue[str] = asyncio.Queue()

    @purgatory.handler("remind")
    async def remind(job: JobContext, name: str) -> None:
        ran.put_nowait(f"{name} {job.outcome}")

    try:
        async with purgatory, asyncio.timeout(PATIENCE_S):
            async with AsyncSession(engine) as session:
                await purgatory.defer("remind", "a", delay=900, keys=["k"], session=session)
                await session.rollback()
                await purgatory.defer("remind", "b", delay=0, session=session)
                await purgatory.defer("remind", "c", delay=900, keys=["k"])
                await purgatory.fire("k", session=session)
                await session.commit()
            assert {await ran.get(), await ran.get()} == {"b expired", "c fired"}
    finally:
        await migrate(engine, "base")
        await engine.dispose()
    assert ran.empty()


async def plans(engine: AsyncEngine) -> list[str]:
    """How a claim of two handlers, and the look before it, find jobs: free, lapsed, next."""
    statements = Statements.of(engine.dialect.name)
    handlers = {"handlers": statements.dialect.many(["a", "b"])}
    soon = handlers | {"until_ms": 2_000, "limit": 250}
    next_due = statements.reads.next_due(literal(1, BigInteger), of_handlers=True)
    found = [
        await plan_of(engine, statement, asked)
        for statement, asked in (
            (statements.locks.free, soon),
            (statements.locks.lapsed, soon | {"now_ms": 1}),
            (next_due, handlers),
        )
    ]
    await engine.dispose()
    return found


async def test_claims_by_handler_read_no_history(database: SqlJobStores) -> None:
    """Without statistics: the index of a handler's jobs has a million of those that have ended."""
    engine = database.engine()
    if engine.dialect.name != "sqlite":
        # The schema was used before: indexes that are large and hold nothing cost more.
        async with engine.begin() as connection:
            await connection.execute(text(f"TRUNCATE {jobs.name}, {job_keys.name}"))
    for plan in await plans(engine):
        assert not re.search(r"ix_purgatory_jobs_handler\b", plan), plan


async def test_claims_by_handler_read_no_jobs_of_others(database: SqlJobStores) -> None:
    """However many of those are due."""
    engine = database.engine()
    specs = [JobSpec.of("other", wall_ms=0, delay=1) for _ in range(3_000)]
    async with engine.begin() as connection:
        await connection.execute(insert(jobs), [record_of(spec.job(0, 1_000)) for spec in specs])
        await connection.execute(text("ANALYZE"))
    free, _, next_due = await plans(engine)
    assert "ix_purgatory_jobs_free" in free, free
    assert "ix_purgatory_jobs_free" in next_due, next_due
