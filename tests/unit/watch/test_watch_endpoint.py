"""The endpoints that park, without a server: a fault is a failure here, and not a hang."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from fastapi import FastAPI

from purgatory import Purgatory
from purgatory.fastapi.watch.schemas import WatchManyResponse, WatchResponse
from tests.patience import until_in_turns
from tests.unit.exchange import Exchange

WAIT_ID = "0b1d6c5e-7d0c-4a53-9b0e-2d1c9f0a1b2c"
PROBLEM = "/purgatory/problems/"


def watch(query: str = "", key: str = "k", **headers: str) -> Exchange:
    """A request that watches one key."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Exchange(f"/purgatory/watch/{key}", named, query_string=query.encode())


def watch_many(document: Any, **headers: str) -> Exchange:
    """A request that watches several keys."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named["Content-Type"] = "application/json"
    body = json.dumps(document).encode()
    return Exchange("/purgatory/watch", named, method="POST", body=[body])


async def parked(app: FastAPI, purgatory: Purgatory, exchange: Exchange) -> Exchange:
    """Send a request that is to be parked."""
    before = purgatory.parked
    exchange.begin(app)
    await until_in_turns(lambda: purgatory.parked == before + 1)
    assert not exchange.sent
    return exchange


@pytest.mark.parametrize("waiting", [0, 1, 2, 3, 4, 9])
async def test_as_many_signals_as_the_limit(
    app: FastAPI, purgatory: Purgatory, waiting: int
) -> None:
    """`more` says that others wait, and the cursor is that of the last one told; else of all."""
    start = purgatory.signals.cursor(purgatory.signals.head())
    cursors = [(await purgatory.fire("k", number)).cursor for number in range(waiting)]
    await purgatory.fire("other")
    now = purgatory.signals.cursor(purgatory.signals.head())
    reply = await watch(f"cursor={start}&limit=3&wait=0").begin(app).reply()
    document = reply.json()
    told = [signal["value"] for signal in document["signals"]]
    assert (reply.status, told) == (200, list(range(min(waiting, 3))))
    assert document["more"] is (waiting > 3)
    assert document["cursor"] == (cursors[2] if waiting > 3 else now)
    assert document["reason"] == ("fired" if waiting else "expired")


async def test_a_superseded_wait_leaves_the_core(app: FastAPI, purgatory: Purgatory) -> None:
    """At once, with its timer and its keys; neither its key nor its deadline finds it again."""
    older = await parked(app, purgatory, watch("wait=20", "old", Wait_Id=WAIT_ID))
    newer = watch("wait=30", "new", Wait_Id=WAIT_ID).begin(app)
    reply = await older.reply()
    assert (reply.status, reply.json()["type"]) == (409, f"{PROBLEM}superseded")
    counts = purgatory.statistics()
    assert (counts.parked, counts.watched, counts.keys) == (1, 1, 1)
    assert purgatory.watched_keys() == {"new": 1}
    assert (await purgatory.fire("old")).completed == 0
    assert (await purgatory.fire("new", 7)).completed == 1
    document = (await newer.reply()).json()
    assert [signal["value"] for signal in document["signals"]] == [7]


@pytest.mark.parametrize("wait", [0, 20])
async def test_a_watch_during_a_drain(app: FastAPI, purgatory: Purgatory, wait: int) -> None:
    """503 at once, whether it would have parked or only asked: another process has the answer."""
    await purgatory.fire("k", 1)
    waiting = await parked(app, purgatory, watch("wait=20"))
    await purgatory.drain()
    drained = (await waiting.reply()).json()
    assert (drained["reason"], drained["signals"]) == ("drained", [])
    for exchange in (
        watch(f"wait={wait}&cursor=0"),
        watch_many({"keys": {"k": "0"}, "wait": wait}),
    ):
        reply = await exchange.begin(app).reply()
        assert (reply.status, reply.json()["type"]) == (503, f"{PROBLEM}draining")
        assert int(reply.headers["retry-after"]) >= 0
        assert reply.headers["connection"] == "close"
    assert purgatory.parked == 0


async def test_a_client_that_leaves_takes_its_wait_along(
    app: FastAPI, purgatory: Purgatory
) -> None:
    """From the core, its keys and the timer, before anything fires."""
    exchange = await parked(
        app, purgatory, watch_many({"keys": {"a": None, "b": None}, "wait": 20})
    )
    assert purgatory.watched_keys() == {"a": 1, "b": 1}
    exchange.leave()
    await exchange.end()
    counts = purgatory.statistics()
    assert (counts.parked, counts.watched, counts.keys) == (0, 0, 0)
    assert (counts.cancelled, exchange.sent) == (1, [])


async def test_the_documented_responses_are_those_that_are_sent(
    app: FastAPI, purgatory: Purgatory
) -> None:
    """But for the cursor and the time."""
    start = purgatory.signals.cursor(purgatory.signals.head())
    await purgatory.fire("order:42:paid", {"by": "card"})
    one = watch(f"cursor={start}&wait=0", "order:42:paid")
    many = watch_many({"keys": {"order:42:paid": start, "order:42:sent": start}, "wait": 0})
    for exchange, model in ((one, WatchResponse), (many, WatchManyResponse)):
        (example,) = model.model_json_schema()["examples"]
        sent = (await exchange.begin(app).reply()).body.decode()
        sent = re.sub(r'(?<="at":")[^"]+', "2026-11-21T15:04:05.678Z", sent)
        cursor = purgatory.signals.cursor(purgatory.signals.head())
        assert json.loads(sent.replace(cursor, "8c1f0a9be2d4-1")) == example
