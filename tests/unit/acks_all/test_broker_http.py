"""The broker's HTTP endpoints and their problems."""

import json

import httpx
import pytest

from examples.acks_all.errors import BrokerError
from examples.acks_all.problems import KINDS, problem_response
from tests.cases import cases


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


LEADER = {"leader": 9, "leader_epoch": 1}


@cases(
    "method, path, body, status, slug",
    [
        ("POST", "/produce", _produce_body(topic="b"), 404, "unknown-partition"),
        ("POST", "/fetch", _fetch_body(leader_epoch=3), 409, "unknown-leader-epoch"),
        ("PUT", "/topics/a/partitions/0/leader", LEADER, 403, "unknown-replica"),
        ("POST", "/fetch", _fetch_body(replica_id=9), 403, "unknown-replica"),
        ("POST", "/fetch", _fetch_body(1), 416, "offset-out-of-range"),
        ("POST", "/produce", _produce_body("x" * 101), 413, "record-too-large"),
        ("POST", "/produce", _produce_body(), 504, "timed-out"),
        ("GET", "/topics/b/partitions/0", None, 404, "unknown-partition"),
    ],
)
async def test_a_refusal_is_a_problem_of_its_own(
    http: httpx.AsyncClient, method: str, path: str, body: object, status: int, slug: str
) -> None:
    """With a type, a status, a sentence, and what the error's docstring calls it."""
    response = await http.request(method, path, json=body)
    document = response.json()
    assert (response.status_code, document["type"]) == (status, f"/problems/{slug}")
    assert response.headers["content-type"] == "application/problem+json"
    assert (document["status"], document["instance"]) == (status, path) and document["detail"]
    assert "retry-after" not in response.headers
    described = await http.get(document["type"])
    assert described.json() == {"title": document["title"], "status": status}


def test_each_kind_of_problem_has_its_own_slug() -> None:
    """Each is also the builtin that a stranger would catch, and can be shown without a detail."""
    assert len(KINDS) == 15
    for slug, kind in KINDS.items():
        assert len(kind.__mro__[kind.__mro__.index(BrokerError) :]) >= 4
        response = problem_response(kind(), "/")
        assert response.status_code == kind.status
        assert json.loads(bytes(response.body))["type"] == f"/problems/{slug}"
        assert ("retry-after" in response.headers) == (kind.status == 503)


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
        _produce_body(""),
        _produce_body(timeout_ms=55_001),
        _produce_body(acks="1"),
        {"partitions": [{"topic": "a", "partition": 0, "records": ["x"]}] * 2},
        {"partitions": [{"topic": "a", "partition": "0", "records": ["x"]}]},
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
