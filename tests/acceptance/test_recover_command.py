"""`purgatory recover --dry-run` on stores that have something to recover."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from purgatory import Purgatory
from purgatory.__main__ import main
from purgatory.jobs import JobContext
from purgatory.jobs.clients import JobClient
from purgatory.jobs.model import Bounds, Claim, JobSpec, Start
from purgatory.jobs.sql import migrate
from tests.patience import until
from tests.step_methods import SqlSteps


async def _paused_jobs(path: Path) -> None:
    """Add overdue jobs: blocked by a pause, due since the last worker, and of another handler."""
    url = f"sqlite:///{path}"
    await migrate(url)
    purgatory = Purgatory(jobs=SqlSteps(url))

    @purgatory.handler("mail")
    async def mail(job: JobContext) -> None:
        raise AssertionError("it is paused")

    async with purgatory:
        await purgatory.jobs.pause("mail")
        for misfire in ("skip", "skip", "run", "spread"):
            await purgatory.defer("mail", delay=0, misfire=misfire)
        await until(lambda: _blocked(path) == 4)
    async with JobClient(SqlSteps(url)) as client:
        await client.defer("mail", delay=0, misfire="skip")
        await client.defer("note", delay=0)
    store = SqlSteps(url)
    await store.open()
    # A worker that ran one of two, and died.
    await store.add([JobSpec.of("charge", wall_ms=0, delay=0) for _ in range(2)])
    bounds = Bounds("charge", 1)
    [claimed] = await store.run([Claim("w", 0, 10, 1, ("charge", "mail", "note"), (bounds,))])
    [running] = [job for job in claimed.jobs if job.handler == "charge"]
    await store.run([Start(running.claim, 1, bounds=bounds)])
    await store.close()
    with closing(sqlite3.connect(path)) as database, database:
        # As if a minute had passed.
        database.execute(
            "UPDATE purgatory_jobs SET created_ms = created_ms - 60000, "
            "deadline_ms = deadline_ms - 60000, due_ms = due_ms - 60000"
        )


def _blocked(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        count = "SELECT count(*) FROM purgatory_jobs WHERE blocked_by = 'paused'"
        return int(database.execute(count).fetchone()[0])


def test_jobs_of_a_paused_handler(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """They are overdue, and what happens to them happens once it is resumed."""
    path = tmp_path / "jobs.sqlite3"
    url = f"sqlite:///{path}"
    asyncio.run(_paused_jobs(path))
    capfd.readouterr()
    assert main(["--json", "recover", "--dry-run", "--store", url]) == 0
    said = capfd.readouterr()
    none = {"run": 0, "skip": 0, "spread": 0, "blocked": 0, "interrupted": 0}
    assert [json.loads(line) for line in said.out.splitlines()] == [
        none | {"handler": "charge", "paused": False, "blocked": 1, "interrupted": 1},
        none | {"handler": "mail", "paused": True, "run": 1, "skip": 3, "spread": 1},
        none | {"handler": "note", "paused": False, "run": 1},
    ]
    assert "no job is overdue" not in said.err
    assert main(["recover", "--dry-run", "--store", url]) == 0
    said = capfd.readouterr()
    assert [line.split() for line in said.out.splitlines()] == [
        ["handler", "paused", "run", "skip", "spread", "blocked", "interrupted"],
        ["charge", "false", "0", "0", "0", "1", "1"],
        ["mail", "true", "1", "3", "1", "0", "0"],
        ["note", "false", "1", "0", "0", "0", "0"],
    ]
    assert "jobs of paused handlers: what happens once these are resumed" in said.err
