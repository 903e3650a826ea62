"""The endpoints that park, without a server: a fault is a failure here, and not a hang."""

from __future__ import annotations

import json
import re
from typing import Any

from fastapi import FastAPI

from purgatory import Purgatory
from purgatory.fastapi.watch.schemas import WatchManyResponse, WatchResponse
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
