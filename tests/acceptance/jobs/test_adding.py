"""Adding jobs over HTTP: on keys, once, in batches, as callbacks."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from purgatory.jobs.callbacks import CALLBACK
from tests.acceptance.callback_receiver import receiving
from tests.acceptance.client import Connection
from tests.acceptance.jobs.application import JOBS, Store, add, post_lines, until
from tests.acceptance.thread_server import ThreadServer
from tests.bad_input.refusals import check_refusal
from tests.patience import PATIENCE_S


async def test_a_fire_decides_jobs(connection: Connection) -> None:
    """Run or cancel, and the answer says how many."""
    run = (await add(connection, keys=["k"])).headers["location"]
    cancel = (await add(connection, keys=["k"], on_fire="cancel")).headers["location"]
    fired = await connection.request("POST", "/purgatory/keys/k", {"value": {"by": "card"}})
    assert fired.json()["jobs"] == 2
    job = (await connection.get(cancel)).json()
    assert (job["state"], job["outcome"], job["fired_key"]) == ("cancelled", "fired", "k")
    assert job["fired_value"] == {"by": "card"}
    assert (await until(connection, run, "done"))["outcome"] == "fired"
    assert "jobs" not in (await connection.request("POST", "/purgatory/keys/k")).json()


async def test_a_batch_of_fires_asks_the_store_together(
    store: Store, connection: Connection
) -> None:
    """So that they share its round trip: one after another, none of them would be let through."""
    keys = ["a", "b", "c"]
    assert (await add(connection, keys=keys)).status == 201
    store.together = asyncio.Barrier(len(keys))
    batch = [{"key": key} for key in keys]
    async with asyncio.timeout(PATIENCE_S):
        fired = await connection.request("POST", "/purgatory/keys", batch)
    # The barrier lets them go in any order, and the job is the first one's.
    assert sorted(result.get("jobs", 0) for result in fired.json()["results"]) == [0, 0, 1]


async def test_a_job_counts_what_fired_since_a_cursor(connection: Connection) -> None:
    """Some of its keys since then; it shows which have fired, and how many it needs."""
    since = (await connection.request("GET", "/purgatory/keys/a")).json()["cursor"]
    await connection.request("POST", "/purgatory/keys/a", {"value": 1})
    job = (await add(connection, delay=60, keys=["a"], since=since, on_fire="cancel")).json()
    assert (job["state"], job["outcome"], job["fired_value"]) == ("cancelled", "fired", 1)
    assert (job["until"], job["fired_keys"]) == ("any", ["a"])
    keys = ["a", "b", "c"]
    two = {"count": 2}
    job = (await add(connection, delay=60, keys=keys, since={"a": since}, until=two)).json()
    assert (job["state"], job["until"], job["fired_keys"]) == ("waiting", two, ["a"])
    await connection.request("POST", "/purgatory/keys/c", {"value": 3})
    job = (await connection.request("GET", f"{JOBS}/{job['id']}")).json()
    assert (job["outcome"], job["fired_keys"], job["fired_value"]) == ("fired", ["a", "c"], 3)
    # Beyond the worker's horizon: no timer of it may be left at the end.
    job = (await add(connection, delay=900, keys=keys, until="all")).json()
    assert (job["until"], job["fired_keys"]) == ("all", [])
    listed = (await connection.request("GET", JOBS)).json()["jobs"]
    assert [each["until"] for each in listed[:3]] == ["all", two, "any"]


@pytest.mark.parametrize("path", [JOBS, f"{JOBS}:batch"])
async def test_a_cursor_that_is_no_good_adds_no_job(
    connection: Connection, server: ThreadServer, path: str
) -> None:
    """410 and 422, as for a wait; in a batch, for its line alone."""
    since = (await connection.request("GET", "/purgatory/keys/a")).json()["cursor"]
    await connection.request("DELETE", "/purgatory/keys/a")
    before = await server.call(server.purgatory.jobs.counts)
    for cursor, status, slug in ((since, 410, "cursor-expired"), ("none", 400, "bad-cursor")):
        body = {"handler": "note", "delay": 60, "keys": ["a"], "since": cursor}
        if path == JOBS:
            check_refusal(await connection.request("POST", path, body), status, slug)
            continue
        lines = json.dumps(body).encode() + b"\n" + b'{"handler":"note","delay":60}'
        refused, added = (
            json.loads(line) for line in (await post_lines(connection, lines)).body.splitlines()
        )
        assert (refused["status"], added["status"]) == (status, 201)
        assert refused["problem"]["type"].endswith(slug)
        before = replace(before, waiting=before.waiting + 1)
    assert await server.call(server.purgatory.jobs.counts) == before


async def test_dedupe_keys(connection: Connection) -> None:
    """409 with the address of the one that waits; 200 where it is replaced or kept."""
    first = await add(connection, payload=1, dedupe_key="d")
    refused = await add(connection, payload=2, dedupe_key="d")
    document = check_refusal(refused, 409, "duplicate-job", "'d'")
    assert document["job"] == refused.headers["location"] == first.headers["location"]
    for on_conflict, payload in (("keep", 1), ("replace", 3)):
        reply = await add(connection, payload=3, dedupe_key="d", on_conflict=on_conflict)
        assert (reply.status, reply.json()["payload"]) == (200, payload)
        assert reply.headers["location"] == first.headers["location"]


async def test_a_batch(connection: Connection, server: ThreadServer) -> None:
    """Each line by itself, in order, 10,000 of them."""
    good = json.dumps({"handler": "note", "delay": 1000, "keys": ["k"]}).encode()
    lines = [good] * 10_000
    bad = {
        3: (b"{", 400, "bad-json"),
        4: (b"", 400, "bad-json"),
        5: (b'{"handler": "nope", "delay": 1}', 422, "unknown-handler"),
        6: (b'{"handler": "count", "payload": "x", "delay": 1}', 422, "bad-parameter"),
        7: (b'{"handler": "note", "delay": 1, "keys": ["\\u0000"]}', 422, "bad-parameter"),
        8: (b"\xff", 400, "bad-json"),
        9: (b'{"handler": "note", "delay": -1}', 422, "bad-parameter"),
        10: (b'{"handler": "note", "delay": NaN}', 422, "bad-parameter"),
    }
    for number, (line, _, _) in bad.items():
        lines[number - 1] = line
    lines[11] = b'{"handler": "note", "delay": 1000, "dedupe_key": "d"}'
    lines[12] = lines[11]
    reply = await post_lines(connection, b"\r\n".join(lines) + b"\n")
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/jsonl"
    results = [json.loads(line) for line in reply.body.splitlines()]
    assert [result["line"] for result in results] == list(range(1, 10_001))
    for number, (_, status, slug) in bad.items():
        result = results[number - 1]
        assert result["status"] == status, result
        assert result["problem"]["type"].endswith(slug), result
    assert results[12]["status"] == 409
    assert results[12]["problem"]["job"] == f"{JOBS}/{results[11]['id']}"
    ids = {result["id"] for result in results if result["status"] == 201}
    assert len(ids) == 10_000 - len(bad) - 1
    assert (await server.call(server.purgatory.jobs.counts)).waiting == len(ids)


async def test_a_batch_may_be_repeated(connection: Connection, server: ThreadServer) -> None:
    """With an Idempotency-Key: equal lines are as many jobs, and only what is missing is added."""
    lines = [b'{"handler": "note", "delay": 1000}'] * 3
    header = "Idempotency-Key: once\r\n"
    first = await post_lines(connection, b"\n".join(lines[:2]), header)
    again = await post_lines(connection, b"\n".join(lines), header)
    ids = [json.loads(line)["id"] for line in again.body.splitlines()]
    assert again.body.startswith(first.body) and len(set(ids)) == 3
    lines[0] = b'{"handler": "note", "delay": 1}'
    other = await post_lines(connection, b"\n".join(lines), header)
    results = [json.loads(line) for line in other.body.splitlines()]
    assert [result["status"] for result in results] == [422, 201, 201]
    assert results[0]["problem"]["type"].endswith("idempotency-conflict")
    assert (await server.call(server.purgatory.jobs.counts)).waiting == 3


async def test_callbacks_over_http(connection: Connection) -> None:
    """The receiver is called; the values of headers are not shown."""
    with receiving() as receiver:
        callback = {"url": f"{receiver.url}/hook", "headers": {"Authorization": "Bearer secret"}}
        body = {"callback": callback, "payload": [1], "delay": 0}
        added = await connection.request("POST", JOBS, body)
        assert added.status == 201
        job = await until(connection, added.headers["location"], "done")
        assert job["handler"] == CALLBACK
        [listed] = (await connection.get(f"{JOBS}?handler={CALLBACK}")).json()["jobs"]
        assert (listed["id"], listed["handler"]) == (job["id"], CALLBACK)
        assert job["callback"] == {
            "url": callback["url"], "method": "POST", "headers": ["Authorization"],
        }  # fmt: skip
        assert job["payload"] == [1]
        received = receiver.next()
        assert received.headers["authorization"] == "Bearer secret"
        assert json.loads(received.body)["payload"] == [1]
