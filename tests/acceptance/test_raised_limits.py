"""A limit that was raised is the one that holds: no lower one hides behind it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi import FastAPI

from purgatory import Limits, Purgatory
from purgatory.fastapi import ALLOW_ANYONE, install
from purgatory.jobs import JobLimits, MemoryJobStore
from tests.acceptance.client import Connection
from tests.acceptance.thread_server import KINDS, ThreadServer, each_kind

MIB = 1024 * 1024

# What is tested here is above the server.
kind = each_kind(KINDS[0])


@pytest.fixture
def purgatory() -> Purgatory:
    """More of everything than by default."""
    limits = Limits(max_keys_per_operation=500, max_value_bytes=2 * MIB, max_signals_per_key=2000)
    jobs = MemoryJobStore(limits=JobLimits(max_keys=200, max_payload_bytes=MIB, max_attempts=2000))
    purgatory = Purgatory(limits=limits, jobs=jobs)
    purgatory.handled_elsewhere(["h"], http=True)
    return purgatory


@pytest.fixture
def app(purgatory: Purgatory) -> FastAPI:
    """The endpoints and nothing else."""
    app = FastAPI()
    install(app, purgatory, authorize=ALLOW_ANYONE)
    return app


def _keys(count: int) -> dict[str, None]:
    """The longest keys that there are."""
    return {f"{number:04}".ljust(256, "\N{PILE OF POO}"): None for number in range(count)}


async def test_keys_of_one_wait(connection: Connection) -> None:
    """As many as the limit says, however long, and not one more."""
    for until in ("any", {"count": 450}):
        body = {"keys": _keys(500), "wait": 0, "until": until}
        reply = await connection.request("POST", "/purgatory/watch", body)
        assert reply.status == 200 and len(reply.json()["cursors"]) == 500
    body = {"keys": _keys(501), "wait": 0}
    refusal = await connection.request("POST", "/purgatory/watch", body)
    assert refusal.status == 422 and refusal.json()["allowed"].startswith("an object of 1 to 500")


async def test_signals_to_wait_for(connection: Connection) -> None:
    """As many as are kept: with one more, the first would be gone when the last comes."""
    for count, status in ((2000, 200), (2001, 422)):
        body = {"keys": {"k": None}, "wait": 0, "min": count}
        for reply in (
            await connection.get(f"/purgatory/watch/k?wait=0&min={count}"),
            await connection.request("POST", "/purgatory/watch", body),
        ):
            assert reply.status == status
            assert status == 200 or "from 1 to 2000" in reply.json()["allowed"]


@pytest.mark.parametrize("letter", ["x", "\N{GREEK SMALL LETTER ALPHA}"], ids=["ascii", "greek"])
async def test_a_value(server: ThreadServer, connection: Connection, letter: str) -> None:
    """Its size is that of its JSON in UTF-8: what is written for ASCII only takes more room."""
    value = letter * ((2 * MIB - 2) // len(letter.encode()))
    for target, body in (
        ("/purgatory/keys/k", {"value": value}),
        ("/purgatory/keys", [{"key": "k", "value": value}]),
    ):
        assert (await connection.request("POST", target, body)).status == 201
        refusal = await connection.request("POST", target, _longer(body))
        assert (refusal.status, refusal.json()["param"]) == (422, "value")
        assert str(2 * MIB) in refusal.json()["detail"]
    assert server.purgatory.signals.statistics().signals == 2


def _longer(body: Any) -> Any:
    if isinstance(body, list):
        return [_longer(item) for item in body]
    return {**body, "value": body["value"] + "x"}


async def test_a_job(connection: Connection) -> None:
    """Its payload and its keys, by itself and as a line of a batch."""
    job = {
        "handler": "h",
        "delay": 900,
        "payload": "\N{GREEK SMALL LETTER ALPHA}" * (MIB // 2 - 1),
        "keys": list(_keys(200)),
        "max_attempts": 2000,
    }
    for wrong, right in (("payload", MIB), ("keys", 200), ("max_attempts", 2000)):
        reply = await connection.request("POST", "/purgatory/jobs", job)
        assert reply.status == 201, reply.body
        line = (await connection.request("POST", "/purgatory/jobs:batch", job)).json()
        assert line["status"] == 201
        more: Any = {"payload": job["payload"] + "x", "keys": list(_keys(201))}  # type: ignore[operator] # it is a string
        refusal = await connection.request(
            "POST", "/purgatory/jobs", {**job, wrong: more.get(wrong, 2001)}
        )
        assert (refusal.status, refusal.json()["param"]) == (422, wrong)
        assert str(right) in json.dumps(refusal.json())
