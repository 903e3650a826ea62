"""Jobs and fires in the transactions of the application: with its commit, or not at all."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from purgatory import Limits, Purgatory
from purgatory.errors import InvalidKeyError, InvalidValueError
from purgatory.job_errors import IdempotencyConflictError, StoreNotReadyError
from purgatory.jobs import (
    Again,
    DuplicateJobError,
    JobContext,
    JobOutcome,
    JobState,
    MemoryJobStore,
    StoreUnavailableError,
    owed_fires,
)
from purgatory.jobs.model.steps import Added
from purgatory.jobs.sql import SqlJobStore, migrate
from purgatory.jobs.sql.application import call_on_commit, connection_of
from purgatory.jobs.sql.job_transaction import JobTransaction
from purgatory.jobs.stores.protocol import NewFire
from tests.contract.sql_job_stores import SqliteJobStores, SqlJobStores
from tests.garbage import without_collector
from tests.patience import until

Begin = Callable[[], Awaitable[Any]]
MakeStore = Callable[[], SqlJobStore]


@pytest.fixture
async def make_store(database: SqlJobStores) -> AsyncIterator[MakeStore]:
    """Makes stores, not opened, as processes have them."""
    engines: list[AsyncEngine] = []

    def make() -> SqlJobStore:
        if isinstance(database, SqliteJobStores):
            return SqlJobStore(database.url)
        engines.append(database.engine())
        return SqlJobStore(engines[-1])

    yield make
    for engine in engines:
        await engine.dispose()


@pytest.fixture
async def purgatory(make_store: MakeStore) -> AsyncIterator[Purgatory]:
    """A purgatory on the same database; "note" is run elsewhere."""
    limits = Limits(max_signals_per_key=1000)
    async with Purgatory(jobs=make_store(), limits=limits) as purgatory:
        purgatory.handled_elsewhere(["note"])
        yield purgatory


@pytest.fixture(params=["session", "connection"])
async def begin(request: pytest.FixtureRequest, engine: AsyncEngine) -> AsyncIterator[Begin]:
    """Each kind of transaction in turn."""
    async with AsyncExitStack() as stack:

        async def begin() -> Any:
            if request.param == "session":
                return await stack.enter_async_context(AsyncSession(engine))
            return await stack.enter_async_context(engine.connect())

        yield begin


async def test_a_job_is_stored_by_the_commit(purgatory: Purgatory, begin: Begin) -> None:
    """And unknown before; it is found by its id, runs, and has its key."""
    session = await begin()
    handle = await purgatory.defer("note", {"a": 1}, delay=600, keys=["k"], session=session)
    assert not (await purgatory.jobs.list()).jobs
    await session.commit()
    assert (await handle.get()).payload_json == '{"a":1}'
    assert (await purgatory.jobs.counts()).waiting == 1
    assert (await purgatory.fire("k")).jobs == 1


async def test_a_rollback_leaves_nothing(purgatory: Purgatory, begin: Begin) -> None:
    """No job, no count, no fire."""
    parked = asyncio.create_task(purgatory.park("k", timeout=0.3))
    await asyncio.sleep(0)
    session = await begin()
    await purgatory.defer("note", delay=600, keys=["k"], session=session)
    await purgatory.fire("k", session=session)
    await session.rollback()
    assert (await parked).status == "expired"
    assert (await purgatory.jobs.counts()).waiting == 0
    assert not (await purgatory.jobs.list()).jobs


async def test_a_repeated_call_is_stored_by_the_first_commit(
    purgatory: Purgatory, begin: Begin, database: SqlJobStores
) -> None:
    """A rollback forgets its idempotency key; while one is not committed, a repeat waits for it."""

    async def defer(session: Any = None) -> Added:
        handle = await purgatory.defer(
            "note", delay=600, idempotency_key="order-42", session=session
        )
        assert handle.added is not None
        return handle.added

    rolled_back = await begin()
    gone = await defer(rolled_back)
    await rolled_back.rollback()
    session = await begin()
    first = await defer(session)
    assert not first.is_repeat and first.job.id != gone.job.id
    assert (await defer(session)).is_repeat
    other = asyncio.create_task(defer())
    # It waits for the database, if not for the thread that is to ask it.
    await asyncio.sleep(0)
    await session.commit()
    assert await other == (first.job, first.status, True)
    last = await begin()
    assert await defer(last) == await other
    if not isinstance(database, SqliteJobStores):
        # Such a transaction, which writes nothing, keeps nobody from the job.
        await purgatory.jobs.cancel(first.job.id)
    await last.rollback()
    with pytest.raises(IdempotencyConflictError):
        await purgatory.defer("note", delay=60, idempotency_key="order-42")
    assert len((await purgatory.jobs.list()).jobs) == 1


async def test_a_transaction_that_is_over_is_freed(
    purgatory: Purgatory, engine: AsyncEngine
) -> None:
    """With its connection: a process has one for each request."""
    for make in (engine.connect, lambda: AsyncSession(engine)):
        async with make() as session:
            await purgatory.defer("note", delay=600, session=session)
            await purgatory.fire("k", session=session)
            found = weakref.ref((await connection_of(session)).sync_connection)
            await session.rollback()
        del session
        gc.collect()
        assert found() is None


async def test_a_transaction_of_the_store_is_freed_without_the_garbage_collector(
    purgatory: Purgatory,
) -> None:
    """With all jobs that it has read."""
    with without_collector():
        await purgatory.defer("note", delay=600)
        await until(lambda: not any(type(each) is JobTransaction for each in gc.get_objects()))


async def test_a_fire_follows_the_commit(purgatory: Purgatory, begin: Begin) -> None:
    """It wakes who is parked, and decides the jobs that were deferred before it only."""
    parked = asyncio.create_task(purgatory.park("k", timeout=30))
    earlier = await purgatory.defer("note", delay=600, keys=["k"], on_fire="cancel")
    session = await begin()
    own = await purgatory.defer("note", delay=600, keys=["k"], session=session)
    await purgatory.fire("k", {"by": "card"}, session=session)
    later = await purgatory.defer("note", delay=600, keys=["k"], session=session)
    await asyncio.sleep(0.1)
    assert not parked.done()
    await session.commit()
    assert (await parked).value == {"by": "card"}
    assert (await earlier.get()).state is JobState.CANCELLED
    assert (await own.get()).outcome is JobOutcome.FIRED
    assert (await own.get()).fired_json == '{"by":"card"}'
    assert (await later.get()).outcome is None


async def test_a_job_that_is_deferred_before_the_commit_is_decided(
    purgatory: Purgatory, begin: Begin, database: SqlJobStores
) -> None:
    """Its history was without the signal, and what was read from the database without the rest."""
    if isinstance(database, SqliteJobStores):
        pytest.skip("SQLite has one writer at a time")
    session = await begin()
    await purgatory.fire("k", 7, session=session)
    since = purgatory.cursor("k")
    job = await purgatory.defer("note", delay=600, keys=["k"], since=since)
    # By milliseconds.
    await asyncio.sleep(0.01)
    await session.commit()
    assert (await purgatory.park("k", cursor=since, timeout=30)).value == 7
    assert (await job.get()).fired_json == "7"


async def test_what_replaces_a_job_after_a_fire_is_not_decided(
    purgatory: Purgatory, begin: Begin
) -> None:
    """In the same transaction: it is for the next fire, as one that is new."""
    old = await purgatory.defer("note", 1, delay=600, keys=["k"], dedupe_key="a")
    await asyncio.sleep(0.01)
    session = await begin()
    await purgatory.fire("k", session=session)
    new = await purgatory.defer(
        "note", 2, delay=600, keys=["k"], dedupe_key="a", on_conflict="replace", session=session
    )
    since = purgatory.cursor("k")
    await session.commit()
    assert (await purgatory.park("k", cursor=since, timeout=30)).status == "fired"
    assert new.id == old.id
    assert ((await new.get()).payload_json, (await new.get()).outcome) == ("2", None)
    assert (await purgatory.fire("k")).jobs == 1


async def test_fires_are_in_order(purgatory: Purgatory, begin: Begin) -> None:
    """Those of a transaction, and those of one that was committed before."""
    cursor = purgatory.cursor("k")
    session = await begin()
    for number in range(250):
        await purgatory.fire("k", number, session=session)
        if number % 50 == 49:
            await session.commit()
    signals = purgatory.signals
    async with asyncio.timeout(30):
        while len(found := signals.read("k", signals.position("k", cursor), 1000)) < 250:
            await purgatory.park("k", timeout=1)
    assert [signals.value(each) for each in found] == list(range(250))


async def test_a_savepoint_that_is_rolled_back(purgatory: Purgatory, engine: AsyncEngine) -> None:
    """What came before it stays; what was in it does not."""
    async with AsyncSession(engine) as session:
        outer = await purgatory.defer("note", delay=600, session=session)
        savepoint = await session.begin_nested()
        inner = await purgatory.defer("note", delay=600, session=session)
        await purgatory.fire("inner", session=session)
        await savepoint.rollback()
        await purgatory.fire("outer", session=session)
        parked = asyncio.create_task(purgatory.park("outer", timeout=30))
        await asyncio.sleep(0)
        await session.commit()
    assert (await parked).status == "fired"
    assert (await outer.get()).state is JobState.WAITING
    with pytest.raises(LookupError):
        await inner.get()
    assert purgatory.signals.statistics().signals == 1


@pytest.fixture
async def begun_engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    """An engine on a SQLite file that begins transactions by itself, as SQLAlchemy documents."""
    url = f"sqlite+aiosqlite:///{tmp_path}/jobs"
    await migrate(url)
    engine = create_async_engine(url)

    @event.listens_for(engine.sync_engine, "connect")
    def disable_driver(connection: Any, record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine.sync_engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    yield engine
    await engine.dispose()


async def test_a_transaction_of_sqlite_that_has_begun_waits_for_other_writers(
    begun_engine: AsyncEngine,
) -> None:
    """As one that the defer begins; after it has read it cannot, and the error says what to do."""
    path = begun_engine.url.database
    assert path is not None
    loop = asyncio.get_running_loop()
    async with Purgatory(jobs=SqlJobStore(f"sqlite:///{path}")) as purgatory:
        purgatory.handled_elsewhere(["note"])
        with closing(sqlite3.connect(path, isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            loop.call_later(0.2, writer.execute, "COMMIT")
            async with AsyncSession(begun_engine) as session:
                handle = await purgatory.defer("note", delay=600, session=session)
                await session.commit()
            assert (await handle.get()).state is JobState.WAITING
            async with AsyncSession(begun_engine) as session:
                await session.execute(text("SELECT count(*) FROM purgatory_jobs"))
                await purgatory.defer("note", delay=600)
                with pytest.raises(StoreUnavailableError, match="nothing was done; roll it back"):
                    await purgatory.defer("note", delay=600, session=session)
                await session.rollback()
                await purgatory.fire("k", session=session)


async def test_dedupe_keys_hold(purgatory: Purgatory, begin: Begin) -> None:
    """With jobs that are stored, and within the transaction, which goes on after a refusal."""
    await purgatory.defer("note", delay=600, dedupe_key="a")
    session = await begin()
    with pytest.raises(DuplicateJobError):
        await purgatory.defer("note", delay=600, dedupe_key="a", session=session)
    await purgatory.defer("note", delay=600, dedupe_key="b", session=session)
    with pytest.raises(DuplicateJobError):
        await purgatory.defer("note", delay=600, dedupe_key="b", session=session)
    await session.commit()
    assert (await purgatory.jobs.counts()).waiting == 2


async def test_a_job_that_is_due_soon_runs_soon(make_store: MakeStore, begin: Begin) -> None:
    """The worker hears of the commit."""
    ran = asyncio.Event()
    purgatory = Purgatory(jobs=make_store())

    @purgatory.handler("now")
    async def now(job: Any) -> None:
        ran.set()

    async with purgatory:
        session = await begin()
        await purgatory.defer("now", delay=0, session=session)
        await session.commit()
        async with asyncio.timeout(5):
            await ran.wait()


async def test_what_a_process_left_is_fired_by_another(
    make_store: MakeStore, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it has been there for a while; it decides the jobs that wait then, as any fire does."""
    monkeypatch.setattr(owed_fires, "OUTBOX_POLL_S", 0.05)
    monkeypatch.setattr(owed_fires, "TAKEOVER_MS", 500)
    dead = make_store()
    await dead.open()
    async with AsyncSession(engine) as session:
        await dead.fire_in(session, NewFire(key="k", value_json="7", origin="dead"), list)
        await session.commit()
    await dead.close()
    async with Purgatory(jobs=make_store()) as purgatory:
        purgatory.handled_elsewhere(["note"])
        since = purgatory.cursor("k")
        job = await purgatory.defer("note", delay=600, keys=["k"], since=since)
        assert (await purgatory.park("k", timeout=30)).value == 7
        assert (await job.get()).fired_json == "7"
        await dead.open()
        assert not await dead.stored_fires("dead", limit=10)
        await dead.close()


async def test_a_fire_is_taken_once(make_store: MakeStore, engine: AsyncEngine) -> None:
    """Two relays that have read the same fires share them."""
    here, there = make_store(), make_store()
    await here.open()
    await there.open()
    async with AsyncSession(engine) as session:
        for number in range(100):
            await here.fire_in(
                session, NewFire(key=f"k{number}", value_json="7", origin="here"), list
            )
        await session.commit()
    read = [await store.stored_fires("here", limit=100) for store in (here, there)]
    assert read[0] == read[1] and len(read[0]) == 100
    taken = await asyncio.gather(
        *(store.take_fires(fires) for store, fires in zip((here, there), read, strict=True))
    )
    numbers = [each.fire.number for some in taken for each in some.taken]
    assert sorted(numbers) == [fire.number for fire in read[0]]
    await here.close()
    await there.close()


async def test_a_session_that_holds_all_connections(engine: AsyncEngine) -> None:
    """What is stored in it takes none besides, not even first: nobody would give one back."""
    taken: list[object] = []
    store = SqlJobStore(engine)
    await store.open()
    async with AsyncSession(engine) as session:
        await session.execute(text("SELECT 1"))
        event.listen(engine.sync_engine, "checkout", lambda *args: taken.append(args))
        await store.fire_in(session, NewFire(key="k", value_json="1", origin="here"), lambda: None)
    assert not taken
    await store.close()


async def test_a_session_of_another_database(purgatory: Purgatory, tmp_path: Any) -> None:
    """One commit cannot be for both: that is said, and nothing is stored."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/other.db")
    async with AsyncSession(engine) as session:
        await session.execute(text("SELECT 1"))
        with pytest.raises(StoreNotReadyError, match="another database"):
            await purgatory.defer("note", delay=600, session=session)
        with pytest.raises(StoreNotReadyError, match="another database"):
            await purgatory.fire("k", session=session)
    await engine.dispose()


async def test_arguments_that_make_no_sense(purgatory: Purgatory, engine: AsyncEngine) -> None:
    """Each says what to give."""
    with pytest.raises(TypeError, match="AsyncSession"):
        await purgatory.fire("k", session="postgresql://")
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    async with autocommit.connect() as connection:
        with pytest.raises(ValueError, match="autocommit"):
            await purgatory.fire("k", session=connection)
    if engine.dialect.name == "postgresql":
        made_so = create_async_engine(engine.url, isolation_level="AUTOCOMMIT")
        async with AsyncSession(made_so) as session:
            with pytest.raises(ValueError, match="autocommit"):
                await purgatory.fire("k", session=session)
        await made_so.dispose()
    async with AsyncSession(engine) as session:
        with pytest.raises(InvalidKeyError):
            await purgatory.fire("", session=session)
        with pytest.raises(InvalidValueError):
            await purgatory.fire("k", object(), session=session)
    async with Purgatory(jobs=MemoryJobStore()) as other:
        with pytest.raises(TypeError, match="SqlJobStore"):
            await other.fire("k", session=object())


async def test_the_timeouts_of_a_transaction_stay(
    purgatory: Purgatory, begin: Begin, database: SqlJobStores
) -> None:
    """It may wait for a lock, or for the application, for longer than those of the store do."""
    session = await begin()
    if isinstance(database, SqliteJobStores):
        pytest.skip("SQLite has none")
    names = ("lock_timeout", "idle_in_transaction_session_timeout")

    async def timeouts() -> list[str]:
        return [(await session.execute(text(f"SHOW {name}"))).scalar_one() for name in names]

    before = await timeouts()
    await purgatory.defer("note", delay=600, dedupe_key="a", session=session)
    await purgatory.fire("k", session=session)
    assert await timeouts() == before


async def test_a_connection_that_is_used_for_ever(
    purgatory: Purgatory, engine: AsyncEngine
) -> None:
    """It is listened to once, not once for each job and fire that it ever had."""
    async with engine.connect() as connection:
        for _ in range(5):
            await purgatory.defer("note", delay=600, session=connection)
            await purgatory.fire("k", session=connection)
            await connection.commit()
            await purgatory.defer("note", delay=600, session=connection)
            await connection.rollback()
        assert connection.sync_connection is not None
        dispatch = connection.sync_connection.dispatch
        assert (len(dispatch.commit), len(dispatch.rollback)) == (1, 1)


@pytest.mark.parametrize("mode", ["conditional_savepoint", "create_savepoint", "control_fully"])
@pytest.mark.parametrize("is_committed", [False, True])
async def test_a_session_in_a_transaction_of_its_connection(
    engine: AsyncEngine, mode: Any, *, is_committed: bool
) -> None:
    """Its commit may end a savepoint only: what counts is that of the connection."""
    calls: list[bool] = []
    async with engine.connect() as connection:
        outer = await connection.begin()
        async with AsyncSession(connection, join_transaction_mode=mode) as session:
            await session.execute(text("SELECT 1"))
            assert connection.sync_connection is not None
            call_on_commit(connection.sync_connection, lambda: calls.append(outer.is_active))
            await session.commit()
            if mode != "control_fully":
                # Nothing is to come; a call would follow within 2 ms.
                await asyncio.sleep(0.01)
                assert calls == [] and outer.is_active
                await (outer.commit() if is_committed else outer.rollback())
        if is_committed or mode == "control_fully":
            # The first call may come just before the end of the commit.
            await until(lambda: False in calls)
        else:
            await asyncio.sleep(0.01)
            assert calls == []


async def test_a_fire_does_not_decide_a_later_round(
    make_store: MakeStore, engine: AsyncEngine
) -> None:
    """The job waits again since; others that waited then are decided, behind however many."""
    store = make_store()
    purgatory = Purgatory(jobs=store)

    @purgatory.handler("again")
    async def again(job: JobContext) -> Again:
        return job.again(delay=600)

    async with purgatory:
        handles = [await purgatory.defer("again", delay=600, keys=["k"]) for _ in range(4)]
        last = await purgatory.defer("again", delay=600, keys=["k"])
        async with AsyncSession(engine) as session:
            await store.fire_in(session, NewFire(key="k", value_json="7", origin="other"), list)
            await session.commit()
        # By milliseconds.
        await asyncio.sleep(0.01)
        for handle in handles:
            await purgatory.jobs.run_now(handle.id)
        await until(lambda: purgatory.statistics().jobs.again == len(handles))  # type: ignore[union-attr]
        fires = await store.stored_fires("other", limit=10)
        [taken] = (await store.take_fires(fires)).taken
        assert taken.jobs.run == (last.id,)
        assert all([(await handle.get()).is_undecided for handle in handles])
