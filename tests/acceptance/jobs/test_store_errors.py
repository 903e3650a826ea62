"""A job store that fails or is full, as clients of HTTP see it."""

from __future__ import annotations

import json

import pytest

from purgatory import Purgatory
from purgatory.jobs import JobLimits, MemoryJobStore, StoreUnavailableError
from purgatory.jobs.model import StoreReadOnlyError
from tests.acceptance.client import Connection
from tests.acceptance.jobs.application import JOBS, Store, add, create_app, post_lines
from tests.acceptance.thread_server import ServerKind, ThreadServer, serve
from tests.bad_input.refusals import check_refusal


async def test_a_repeat_after_an_answer_that_was_lost(
    connection: Connection, store: Store, server: ThreadServer
) -> None:
    """The job that was stored all the same is the one that the repeat is told of."""
    headers = {"Idempotency-Key": "once"}
    body = {"handler": "note", "delay": 100}
    store.lost_answer = StoreUnavailableError("the server hung up")
    lost = await connection.request("POST", JOBS, body, headers)
    check_refusal(lost, 503, "store-unavailable")
    again = await connection.request("POST", JOBS, body, headers)
    assert again.status == 201 and again.headers["location"].endswith(again.json()["id"])
    assert (await server.call(server.purgatory.jobs.counts)).waiting == 1
    # Without a key nobody can know.
    store.lost_answer = StoreUnavailableError("the server hung up")
    assert (await connection.request("POST", JOBS, body)).status == 503
    assert (await connection.request("POST", JOBS, body)).status == 201
    assert (await server.call(server.purgatory.jobs.counts)).waiting == 3


async def test_a_key_that_named_another_job_is_refused_after_an_answer_that_was_lost(
    connection: Connection, store: Store, server: ThreadServer
) -> None:
    """By the job in the store, as no answer was kept: 422, and nothing is added."""
    headers = {"Idempotency-Key": "once"}
    body = {"handler": "note", "delay": 100}
    store.lost_answer = StoreUnavailableError("the server hung up")
    assert (await connection.request("POST", JOBS, body, headers)).status == 503
    other = await connection.request("POST", JOBS, body | {"payload": 2}, headers)
    check_refusal(other, 422, "idempotency-conflict", "use a new key")
    assert (await connection.request("POST", JOBS, body, headers)).status == 201
    assert (await server.call(server.purgatory.jobs.counts)).waiting == 1


@pytest.mark.parametrize(
    "error", [StoreUnavailableError("it is out of reach"), StoreReadOnlyError("it is read-only")]
)
async def test_a_store_that_fails(
    server: ThreadServer, connection: Connection, store: Store, error: Exception
) -> None:
    """503 with Retry-After; /readyz and the statistics say so; nothing is acknowledged.

    The reason, which may have addresses and names in it, is in the log and the statistics only.
    """
    address = (await add(connection, keys=["k"])).headers["location"]
    store.error = error
    line = json.dumps({"handler": "note", "delay": 1}).encode()
    for reply in (
        await add(connection),
        await connection.get(address),
        await connection.request("DELETE", address),
        await connection.get(JOBS),
    ):
        refused = check_refusal(reply, 503, "store-unavailable", "store")
        assert str(error) not in str(refused)
        assert reply.headers["retry-after"]
    batch = await post_lines(connection, line + b"\n" + line)
    assert [json.loads(result)["status"] for result in batch.body.splitlines()] == [503, 503]
    statistics = (await connection.get("/purgatory/statistics")).json()["jobs"]
    assert statistics["states"] is None
    ready = await connection.get("/readyz")
    service = server.purgatory.jobs
    assert service is not None
    while ready.status == 200:
        # Until the worker has noticed, too: it asks when it is woken, or some seconds later.
        server.loop.call_soon_threadsafe(service._scheduler._listener.wake)
        ready = await connection.get("/readyz")
    assert "the job store fails" in ready.json()["missing"][0]
    assert str(error) not in str(ready.json())
    statistics = (await connection.get("/purgatory/statistics")).json()["jobs"]
    assert statistics["store_error"] == str(error)
    store.error = None
    while (await connection.get("/readyz")).status == 503:
        pass
    assert (await connection.get("/purgatory/statistics")).json()["jobs"]["states"]["waiting"] == 1


async def test_a_store_that_is_full(kind: ServerKind) -> None:
    """503 `jobs-full`."""
    purgatory = Purgatory(jobs=MemoryJobStore(limits=JobLimits(max_waiting=1)))
    with serve(create_app(purgatory), purgatory, kind) as server:
        async with await Connection.open(server.address) as connection:
            assert (await add(connection)).status == 201
            check_refusal(await add(connection), 503, "jobs-full", "no room")
