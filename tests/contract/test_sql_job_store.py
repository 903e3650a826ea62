"""What is particular to jobs in databases: statements, processes, and what can break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from purgatory.job_errors import StoreOutOfSpaceError, StoreReadOnlyError
from purgatory.jobs import JobLimits, JobState, StoreUnavailableError
from purgatory.jobs.model.job import JobClaim, JobFilter
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import Added, Finish, Fire, KeyFired, Pause
from purgatory.jobs.sql import migrate
from purgatory.jobs.sql import statements as sql_statements
from purgatory.jobs.sql.statements import Dialect, Statements
from purgatory.jobs.sql.tables import job_keys, jobs, record_of
from purgatory.timer import SystemClock
from tests.contract.postgresql_server import PostgresqlServer
from tests.contract.sql_job_stores import SqlJobStores, plan_of
from tests.patience import PATIENCE_S
from tests.step_methods import SqlSteps


def spec(**options: Any) -> JobSpec:
    return JobSpec.of("note", wall_ms=SystemClock().wall_ms(), **{"delay": 60} | options)


@pytest.fixture
def statements(engine: AsyncEngine) -> Iterator[list[str]]:
    """What the engine is told, in order."""
    said: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if not statement.startswith("PRAGMA"):
            said.append(statement)

    event.listen(listened(engine), "before_cursor_execute", note)
    yield said
    event.remove(listened(engine), "before_cursor_execute", note)


def listened(engine: AsyncEngine) -> Any:
    """What to listen to: of an engine for a SQLite file, the store takes the name only."""
    return Engine if engine.dialect.name == "sqlite" else engine.sync_engine


@pytest.fixture
async def store(engine: AsyncEngine, statements: list[str]) -> AsyncIterator[SqlSteps]:
    store = SqlSteps(engine)
    await store.open()
    statements.clear()
    yield store
    await store.close()


# Statements


async def test_a_hundred_callers_share_a_transaction(
    store: SqlSteps, statements: list[str]
) -> None:
    """Jobs, keys and counts are each one statement."""
    specs = [spec(keys=["k"]) for _ in range(100)]
    await asyncio.gather(*(store.add([one]) for one in specs))
    assert [statement.split()[0] for statement in statements] == [
        "BEGIN", "SELECT", "INSERT", "INSERT", "INSERT", "COMMIT",
    ]  # fmt: skip
    assert (await store.counts()).waiting == 100


async def test_what_is_asked_at_once_is_done_in_bounded_steps(
    engine: AsyncEngine, statements: list[str]
) -> None:
    """A batch of any size holds neither the event loop nor locks for as long as it takes."""
    store = SqlSteps(engine, limits=JobLimits(max_batch=10))
    await store.open()
    specs = [spec(dedupe_key=f"d{number % 20}") for number in range(25)]
    statements.clear()
    added = await store.add(specs)
    assert statements.count("COMMIT") == 3
    assert [isinstance(one, Added) for one in added] == [True] * 20 + [False] * 5
    assert [one.job.id for one in added if isinstance(one, Added)] == [one.id for one in specs[:20]]
    await store.close()


async def test_those_who_run_jobs_share_a_transaction_too(
    store: SqlSteps, statements: list[str]
) -> None:
    """A batch takes a handful of statements, however many jobs."""
    await store.add([spec(delay=0) for _ in range(50)])
    claimed = await store.claim("w", within_ms=0, limit=50, lease_ms=60_000)
    statements.clear()
    await asyncio.gather(*(store.start([job.claim], lease_ms=60_000) for job in claimed.jobs))
    assert statements.count("COMMIT") == 1 and len(statements) <= 6
    statements.clear()
    done = [Finish(job.claim, JobState.DONE) for job in claimed.jobs]
    assert await asyncio.gather(*(store.finish([one]) for one in done)) == [[True]] * 50
    assert statements.count("COMMIT") == 1 and len(statements) <= 6


@pytest.mark.parametrize("new_database", ["postgresql"], indirect=True)
async def test_fires_on_keys_without_jobs_share_a_look_up(
    store: SqlSteps, statements: list[str]
) -> None:
    """One statement, and no transaction. A SQLite file is looked at before."""
    fires = [store.fire([Fire(f"k{number}", "0")], limit=1) for number in range(100)]
    assert await asyncio.gather(*fires) == [[KeyFired()]] * 100
    (statement,) = statements
    assert statement.startswith("SELECT")


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["fired", "cancelled"])
async def test_steps_on_many_keys_share_a_search(
    store: SqlSteps, statements: list[str], is_cancelled: bool
) -> None:
    """As many statements for fifty keys as for two, and each key has its own jobs."""
    counts = []
    for size in (2, 50):
        keys = [f"{size}-{number}" for number in range(size)]
        added = [spec(keys=[key], on_fire="cancel") for key in keys]
        await store.add(added)
        statements.clear()
        if is_cancelled:
            done = await asyncio.gather(*(store.cancel_for_key(key, limit=9) for key in keys))
        else:
            fires = (store.fire([Fire(key, "0")], limit=9) for key in keys)
            done = [fired for [fired] in await asyncio.gather(*fires)]
        assert done == [KeyFired(cancelled=(one.id,)) for one in added]
        counts.append(len(statements))
    assert counts[0] == counts[1] <= 9, statements


async def test_keys_with_more_jobs_than_a_batch_are_searched_one_by_one(
    engine: AsyncEngine,
) -> None:
    """Each has as many fired as may be at once, and says that there are others."""
    store = SqlSteps(engine, limits=JobLimits(max_batch=5))
    await store.open()
    for number in range(4):
        await store.add([spec(keys=[f"k{number}"]) for _ in range(2 * number)])
    fires = [Fire(f"k{number}", "0") for number in range(4)]
    fired = await store.fire(fires, limit=9)
    assert [(len(one.run), one.has_more) for one in fired] == [
        (0, False), (2, False), (4, False), (5, True),
    ]  # fmt: skip
    [none, *others] = await store.fire(fires, limit=9)
    assert [(len(one.run), one.has_more) for one in others] == [(0, False), (0, False), (1, False)]
    assert none == KeyFired()
    await store.close()


async def test_those_who_ask_for_jobs_share_a_look_up(
    store: SqlSteps, statements: list[str]
) -> None:
    """So that thousands may wait for the ends of theirs. Each gets what it asked for."""
    ids = [spec().id for _ in range(100)]
    added = [spec() for _ in range(100)]
    await store.add(added)
    statements.clear()
    asked = [store.get([one.id, missing]) for one, missing in zip(added, ids, strict=True)]
    found = await asyncio.gather(*asked)
    assert [[job and job.id for job in jobs] for jobs in found] == [[one.id, None] for one in added]
    (statement,) = statements
    assert statement.startswith("SELECT")


async def test_what_is_asked_often_is_searched_by_index(
    store: SqlSteps, engine: AsyncEngine, database: SqlJobStores
) -> None:
    """On tables with history, of which nothing is read."""
    now_ms = await store.now_ms()
    rows = []
    for number in range(3_000):
        job = spec(keys=["k"]).job(now_ms, now_ms + number)
        rows.append(record_of(job) | {"state": "done", "outcome": "expired", "finished_ms": number})
    is_sqlite = engine.dialect.name == "sqlite"
    async with engine.begin() as connection:
        if not is_sqlite:
            # The schema was used before: indexes that are large and hold nothing cost more.
            await connection.execute(text(f"TRUNCATE {jobs.name}, {job_keys.name}"))
        await connection.execute(insert(jobs), rows)
        keys = [{"key": "k", "job_id": row["id"], "is_open": False} for row in rows]
        await connection.execute(insert(job_keys), keys)
        await connection.execute(text("ANALYZE"))
    statements = Statements.of(engine.dialect.name)
    reads, locks, many = statements.reads, statements.locks, statements.dialect.many
    numbers = {"limit": 10, "until_ms": now_ms, "now_ms": now_ms}
    claimed = {**numbers, "handlers": many(["note"])}
    searches = {
        "ix_purgatory_jobs_free": (locks.free, claimed),
        "ix_purgatory_jobs_leased": (locks.lapsed, claimed),
        "ix_purgatory_jobs_finished": (locks.finished, numbers),
        "ix_purgatory_job_keys_open": (reads.keys_with_jobs, {"keys": many(["k"])}),
        "ix_purgatory_jobs_dedupe_key": (locks.by_dedupe_key, {"dedupe_keys": many("d")}),
        "ix_purgatory_jobs_handler": (
            reads.page_ids(JobFilter(handler="x"), is_first=False),
            {**numbers, "handler": "x", "after": "f"},
        ),
        "ix_purgatory_jobs_state": (
            reads.page_ids(JobFilter(state=JobState.WAITING), is_first=False),
            {**numbers, "state": "waiting", "after": "f"},
        ),
        "ix_purgatory_jobs_blocked": (
            reads.page_ids(JobFilter(is_blocked=True, handler="x"), is_first=False),
            {**numbers, "handler": "x", "after": "f"},
        ),
        # The primary key.
        "sqlite_autoindex_purgatory_job_keys_1" if is_sqlite else "purgatory_job_keys_pkey": (
            reads.page_ids(JobFilter(key="x"), is_first=False),
            {**numbers, "key": "x", "after": "f"},
        ),
    }
    for index, (statement, parameters) in searches.items():
        asked = {name: value for name, value in parameters.items() if name in _names(statement)}
        assert index in await plan_of(engine, statement, asked), index
    assert "ix_purgatory_jobs_blocked" in await plan_of(engine, reads.counts, {})
    # By either of two.
    assert "ix_purgatory_jobs_" in await plan_of(engine, reads.paused_jobs, {})
    asked = {"keys": many(["k", "l"]), "limit": 10}
    assert "ix_purgatory_job_keys_open" in await plan_of(engine, locks.on_keys, asked)
    if not is_sqlite:
        asked = {"ids": ["1"], "full_ids": ["1"], "keys": ["k"], "dedupe_keys": ["d"], "limit": 10}
        plan = await plan_of(engine, locks.in_order, asked)
        assert "Seq Scan" not in plan, plan


async def test_only_so_many_blocked_jobs_are_counted(
    engine: AsyncEngine, store: SqlSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And paused ones: a dashboard asks each second, and each of them is an entry to read."""
    await store.run([Pause("note")])
    await store.add([spec(delay=0) for _ in range(3)])
    await store.claim("w", within_ms=0, limit=10, lease_ms=1_000)
    assert (await store.paused()).jobs == (await store.counts()).blocked == 3
    monkeypatch.setattr(sql_statements, "MAX_BLOCKED", 2)
    bounded = sql_statements.Reads(Dialect(engine.dialect.name))
    async with engine.connect() as connection:
        assert await connection.scalar(bounded.paused_jobs) == 2
        counts = (await connection.execute(bounded.counts)).mappings().one()
    assert counts["blocked"] == 2


def _names(statement: Any) -> set[str]:
    return set(statement.compile().params)


# Processes


@pytest.mark.parametrize("new_database", ["postgresql"], indirect=True)
async def test_a_fire_that_waited_looks_at_what_it_waited_for(
    store: SqlSteps, engine: AsyncEngine
) -> None:
    """A job that was replaced meanwhile, and is on another key now, is not fired."""
    one = spec(keys=["old"], dedupe_key="d")
    await store.add([one])
    async with engine.begin() as replacing, engine.connect() as watching:
        await replacing.execute(update(jobs).values(keys_json='["new"]', version=2))
        await replacing.execute(update(job_keys).values(key="new"))
        firing = asyncio.create_task(store.fire([Fire("old", "0")], limit=10))
        blocked = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        async with asyncio.timeout(PATIENCE_S):
            while not await watching.scalar(blocked):
                await watching.rollback()
        await replacing.commit()
        assert await firing == [KeyFired()]
    (job,) = await store.get([one.id])
    assert job is not None and job.is_undecided
    (fired,) = await store.fire([Fire("new", "0")], limit=10)
    assert fired.run == (one.id,)


@pytest.mark.parametrize("new_database", ["postgresql"], indirect=True)
async def test_dedupe_keys_are_taken_in_one_order(store: SqlSteps, engine: AsyncEngine) -> None:
    """So that of two who add the same ones, one waits, and not each for the other."""
    now_ms = await store.now_ms()
    theirs = [record_of(spec(dedupe_key=key).job(now_ms, now_ms + 60_000)) for key in ("a", "b")]
    async with engine.begin() as other, engine.connect() as watching:
        # If there is a deadlock, it is this transaction that fails.
        await other.execute(text("SET LOCAL deadlock_timeout = '1ms'"))
        await other.execute(insert(jobs), theirs[0])
        ours = [spec(dedupe_key=key, on_conflict="keep") for key in ("b", "a")]
        adding = asyncio.create_task(store.add(ours))
        blocked = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        async with asyncio.timeout(PATIENCE_S):
            while not await watching.scalar(blocked):
                await watching.rollback()
        # We would wait for one another here.
        await other.execute(insert(jobs), theirs[1])
        await other.commit()
        added = await adding
    assert [isinstance(one, Added) and one.job.id for one in added] == [
        theirs[1]["id"], theirs[0]["id"],
    ]  # fmt: skip


FIRST, SECOND = "0" * 32, "1" * 32
# Batches that come upon the second job first.
UNORDERED: dict[str, Callable[[SqlSteps], list[Awaitable[Any]]]] = {
    "by id": lambda store: [
        store.renew([JobClaim(SECOND, 1)], lease_ms=60_000),
        store.cancel(FIRST),
    ],
    "by key": lambda store: [store.fire([Fire("second", "0"), Fire("first", "0")], limit=10)],
    "by id and key": lambda store: [
        store.cancel(SECOND),
        store.cancel_for_key("first", limit=10),
    ],
    "by dedupe key": lambda store: [
        store.renew([JobClaim(SECOND, 1)], lease_ms=60_000),
        store.add([spec(dedupe_key="first", on_conflict="keep")]),
    ],
}


@pytest.mark.parametrize("new_database", ["postgresql"], indirect=True)
@pytest.mark.parametrize("steps", UNORDERED.values(), ids=list(UNORDERED))
async def test_jobs_are_locked_in_one_order(
    store: SqlSteps, engine: AsyncEngine, steps: Callable[[SqlSteps], list[Awaitable[Any]]]
) -> None:
    """So that of two whose batches have the same jobs, one waits, and not each for the other."""
    await store.add(
        [
            replace(spec(keys=["first"], dedupe_key="first"), id=FIRST),
            replace(spec(keys=["second"]), id=SECOND),
        ]
    )
    await store.claim("w", within_ms=60_000, limit=2, lease_ms=60_000)
    async with engine.begin() as other, engine.connect() as watching:
        # If there is a deadlock, it is this transaction that fails.
        await other.execute(text("SET LOCAL deadlock_timeout = '1ms'"))
        await other.execute(select(jobs.c.id).where(jobs.c.id == FIRST).with_for_update())
        doing = [asyncio.ensure_future(step) for step in steps(store)]
        blocked = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        async with asyncio.timeout(PATIENCE_S):
            while not await watching.scalar(blocked):
                await watching.rollback()
        # We would wait for one another here.
        await other.execute(select(jobs.c.id).where(jobs.c.id == SECOND).with_for_update())
        await other.commit()
        await asyncio.gather(*doing)


async def test_a_caller_that_leaves_leaves_no_transaction_open(
    store: SqlSteps, database: SqlJobStores
) -> None:
    """Whatever it was waiting for; others write at once."""
    other = await database.connect()
    for turns in range(12):
        tasks = [
            asyncio.ensure_future(store.add([spec(keys=["k"])])),
            asyncio.ensure_future(store.get(["0" * 32])),
            asyncio.ensure_future(store.fire([Fire("k", "0")], limit=10)),
        ]
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        (added,) = await other.add([spec()])
        assert isinstance(added, Added)


async def test_a_close_that_is_cancelled_lets_go_of_every_connection(engine: AsyncEngine) -> None:
    """Whatever it waited for when it was."""
    for turns in range(1, 13):
        store = SqlSteps(engine)
        await store.open()
        await store.add([spec()])
        doing = asyncio.gather(store.add([spec()]), store.get(["0"]), store.counts())
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(store.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        await doing
        # Waits for the first.
        await store.close()
        assert "Checked out connections: 0" in engine.pool.status()


# What can break


async def test_a_server_that_was_killed_is_found_again() -> None:
    """What was acknowledged is there; what was asked meanwhile says that the server is gone."""
    server = PostgresqlServer()
    try:
        await migrate(server.url)
        store = SqlSteps(server.url)
        await store.open()
        one = spec(keys=["k"])
        await store.add([one])
        server.kill()
        for lost in (
            store.add([spec()]),
            store.get([one.id]),
            store.fire([Fire("k", "0")], limit=1),
            store.claim("w", within_ms=1, limit=1, lease_ms=1),
        ):
            with pytest.raises(StoreUnavailableError, match="try again"):
                await lost
        server.start()
        (added,) = await store.add([one])
        assert isinstance(added, Added) and added.status == "kept"
        (fired,) = await store.fire([Fire("k", "0")], limit=1)
        assert fired.run == (one.id,)
        await store.close()
    finally:
        server.close()


async def test_a_full_disk_is_said_to_be_full(database: SqlJobStores) -> None:
    """Nothing is acknowledged, what is stored stays, and it goes on once there is room."""
    engine = database.engine()
    is_full = True

    def limit(connection: Any, record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA max_page_count = {60 if is_full else 100_000}")
        cursor.close()

    if engine.dialect.name == "sqlite":
        event.listen(listened(engine), "connect", limit)
    else:
        async with engine.begin() as connection:
            await connection.execute(text(_NO_ROOM))
            await connection.execute(
                text(
                    "CREATE TRIGGER no_room BEFORE INSERT ON purgatory_jobs"
                    " FOR EACH STATEMENT EXECUTE FUNCTION no_room()"
                )
            )
    store = SqlSteps(engine)
    await store.open()
    with pytest.raises(StoreOutOfSpaceError, match="nothing was stored"):
        await store.add([JobSpec.of("note", "x" * 60_000, wall_ms=0, delay=1) for _ in range(20)])
    assert (await store.counts()).waiting == 0
    is_full = False
    if engine.dialect.name == "postgresql":
        async with engine.begin() as connection:
            await connection.execute(text("DROP FUNCTION no_room CASCADE"))
    else:
        await store.close()
        await engine.dispose()
        await store.open()
    (added,) = await store.add([spec()])
    assert isinstance(added, Added)
    if engine.dialect.name == "sqlite":
        event.remove(listened(engine), "connect", limit)
    await store.close()
    await engine.dispose()


# A disk cannot be filled here; this is what the server then says.
_NO_ROOM = """
CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$
"""


async def test_a_database_that_takes_no_writes_is_said_to_be_read_only(
    database: SqlJobStores,
) -> None:
    """Reading goes on; and the next write asks on another connection, as after a failover."""
    engine = database.engine()
    is_primary = False
    is_sqlite = engine.dialect.name == "sqlite"
    setting = "PRAGMA query_only = ON" if is_sqlite else "SET default_transaction_read_only = on"

    def forbid(connection: Any, record: Any) -> None:
        if is_primary:
            return
        cursor = connection.cursor()
        cursor.execute(setting)
        cursor.close()
        connection.commit()

    event.listen(listened(engine), "connect", forbid)
    store = SqlSteps(engine)
    await store.open()
    with pytest.raises(StoreReadOnlyError, match="nothing was done"):
        await store.add([spec()])
    assert (await store.counts()).waiting == 0
    is_primary = True
    # Each time it leaves one of the few connections that there are.
    for _ in range(3):
        with suppress(StoreReadOnlyError):
            await store.add([spec(dedupe_key="d")])
    assert (await store.counts()).waiting == 1
    event.remove(listened(engine), "connect", forbid)
    await store.close()
    await engine.dispose()


async def test_one_who_asks_for_nonsense_fails_alone(store: SqlSteps) -> None:
    """What a database cannot hold is not in it, or is refused; others are served."""
    good, bad, none = await asyncio.gather(
        store.add([spec()]),
        store.claim("w\x00\ud800", within_ms=1, limit=1, lease_ms=1),
        store.renew([JobClaim("\x00\ud800", 1)], lease_ms=1),
        return_exceptions=True,
    )
    assert isinstance(good, list) and isinstance(good[0], Added)
    assert bad is not None
    assert none == [JobClaim("\x00\ud800", 1)]
    assert await store.get(["\x00", "\ud800"]) == [None, None]
    assert (await store.query(JobFilter(key="\ud800"), limit=1)).jobs == []
