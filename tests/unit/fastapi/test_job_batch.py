"""A batch of jobs, and the rest of the process meanwhile."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi import FastAPI

from purgatory import Purgatory, turn_budget
from purgatory.fastapi import ALLOW_ANYONE, AccessesDep, install
from purgatory.fastapi.http.json_bodies import JsonBody
from purgatory.fastapi.http.requests import Access, Action
from purgatory.jobs import JobContext, MemoryJobStore
from tests.cases import cases
from tests.turns import Turns
from tests.unit.exchange import Exchange, Reply

SMALL = b'{"handler":"note","delay":9000}'
LARGE = json.dumps({"handler": "note", "delay": 1000, "payload": "x" * 60_000}).encode()


def create_app(**options: Any) -> FastAPI:
    """Takes jobs, and does none of them."""
    app, purgatory = FastAPI(), Purgatory(jobs=MemoryJobStore())
    install(app, purgatory, **{"authorize": ALLOW_ANYONE, **options})

    @purgatory.handler("note", http=True)
    async def note(job: JobContext, payload: Any) -> None: ...

    return app


async def post(app: FastAPI, *lines: bytes) -> Reply:
    exchange = Exchange("/purgatory/jobs:batch", method="POST", body=[b"\n".join(lines)])
    return await exchange.begin(app).reply()


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn is over whenever somebody asks: their number does not depend on the machine."""
    monkeypatch.setattr(turn_budget, "TURN_NS", 0)


@cases("line", [LARGE, SMALL, b"x"])
async def test_lines_leave_others_their_turns(line: bytes) -> None:
    """Each of them may be the last one of a turn."""
    app = create_app()
    async with app.router.lifespan_context(app), Turns() as turns:
        reply = await post(app, *[line] * 100)
    assert len(_results(reply)) == 100
    assert turns.count >= 100


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


@cases("line", [LARGE, SMALL])
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
    lines = [line] * 200
    async with app.router.lifespan_context(app), turns:
        reply = await post(app, *lines, with_key)
    assert len(reply.body.splitlines()) == len(lines) + 1
    assert keys == [Access(Action.DEFER), Access(Action.WAIT, "k")]
    assert before >= len(lines)


async def test_too_many_lines_are_not_read_for_an_authorization() -> None:
    """They are refused whole, as by the endpoint."""
    asked: list[Access] = []

    async def authorize(accesses: AccessesDep) -> None:
        asked.extend(accesses)

    app = create_app(authorize=authorize)
    async with app.router.lifespan_context(app):
        reply = await post(app, *[b"x"] * 10_001)
    assert (reply.status, reply.json()["param"]) == (422, "body")
    assert "more than 10000 lines" in reply.json()["detail"] and asked == []


def _results(reply: Reply) -> list[dict[str, Any]]:
    return [json.loads(line) for line in reply.body.splitlines()]


@cases("line", [b"x", b"{}", b'{"handler":"none","delay":1}'])
async def test_a_batch_of_refused_lines_is_not_read_to_its_end(line: bytes) -> None:
    """The same problem is said once, and the last result says how many lines to send again."""
    app = create_app()
    async with app.router.lifespan_context(app):
        results = _results(await post(app, SMALL, *[line] * 9_000, SMALL))
    assert [result["line"] for result in results] == list(range(1, 103))
    added, refused, *others, end = results
    assert added["status"] == 201 and refused["problem"]["detail"]
    assert {(other["status"], other["same_as"]) for other in others} == {(refused["status"], 2)}
    assert (end["status"], end["problem"]["unread"]) == (424, 9_001 - 100)
    assert "the 8901 lines from 102 on were not read" in end["problem"]["detail"]


async def test_problems_are_in_proportion_to_the_request() -> None:
    """However much there is to say of each line."""
    app = create_app()
    fields = [json.dumps({f"{n}-{f}": 1 for f in range(20)}).encode() for n in range(100)]
    async with app.router.lifespan_context(app):
        reply = await post(app, *fields)
    *refused, end = _results(reply)
    assert {result["status"] for result in refused} == {422}
    assert end["problem"]["unread"] == 100 - len(refused) > 0
    assert len(reply.body) < 2 * sum(map(len, fields)) + 2 * 64 * 1024


async def test_a_batch_that_is_sent_again_is_read_to_its_end() -> None:
    """Any number of duplicates is no reason to stop."""
    app = create_app()
    lines = [
        json.dumps({"handler": "note", "delay": 9000, "dedupe_key": f"order-{n}"}).encode()
        for n in range(300)
    ]
    async with app.router.lifespan_context(app):
        assert {each["status"] for each in _results(await post(app, *lines))} == {201}
        results = _results(await post(app, *lines, SMALL))
    assert [each["status"] for each in results] == [409] * 300 + [201]
    # The job of each, and what else there is to say of it once.
    jobs = [each.get("job") or each["problem"]["job"] for each in results[:300]]
    assert len(set(jobs)) == 300 and all(each["same_as"] == 1 for each in results[1:300])
