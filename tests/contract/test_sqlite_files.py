"""The files of SQLite: permissions, locks, and fires that ask no thread."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from purgatory import Purgatory
from purgatory.job_errors import StoreNotReadyError
from purgatory.jobs import StoreUnavailableError
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import Fire
from purgatory.jobs.sql import engine as sql_engine
from purgatory.jobs.sql import migrate, migrate_in
from purgatory.timer import SystemClock
from tests.patience import until
from tests.step_methods import SqlSteps

# A process that, if it may, moves the write-ahead log into the database and deletes it.
TAKE_THE_LOG = (
    "import sqlite3, sys; connection = sqlite3.connect(sys.argv[1], timeout=0);"
    "connection.execute('SELECT * FROM purgatory_jobs').fetchall(); connection.close()"
)


def spec(*keys: str) -> JobSpec:
    return JobSpec.of("note", wall_ms=SystemClock().wall_ms(), delay=600, keys=keys)


async def opened(path: Path) -> SqlSteps:
    store = SqlSteps(f"sqlite:///{path}")
    await store.open()
    return store


async def test_they_are_for_their_user_only(tmp_path: Path) -> None:
    """Payloads and headers of callbacks contain credentials. The log of writes has them, too."""
    previous = os.umask(0)
    try:
        await migrate(f"sqlite:///{tmp_path}/jobs.db")
        store = await opened(tmp_path / "jobs.db")
        await store.add([spec()])
        modes = {name: (tmp_path / name).stat().st_mode & 0o777 for name in os.listdir(tmp_path)}
        await store.close()
    finally:
        os.umask(previous)
    assert modes == dict.fromkeys(("jobs.db", "jobs.db-wal", "jobs.db-shm"), 0o600)


async def test_a_uri_makes_its_own_file_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no name of a file, but has one."""
    # As a name of a file, it would be in this folder, or in one that begins with `file:`.
    monkeypatch.chdir(tmp_path)
    await migrate("sqlite:///file:jobs.db?uri=true")
    assert os.listdir(tmp_path) == ["jobs.db"]


async def test_an_existing_file_keeps_its_permissions(tmp_path: Path) -> None:
    """A group may have been given access on purpose."""
    path = tmp_path / "jobs.db"
    sqlite3.connect(path).close()
    path.chmod(0o640)
    await migrate(f"sqlite:///{path}")
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("is_url", [True, False])
async def test_a_file_of_the_applications_migration_gives_no_warning(
    tmp_path: Path, is_url: bool
) -> None:
    """It has another journal mode until the store opens it; the connection keeps its timeout."""
    url = f"sqlite+aiosqlite:///{tmp_path / 'jobs.db'}"
    engine = create_async_engine(url, connect_args={"timeout": 0.2})
    async with engine.begin() as connection:
        await connection.run_sync(migrate_in)
    store = SqlSteps(url if is_url else engine)
    await store.open()
    assert await store.check() == []
    await store.close()
    async with engine.connect() as connection:
        busy_ms = (await connection.exec_driver_sql("PRAGMA busy_timeout")).scalar_one()
    await engine.dispose()
    assert busy_ms == 200
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as another:
        assert another.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_another_connection_of_the_process_ends_no_locks(tmp_path: Path) -> None:
    """POSIX ends all locks of a process on a file when it closes any descriptor of the file."""
    path = tmp_path / "jobs.db"
    await migrate(f"sqlite:///{path}")
    store = await opened(path)
    job = spec()
    await store.add([job])
    await (await opened(path)).close()
    command = [sys.executable, "-c", TAKE_THE_LOG, str(path)]
    await asyncio.to_thread(subprocess.run, command, check=True)
    assert path.with_name("jobs.db-wal").exists()
    assert [found and found.id for found in await store.get([job.id])] == [job.id]
    await store.close()


async def test_the_lock_of_another_transaction_is_named(tmp_path: Path) -> None:
    """As that of a session with a job that is not committed: the server did not fail."""
    url = f"sqlite+aiosqlite:///{tmp_path / 'jobs'}"
    await migrate(url)
    engine = create_async_engine(url, connect_args={"timeout": 0.05})
    async with Purgatory(jobs=SqlSteps(engine)) as purgatory:
        purgatory.handled_elsewhere(["note"])
        async with AsyncSession(engine) as first, AsyncSession(engine) as second:
            await purgatory.defer("note", delay=600, session=first)
            with pytest.raises(StoreUnavailableError, match="perhaps one of yours") as caught:
                await purgatory.defer("note", delay=600, session=second)
            assert "did not answer" not in str(caught.value)
            await first.commit()
            await purgatory.defer("note", delay=600, session=second)
    await engine.dispose()


@pytest.mark.parametrize(
    ("how", "is_url"),
    [
        ("moved", True),
        ("moved", False),
        ("replaced", True),
        ("replaced", False),
        # With an engine, no connection of ours stays open all the while, and the log may come and
        # go.
        ("log moved", True),
        ("log replaced", True),
    ],
)
async def test_a_file_that_is_gone_is_not_ready(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str, is_url: bool
) -> None:
    """Nothing is acknowledged into a file without a name, and the worker says why."""
    path = tmp_path / "jobs.db"
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    await migrate(engine)
    target = path.with_name("jobs.db-wal") if "log" in how else path
    purgatory = Purgatory(jobs=SqlSteps(f"sqlite:///{path}" if is_url else engine))
    purgatory.handler("note")(lambda job: None)
    async with purgatory:
        waiting = await purgatory.defer("note", delay=600, keys=["k"])
        target.rename(tmp_path / "aside")
        if "replaced" in how:
            target.write_bytes((tmp_path / "aside").read_bytes())
        expected = "replaced" if "replaced" in how else "deleted or moved"
        for step in (
            lambda: purgatory.defer("note", delay=0),
            lambda: purgatory.jobs.list(),
            lambda: waiting.cancel(),
        ):
            with pytest.raises(StoreNotReadyError, match=f"{target.name}' was {expected}"):
                await step()
        await until(lambda: purgatory.missing != [])
        assert f"was {expected} while this process has it open" in caplog.text
        counts = purgatory.statistics().jobs
        assert counts is not None and counts.store_error is not None
        assert f"was {expected}" in counts.store_error
        # It is put back, and was never another.
        (tmp_path / "aside").replace(target)
        await until(lambda: purgatory.missing == [])
        await waiting.cancel()
    await engine.dispose()


# PURGATORY_RACES=1000000 for the long form.
RACES = int(os.environ.get("PURGATORY_RACES", "200"))
KEYS = 7


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No look-up is slow: on a busy machine, one might be."""
    monkeypatch.setattr(sql_engine, "_SLOW_NS", 10**12)


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A migrated file."""
    await migrate(f"sqlite:///{tmp_path}/jobs.db")
    return tmp_path / "jobs.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqlSteps]:
    """An open store on it."""
    store = SqlSteps(f"sqlite:///{path}")
    await store.open()
    yield store
    await store.close()


class CountedStore(SqlSteps):
    """A store that counts the steps it is asked for."""

    fires = 0

    async def run(self, steps):  # type: ignore[no-untyped-def] # as that of the store
        self.fires += sum(isinstance(step, Fire) for step in steps)
        return await super().run(steps)


async def test_a_fire_on_a_key_without_jobs_runs_no_step(path: Path) -> None:
    """And one on a key with a job runs one."""
    store = CountedStore(f"sqlite:///{path}")
    async with Purgatory(jobs=store) as purgatory:
        purgatory.handled_elsewhere(["note"])
        for index in range(100):
            assert (await purgatory.fire(f"key-{index}")).jobs == 0
        assert store.fires == 0
        await purgatory.defer("note", delay=600, keys=["key-7"])
        assert (await purgatory.fire("key-7")).jobs == 1
        assert (await purgatory.fire("key-7")).jobs == 0
        assert store.fires == 1


async def test_no_job_of_another_process_is_missed(path: Path, store: SqlSteps) -> None:
    """A fire right after the other process has its acknowledgement finds the job, every time."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.contract.deferring_process", f"sqlite:///{path}"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        assert await process.stdout.readline() == b"ready\n"
        for index in range(RACES):
            key = f"key-{index % KEYS}"
            assert not store.may_wait_on(key)
            process.stdin.write(f"{key}\n".encode())
            assert (await process.stdout.readline()).strip() == key.encode()
            assert store.may_wait_on(key)
            [fired] = await store.run([Fire(key, "null")])
            assert len(fired.run) == 1
    finally:
        process.kill()
        await process.wait()


async def test_fires_race_with_deferring_here(store: SqlSteps) -> None:
    """What was acknowledged before the fire is found, whatever is being written meanwhile."""

    async def defer_and_fire(number: int) -> None:
        for index in range(RACES // KEYS):
            key = f"key-{number}-{index % 3}"
            await store.add([spec(key)])
            assert store.may_wait_on(key)
            [fired] = await store.run([Fire(key, "null")])
            assert len(fired.run) == 1
            assert not store.may_wait_on(key)

    await asyncio.gather(*map(defer_and_fire, range(KEYS)))


async def test_a_file_that_is_locked_may_have_jobs(path: Path, store: SqlSteps) -> None:
    """The look-up waits for nobody: the step does, elsewhere."""
    await store.add([spec("key")])
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    # In the mode WAL, what is locked can be read.
    assert store.may_wait_on("key") and not store.may_wait_on("other")
    other.execute("ROLLBACK")
    other.close()


async def test_after_slow_look_ups_the_store_is_asked(
    store: SqlSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that hangs stops the event loop a few times, and not for each fire."""
    monkeypatch.setattr(sql_engine, "_SLOW_NS", -1)
    for _ in range(3):
        assert not store.may_wait_on("key")
    assert store.may_wait_on("key")


async def test_without_the_log_of_writes_too(path: Path) -> None:
    """Where SQLite cannot use WAL, a writer keeps readers out."""
    store = SqlSteps(f"sqlite:///{path}")
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA journal_mode = DELETE")
    other.close()
    await store.open()
    other = sqlite3.connect(path, isolation_level=None)
    assert not store.may_wait_on("key")
    other.execute("BEGIN EXCLUSIVE")
    assert store.may_wait_on("key")
    other.execute("ROLLBACK")
    assert not store.may_wait_on("key")
    other.close()
    await store.close()
    assert store.may_wait_on("key")
