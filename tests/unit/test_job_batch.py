"""A batch of jobs, and the rest of the process meanwhile."""

from __future__ import annotations

import asyncio
import json

import pytest
from fastapi import FastAPI

from purgatory import Purgatory
from purgatory.fastapi import install
from purgatory.jobs import JobContext, MemoryJobStore
from tests.unit.exchange import Exchange


@pytest.fixture
async def app() -> FastAPI:
    """Takes jobs, and does none of them."""
    app, purgatory = FastAPI(), Purgatory(jobs=MemoryJobStore())
    install(app, purgatory)

    @purgatory.handler("note")
    async def note(job: JobContext) -> None: ...

    return app


async def test_large_lines_leave_others_their_turns(app: FastAPI) -> None:
    """As many bytes as one job may have are read in one turn of the loop, not all of a chunk."""
    line = json.dumps({"handler": "note", "delay": 1000, "payload": "x" * 60_000}).encode()
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with app.router.lifespan_context(app):
        counting = asyncio.create_task(count())
        exchange = Exchange("/purgatory/jobs:batch", method="POST", body=[b"\n".join([line] * 100)])
        reply = await exchange.begin(app).reply()
        counting.cancel()
    results = [json.loads(line) for line in reply.body.splitlines()]
    assert [result["status"] for result in results] == [201] * 100
    assert turns >= 50
