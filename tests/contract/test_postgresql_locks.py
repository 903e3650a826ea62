"""PostgreSQL while other transactions keep jobs locked, or their host has vanished."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import pytest
from sqlalchemy import event, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from purgatory.job_errors import StoreBusyError
from purgatory.jobs import JobState
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import Added
from purgatory.jobs.sql import batch_runner
from purgatory.jobs.sql.engine import make_engine
from purgatory.jobs.sql.statements import Statements
from purgatory.jobs.sql.tables import jobs
from tests.contract.sql_job_stores import PostgresqlJobStores
from tests.patience import PATIENCE_S
from tests.step_methods import SqlSteps

LEASE_MS = 1_000


@pytest.fixture
async def stores(postgresql_job_stores: Any) -> AsyncIterator[PostgresqlJobStores]:
    """Tables without jobs; the stores of the tests go by the server's clock."""
    stores: PostgresqlJobStores = postgresql_job_stores(None, None)
    await stores.make_ready()
    yield stores
    await stores.close()


@asynccontextmanager
async def opened(engine: AsyncEngine) -> AsyncIterator[SqlSteps]:
    store = SqlSteps(engine)
    await store.open()
    try:
        yield store
    finally:
        await store.close()
        await engine.dispose()


async def add(store: SqlSteps, count: int, **options: Any) -> list[str]:
    specs = [JobSpec.of("note", wall_ms=0, **({"delay": 0} | options)) for _ in range(count)]
    assert all(isinstance(each, Added) for each in await store.add(specs))
    return [spec.id for spec in specs]


@asynccontextmanager
async def locked(engine: AsyncEngine, job_id: str) -> AsyncIterator[None]:
    """Lock a job, as a console or a backup does, until the end."""
    async with engine.begin() as connection:
        await connection.execute(select(jobs.c.id).where(jobs.c.id == job_id).with_for_update())
        yield


async def test_a_locked_job_holds_up_no_other(
    stores: PostgresqlJobStores, caplog: pytest.LogCaptureFixture
) -> None:
    """Its cancellation waits; adding, renewing and cancelling others do not, and it is logged."""
    engine = stores.engine()
    async with opened(stores.engine()) as store:
        one, other = await add(store, 2)
        held = (await store.claim("w", within_ms=0, limit=9, lease_ms=60_000)).jobs
        async with locked(engine, one):
            cancelling = asyncio.create_task(store.cancel(one))
            both = asyncio.create_task(store.cancel(other))
            more = [asyncio.create_task(add(store, 1)) for _ in range(20)]
            await asyncio.sleep(0)
            # None of them ends by the end of the lock.
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*more)
                assert (await both).state is JobState.CANCELLED
                [claim] = [job.claim for job in held if job.id == one]
                assert await store.renew([claim], lease_ms=LEASE_MS) == []
            assert not cancelling.done()
        assert (await cancelling).state is JobState.CANCELLED
    # Once, and not for each step of the batch.
    assert caplog.text.count("keeps a job locked") == 1
    await engine.dispose()


async def test_a_step_that_waits_holds_up_no_start(
    stores: PostgresqlJobStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it waits for its lock: starts and renewals have connections of their own."""
    monkeypatch.setattr(Statements.of("postgresql").dialect, "transaction_bounds", [])
    engine = stores.engine()
    async with opened(stores.engine()) as store:
        one, other = await add(store, 2)
        held = (await store.claim("w", within_ms=0, limit=9, lease_ms=60_000)).jobs
        [claim] = [job.claim for job in held if job.id == other]
        async with locked(engine, one):
            cancelling = asyncio.create_task(store.cancel(one))
            await asyncio.sleep(0.1)
            async with asyncio.timeout(PATIENCE_S):
                [started] = await store.start([claim], lease_ms=LEASE_MS)
            assert started is not None and started.state is JobState.RUNNING
            assert not cancelling.done()
        assert (await cancelling).state is JobState.CANCELLED
    await engine.dispose()


async def test_a_renewal_waits_for_no_lock(stores: PostgresqlJobStores) -> None:
    """It says of a locked job that it was too busy, and renews all others of the same step."""
    engine = stores.engine()
    async with opened(stores.engine()) as store:
        ids = await add(store, 3)
        claims = [
            job.claim
            for job in (await store.claim("w", within_ms=0, limit=9, lease_ms=60_000)).jobs
        ]
        async with locked(engine, ids[1]):
            lost = await store.renew(claims, lease_ms=3_600_000)
        now_ms = await store.now_ms()
        found = [job for job in await store.get(ids) if job is not None]
    assert lost == []
    assert [job.lease_until_ms > now_ms + 100_000 for job in found] == [True, False, True]
    await engine.dispose()


async def test_a_job_that_stays_locked_is_reported(
    stores: PostgresqlJobStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an outage of this one job, when the budget of the call is over."""
    monkeypatch.setattr(batch_runner, "BUDGET_MS", 10)
    engine = stores.engine()
    async with opened(stores.engine()) as store:
        [one] = await add(store, 1)
        async with locked(engine, one):
            with pytest.raises(StoreBusyError, match="see pg_locks"):
                await store.cancel(one)
        assert (await store.cancel(one)).state is JobState.CANCELLED
    await engine.dispose()


class Vanishing:
    """A way to the server that falls silent in both directions once a claim has locked jobs."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._is_claiming = False
        self.has_vanished = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_unix_connection(self._path)
        for source, target in ((reader, server_writer), (server_reader, writer)):
            self._tasks.add(asyncio.create_task(self._copy(source, target)))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                if self.has_vanished.is_set():
                    await asyncio.Event().wait()
                writer.write(data)
                if self._is_claiming and data.startswith(b"B"):
                    # The statement is executed; nothing else of this connection arrives.
                    self.has_vanished.set()
                self._is_claiming |= b"SKIP LOCKED" in data
        finally:
            writer.transport.abort()


async def test_a_host_that_vanishes_within_a_transaction(stores: PostgresqlJobStores) -> None:
    """The server ends its transaction: another host claims its overdue jobs soon after."""
    url = make_url(stores.url)
    folder = url.query["host"]
    async with opened(stores.engine()) as other, Vanishing(f"{folder}/.s.PGSQL.5432") as way:
        ids = await add(other, 20)
        through = url.set(host="127.0.0.1", port=way.port).difference_update_query(["host"])
        lost = create_async_engine(
            through, connect_args={"server_settings": {"search_path": stores.schema}, "ssl": False}
        )
        store = SqlSteps(lost)
        await store.open()
        claiming = asyncio.create_task(
            store.claim("gone", within_ms=0, limit=99, lease_ms=LEASE_MS)
        )
        async with asyncio.timeout(PATIENCE_S):
            await way.has_vanished.wait()
        claimed: list[str] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(claimed) < 20:
                found = await other.claim("w", within_ms=0, limit=99, lease_ms=60_000)
                claimed += [job.id for job in found.jobs]
        claiming.cancel()
        await asyncio.gather(claiming, return_exceptions=True)
        assert sorted(claimed) == sorted(ids)
        await lost.dispose(close=False)


async def test_our_own_connections_let_the_server_notice_that_we_are_gone(
    stores: PostgresqlJobStores,
) -> None:
    """The statement is accepted; on a socket that is a file, the settings are without effect."""
    engine = make_engine(stores.url)
    executed: list[str] = []
    event.listen(engine.sync_engine, "connect", lambda *_: executed.append("connected"))
    async with engine.connect() as connection:
        assert await connection.scalar(text("SHOW tcp_user_timeout")) in ("0", "10s")
    assert executed == ["connected"]
    await engine.dispose()
