"""Fires on keys without jobs ask no thread and no task, and miss no job of another process."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from purgatory import Purgatory
from purgatory.jobs.model import Fire, JobSpec
from purgatory.jobs.sql import migrate, sqlite
from purgatory.timer import SystemClock
from tests.step_methods import SqlSteps

# PURGATORY_RACES=1000000 for the long form.
RACES = int(os.environ.get("PURGATORY_RACES", "200"))
KEYS = 7


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No look-up is slow: on a busy machine, one might be."""
    monkeypatch.setattr(sqlite, "_SLOW_NS", 10**12)


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


def spec(*keys: str) -> JobSpec:
    return JobSpec.of("note", wall_ms=SystemClock().wall_ms(), delay=600, keys=keys)


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
    monkeypatch.setattr(sqlite, "_SLOW_NS", -1)
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
