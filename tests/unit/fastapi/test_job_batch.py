"""A batch of jobs, and the rest of the process meanwhile."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Self

import pytest
from fastapi import FastAPI

from purgatory import Purgatory
from purgatory.fastapi import ALLOW_ANYONE, AccessesDep, install
from purgatory.fastapi.http.authorization import Access, Action
from purgatory.fastapi.http.bodies.json_bodies import JsonBody
from purgatory.jobs import JobContext, MemoryJobStore
from tests.unit.exchange import Exchange, Reply

LARGE = json.dumps({"handler": "note", "delay": 1000, "payload": "x" * 60_000}).encode()


def create_app(**options: Any) -> FastAPI:
    """Takes jobs, and does none of them."""
    app, purgatory = FastAPI(), Purgatory(jobs=MemoryJobStore())
    install(app, purgatory, **{"authorize": ALLOW_ANYONE, **options})

    @purgatory.handler("note", http=True)
    async def note(job: JobContext, payload: Any) -> None: ...

    return app


class Turns:
    """Counts the turns of the loop while it is entered."""

    def __init__(self) -> None:
        self.count = 0

    async def __aenter__(self) -> Self:
        self._counting = asyncio.create_task(self._count())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._counting.cancel()

    async def _count(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)


async def post(app: FastAPI, *lines: bytes) -> Reply:
    exchange = Exchange("/purgatory/jobs:batch", method="POST", body=[b"\n".join(lines)])
    return await exchange.begin(app).reply()


async def test_large_lines_leave_others_their_turns() -> None:
    """As many bytes as one job may have are read in one turn of the loop, not all of a chunk."""
    app = create_app()
    async with app.router.lifespan_context(app), Turns() as turns:
        reply = await post(app, *[LARGE] * 100)
    results = [json.loads(line) for line in reply.body.splitlines()]
    assert [result["status"] for result in results] == [201] * 100
    assert turns.count >= 50


async def test_a_line_beyond_the_limit_of_a_job_is_not_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An array of millions of arrays would stop the event loop and take a gigabyte."""
    parsed: list[int] = []
    parse = JsonBody.parse

    def counting(self: JsonBody[Any], body: bytes) -> Any:
        parsed.append(len(body))
        return parse(self, body)

    monkeypatch.setattr(JsonBody, "parse", counting)
    bomb = b'{"handler": "note", "delay": 1, "payload": [' + b"[]," * 5_000_000 + b"[]]}"
    app = create_app()
    async with app.router.lifespan_context(app):
        reply = await post(app, bomb, LARGE)
    refused, added = [json.loads(line) for line in reply.body.splitlines()]
    assert refused["status"] == 413 and len(LARGE) < refused["problem"]["limit"] < len(bomb)
    assert added["status"] == 201 and parsed == [len(LARGE)]


@pytest.mark.parametrize("line", [LARGE, b"x"], ids=["large", "small"])
async def test_reading_for_an_authorization_leaves_others_their_turns(line: bytes) -> None:
    """Of many small lines, too: each is read before anybody is asked who wants all that."""
    turns, before = Turns(), 0
    keys: list[Access] = []

    async def authorize(accesses: AccessesDep) -> None:
        nonlocal before
        before = turns.count
        keys.extend(accesses)

    app = create_app(authorize=authorize)
    with_key = b'{"handler":"note","delay":1,"keys":["k"]}'
    lines = [line] * (100 if line is LARGE else 9_000)
    async with app.router.lifespan_context(app), turns:
        reply = await post(app, *lines, with_key)
    assert len(reply.body.splitlines()) == len(lines) + 1
    assert keys == [Access(Action.DEFER), Access(Action.WAIT, "k")]
    assert before >= 30


async def test_too_many_lines_are_not_read_for_an_authorization() -> None:
    """They are refused whole, as by the endpoint."""
    asked: list[Access] = []

    async def authorize(accesses: AccessesDep) -> None:
        asked.extend(accesses)

    app = create_app(authorize=authorize)
    async with app.router.lifespan_context(app):
        reply = await post(app, *[b"x"] * 10_001)
    assert (reply.status, reply.json()["param"]) == (422, "body")
    assert "10001 lines" in reply.json()["detail"] and asked == []
