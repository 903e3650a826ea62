"""A purgatory on each kind of store, opened again on another event loop and thread."""

import asyncio
import secrets
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import redis.asyncio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from purgatory import Purgatory
from purgatory.jobs import JobContext, JobStore, MemoryJobStore
from purgatory.jobs.redis import RedisJobStore
from purgatory.jobs.sql import SqlJobStore, migrate
from tests.contract.postgresql_server import PostgresqlServer
from tests.valkey_server import ValkeyServer

Made = tuple[JobStore, Callable[[], object]]


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """A migrated file of its own."""
    path = tmp_path / "jobs.db"
    path.write_bytes(sqlite_template.read_bytes())
    return f"sqlite+aiosqlite:///{path}"


@pytest.fixture
def postgresql_url(postgresql_server: PostgresqlServer) -> str:
    """A migrated database of its own."""
    name = f"reopen_{secrets.token_hex(4)}"

    async def make() -> str:
        admin = create_async_engine(
            postgresql_server.url.replace("postgresql://", "postgresql+asyncpg://"),
            isolation_level="AUTOCOMMIT",
        )
        async with admin.connect() as connection:
            await connection.execute(text(f"CREATE DATABASE {name}"))
        await admin.dispose()
        url = admin.url.set(database=name).render_as_string(hide_password=False)
        await migrate(url)
        return url

    return asyncio.run(make())


def in_another_thread(work: Callable[[], object]) -> None:
    """Run to the end, and raise what it raises."""
    errors: list[BaseException] = []

    def call() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def use_three_times(store: JobStore, after: Callable[[], object] = lambda: None) -> None:
    """Each time on a new loop, the second time in another thread; each job runs once."""
    purgatory = Purgatory(jobs=store)
    ran: list[int] = []
    have_run = asyncio.Event()

    @purgatory.handler("note")
    async def note(job: JobContext, number: int) -> None:
        ran.append(number)
        if len(ran) == 2 * number + 1:
            have_run.set()

    async def use(number: int) -> None:
        nonlocal have_run
        have_run = asyncio.Event()
        async with purgatory:
            if number:
                await purgatory.fire("go", number)
            for key in ("now", "go"):
                await purgatory.defer("note", number, delay=300, keys=[key])
            fired = await purgatory.fire("now")
            # On a busy machine the store may take longer than a fire waits for it.
            assert fired.jobs == 1 or fired.jobs_pending
            counts = await purgatory.jobs.counts()
            assert counts.waiting >= 1
            await have_run.wait()
        result = after()
        if asyncio.iscoroutine(result):
            await result

    asyncio.run(use(0))
    in_another_thread(lambda: asyncio.run(use(1)))
    asyncio.run(use(2))
    assert sorted(ran) == [0, 0, 1, 1, 2]
    assert not purgatory.is_open


def test_memory() -> None:
    """Jobs stay while it is closed."""
    use_three_times(MemoryJobStore())


def test_sqlite(sqlite_url: str) -> None:
    """By a thread of the store."""
    use_three_times(SqlJobStore(sqlite_url))


def test_postgresql(postgresql_url: str) -> None:
    """By connections that belong to a loop."""
    use_three_times(SqlJobStore(postgresql_url))


def test_redis(redis_server: ValkeyServer) -> None:
    """By connections that belong to a loop, and a subscription."""
    use_three_times(RedisJobStore(redis_server.url, secrets.token_hex(4), shards=2))


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_an_engine_of_the_application(kind: str, request: pytest.FixtureRequest) -> None:
    """Which disposes of it before its loop ends, as SQLAlchemy asks for."""
    engine = create_async_engine(request.getfixturevalue(f"{kind}_url"))
    use_three_times(SqlJobStore(engine), engine.dispose)


def test_a_client_of_the_application(redis_server: ValkeyServer) -> None:
    """Which closes it before its loop ends; it connects again when it is used."""
    client = redis.asyncio.Redis.from_url(redis_server.url)
    use_three_times(RedisJobStore(client, secrets.token_hex(4)), client.aclose)
