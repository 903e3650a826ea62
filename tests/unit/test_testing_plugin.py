"""The fixtures for users, in a suite of theirs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.pages.blocks import ROOT, blocks

PAGE = ROOT / "docs/how-to/test-your-code.md"
SUITE_WITH_A_DATABASE = """
import time
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from purgatory.jobs import JobContext
from purgatory.jobs.sql import SqlJobStore, migrate

pytest_plugins = ["purgatory.testing.plugin"]


@pytest.fixture
def database(tmp_path):
    return f"sqlite+aiosqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def purgatory_job_store(purgatory_clock, database):
    return SqlJobStore(database, now_ms=purgatory_clock.wall_ms)


def test_an_order_is_cancelled_after_an_hour(purgatory_run, purgatory, database):
    cancelled = []

    @purgatory.handler
    def cancel_order(job: JobContext, order: int) -> None:
        time.sleep(0.05)
        cancelled.append(order)

    async def scenario():
        await migrate(database)
        engine = create_async_engine(database)
        at = datetime.now(UTC) + timedelta(minutes=1)
        async with purgatory:
            async with AsyncSession(engine) as session:
                job = await purgatory.defer("cancel_order", 42, at=at, session=session)
                await session.commit()
            assert (await job.wait(timeout=90)).state == "done"
        await engine.dispose()

    purgatory_run(scenario())
    assert cancelled == [42]
"""
SUITE_ON_OTHER_LOOPS = """
import asyncio

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from purgatory import Purgatory
from purgatory.fastapi import install
from purgatory.testing import MockClock

pytest_plugins = ["purgatory.testing.plugin"]
ERROR = "has the clock of the fixture purgatory_clock.* stands still on this event loop"


def test_an_ordinary_loop(purgatory):
    async def scenario():
        async with purgatory:
            await purgatory.park("order:42:paid", timeout=900)

    with pytest.raises(ValueError, match=ERROR):
        asyncio.run(scenario())


def test_the_loop_of_a_test_client(purgatory):
    app = FastAPI()
    install(app, purgatory)
    with pytest.raises(ValueError, match=ERROR), TestClient(app):
        pass


def test_a_clock_that_is_moved_by_hand():
    async def scenario():
        clock = MockClock()
        async with Purgatory(clock=clock) as purgatory:
            clock.advance(1_000)
            return purgatory.parked

    assert asyncio.run(scenario()) == 0
"""


def test_a_suite_of_a_user(tmp_path: Path) -> None:
    """The one that the how-to shows, with warnings as errors."""
    [suite] = [block.text for block in blocks(PAGE) if "# test_orders.py" in block.text]
    assert "4 passed" in run(suite, tmp_path)


def test_a_suite_with_a_database(tmp_path: Path) -> None:
    """A job of a transaction, and a handler that is a plain function, in virtual time."""
    assert "1 passed" in run(SUITE_WITH_A_DATABASE, tmp_path)


def test_the_clock_of_the_fixture_on_another_loop(tmp_path: Path) -> None:
    """It would stand still: an error, unless the clock is one that tests move themselves."""
    assert "3 passed" in run(SUITE_ON_OTHER_LOOPS, tmp_path)


def run(suite: str, tmp_path: Path) -> str:
    """Return what pytest prints for a suite."""
    (tmp_path / "test_orders.py").write_text(suite)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"]
    result = subprocess.run(
        [*command, f"--rootdir={tmp_path}", str(tmp_path)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    return result.stdout + result.stderr
