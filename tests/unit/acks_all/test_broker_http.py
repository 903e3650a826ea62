"""The broker's HTTP endpoints and their problems."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from examples.acks_all.replica_manager import ReplicaManager
from tests.unit.acks_all.broker import A


def _produce_body(
    value: str = "x", *, topic: str = "a", acks: object = "all", timeout_ms: int = 100
) -> dict[str, object]:
    partition = {"topic": topic, "partition": 0, "records": [value]}
    return {"acks": acks, "timeout_ms": timeout_ms, "partitions": [partition]}


def _fetch_body(offset: int = 0, **more: object) -> dict[str, object]:
    entry: dict[str, object] = {"topic": "a", "partition": 0, "offset": offset}
    if "leader_epoch" in more:
        entry["leader_epoch"] = more.pop("leader_epoch")
    return {"max_wait_ms": 0, "partitions": [entry], **more}


async def _lose_leader(http: httpx.AsyncClient) -> None:
    body = {"leader": 1, "leader_epoch": 1}
    response = await http.put("/topics/a/partitions/0/leader", json=body)
    assert response.status_code == 200


async def _lose_storage(http: httpx.AsyncClient) -> None:
    response = await http.post("/topics/a/partitions/0/storage-failure")
    assert response.json()["is_offline"]


async def _lose_followers(http: httpx.AsyncClient) -> None:
    response = await http.post("/produce", json=_produce_body(timeout_ms=5000))
    assert response.json()["type"] == "/problems/not-enough-replicas-after-append"


async def _fill_log(http: httpx.AsyncClient) -> None:
    for _ in range(10):
        response = await http.post("/produce", json=_produce_body("x" * 100, acks=1))
        assert response.status_code == 200


async def _fill_purgatory(http: httpx.AsyncClient) -> None:
    manager: ReplicaManager = http.app.state.replica_manager  # type: ignore[attr-defined] # above
    for _ in range(3):
        manager.produce({A: ["x"]}, acks_all=True, timeout_ms=1, respond=lambda _: None)
    assert manager.purgatory.parked == 4


async def _drain(http: httpx.AsyncClient) -> None:
    await http.app.state.purgatory.drain()  # type: ignore[attr-defined] # above


async def _nothing(http: httpx.AsyncClient) -> None:
    pass


LEADER = {"leader": 9, "leader_epoch": 1}


@pytest.mark.parametrize(
    ("prepare", "method", "path", "body", "status", "slug"),
    [
        (_nothing, "POST", "/produce", _produce_body(topic="b"), 404, "unknown-partition"),
        (_lose_leader, "POST", "/produce", _produce_body(), 421, "not-leader"),
        (_lose_leader, "POST", "/fetch", _fetch_body(), 421, "not-leader"),
        (_lose_storage, "POST", "/produce", _produce_body(), 500, "storage-failed"),
        (_lose_storage, "POST", "/fetch", _fetch_body(), 500, "storage-failed"),
        (_nothing, "POST", "/fetch", _fetch_body(leader_epoch=3), 409, "unknown-leader-epoch"),
        (
            _lose_leader,
            "PUT",
            "/topics/a/partitions/0/leader",
            {"leader": 0, "leader_epoch": 1},
            409,
            "fenced-leader-epoch",
        ),
        (_nothing, "PUT", "/topics/a/partitions/0/leader", LEADER, 403, "unknown-replica"),
        (_nothing, "POST", "/fetch", _fetch_body(replica_id=9), 403, "unknown-replica"),
        (_nothing, "POST", "/fetch", _fetch_body(1), 416, "offset-out-of-range"),
        (_nothing, "POST", "/produce", _produce_body("x" * 101), 413, "record-too-large"),
        (_fill_log, "POST", "/produce", _produce_body(), 507, "log-full"),
        (_lose_followers, "POST", "/produce", _produce_body(), 503, "not-enough-replicas"),
        (
            _nothing,
            "POST",
            "/produce",
            _produce_body(timeout_ms=5000),
            503,
            "not-enough-replicas-after-append",
        ),
        (_nothing, "POST", "/produce", _produce_body(), 504, "timed-out"),
        (_fill_purgatory, "POST", "/produce", _produce_body(), 503, "broker-busy"),
        (_drain, "POST", "/produce", _produce_body(), 503, "broker-closing"),
        (_nothing, "GET", "/topics/b/partitions/0", None, 404, "unknown-partition"),
    ],
)
async def test_every_refusal_is_a_problem_of_its_own(
    http: httpx.AsyncClient,
    prepare: Callable[[httpx.AsyncClient], Any],
    method: str,
    path: str,
    body: object,
    status: int,
    slug: str,
) -> None:
    """With a type, a status, a sentence, and what the error's docstring calls it."""
    await prepare(http)
    response = await http.request(method, path, json=body)
    document = response.json()
    assert (response.status_code, document["type"]) == (status, f"/problems/{slug}")
    assert response.headers["content-type"] == "application/problem+json"
    assert document["status"] == status
    assert document["instance"] == path
    assert document["detail"]
    assert ("retry-after" in response.headers) == (status == 503)
    described = await http.get(document["type"])
    assert described.json() == {"title": document["title"], "status": status}


async def test_partitions_that_differ_have_each_their_status(http: httpx.AsyncClient) -> None:
    """207 when some went well, or when they failed in different ways."""
    body = _produce_body(acks=1)
    assert isinstance(body["partitions"], list)
    body["partitions"].append({"topic": "b", "partition": 0, "records": ["x"]})
    response = await http.post("/produce", json=body)
    assert response.status_code == 207
    first, second = response.json()["partitions"]
    assert (first["error"], first["base_offset"]) == (None, 0)
    assert second["error"]["status"] == 404


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"partitions": []},
        {**_produce_body(), "more": 1},
        _produce_body(""),
        _produce_body("\ud800"),
        _produce_body(topic="a/b"),
        _produce_body(timeout_ms=-1),
        _produce_body(timeout_ms=55_001),
        _produce_body(acks=0),
        _produce_body(acks="1"),
        {"partitions": [{"topic": "a", "partition": 0, "records": ["x"]}] * 2},
        {"partitions": [{"topic": "a", "partition": "0", "records": ["x"]}]},
        {"partitions": [{"topic": "a", "partition": True, "records": ["x"]}]},
    ],
)
async def test_a_body_that_says_something_else_is_refused(
    http: httpx.AsyncClient, body: object
) -> None:
    """With 422 and a problem, and nothing is appended."""
    # With every character escaped, as half a surrogate pair has to be.
    response = await http.post(
        "/produce", content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    assert (await http.get("/topics/a/partitions/0")).json()["log_end_offset"] == 0
