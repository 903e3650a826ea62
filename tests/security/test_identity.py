"""Users of an application with an `authorize` of its own, against one another."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import anyio.from_thread
import anyio.to_thread
import httpx
import pytest
from fastapi import FastAPI, Header, HTTPException

from purgatory import Purgatory
from purgatory.fastapi import AccessesDep, ParkDep, install
from purgatory.jobs import JobContext, MemoryJobStore
from purgatory.signals.redis import RedisSignals
from tests.acceptance.client import Connection, Reply
from tests.acceptance.thread_server import ThreadServer, serve
from tests.cases import cases
from tests.patience import PATIENCE_S, until
from tests.valkey_server import ValkeyServer

JOB = {"handler": "note", "delay": 900.0, "dedupe_key": "order-42", "payload": "hunter2"}


async def authorize(user: Annotated[str | None, Header()] = None) -> str:
    if user is None:
        raise HTTPException(401, "who are you?")
    return user


@pytest.fixture
def server() -> Iterator[ThreadServer]:
    app, purgatory = FastAPI(), Purgatory(jobs=MemoryJobStore())

    @purgatory.handler("note", http=True)
    async def note(job: JobContext, text: str) -> None:
        """Do nothing."""

    install(app, purgatory, authorize=authorize)
    with serve(app, purgatory) as running:
        yield running


async def ask(
    server: ThreadServer, user: str | None, method: str, path: str, body: Any = None, **more: str
) -> Reply:
    async with await Connection.open(server.address) as connection:
        headers = {} if user is None else {"User": user}
        return await connection.request(method, f"/purgatory{path}", body, {**headers, **more})


async def test_what_the_dependency_returns_is_the_identity(server: ThreadServer) -> None:
    """Idempotency-Keys, ids of waits and dedupe keys are each user's own."""
    key = {"Idempotency-Key": "1"}
    assert (await ask(server, None, "POST", "/keys/k", {"value": 1}, **key)).status == 401
    first = await ask(server, "alice", "POST", "/keys/k", {"value": 1}, **key)
    again = await ask(server, "alice", "POST", "/keys/k", {"value": 1}, **key)
    other = await ask(server, "bob", "POST", "/keys/k", {"value": 2}, **key)
    assert again.json() == first.json()
    assert (other.status, other.json()["seq"]) == (201, first.json()["seq"] + 1)
    jobs = [await ask(server, user, "POST", "/jobs", JOB, **key) for user in ("alice", "bob")]
    assert [job.status for job in jobs] == [201, 201]
    assert jobs[0].json()["id"] != jobs[1].json()["id"]
    kept = await ask(server, "bob", "POST", "/jobs", {**JOB, "on_conflict": "keep"})
    assert kept.json()["id"] == jobs[1].json()["id"]


async def test_an_identity_cannot_be_continued_by_a_name(tmp_path: Path) -> None:
    """Nor is an identity what the application calls itself: fires through Redis are each user's."""
    app = FastAPI()
    with ValkeyServer(tmp_path) as valkey:
        purgatory = Purgatory(signals=RedisSignals(valkey.url))
        install(app, purgatory, authorize=authorize)
        with serve(app, purgatory) as server:
            seqs = []
            for user, name in (("acme", "alice/pay-1"), ("acme/alice", "pay-1"), ("acme/", "/1")):
                key = {"Idempotency-Key": name}
                fired = await ask(server, user, "POST", "/keys/k", {"value": user}, **key)
                seqs.append(fired.json()["seq"])
            assert seqs == [1, 2, 3]


async def test_a_fire_needs_no_thread() -> None:
    """The threads of FastAPI may all be with those who wait for it."""
    app, purgatory = FastAPI(), Purgatory()
    install(app, purgatory, authorize=authorize)

    @app.get("/wait")
    def wait(park: ParkDep) -> str:
        return anyio.from_thread.run(partial(park, "k", timeout=PATIENCE_S)).status

    anyio.to_thread.current_default_thread_limiter().total_tokens = 1
    async with (
        purgatory,
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://a") as client,
    ):
        waiting = asyncio.create_task(client.get("/wait"))
        await until(lambda: purgatory.statistics().parked == 1)
        fire = client.post("/purgatory/keys/k", json={"value": 1}, headers={"User": "alice"})
        fired = await asyncio.wait_for(fire, PATIENCE_S / 2)
        assert fired.status_code == 201
        assert (await waiting).json() == "fired"


@cases("identity", [7, UUID(int=7), b"alice", ["alice"], False])
async def test_an_identity_that_is_no_string_is_not_dropped(identity: object) -> None:
    """Clients would share what is each one's own, and nobody would know."""

    async def returning() -> Any:
        return identity

    app, purgatory = FastAPI(), Purgatory()
    install(app, purgatory, authorize=returning)
    async with (
        purgatory,
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://a") as client,
    ):
        with pytest.raises(
            TypeError, match=rf"{type(identity).__name__}.*str\(user\.id\).*HTTPException\(403\)"
        ):
            await client.post("/purgatory/keys/k", json={"value": 1})


async def test_a_prefix_of_the_application_may_have_parameters() -> None:
    """What is decided is the endpoint that serves the request, whatever its path looks like."""
    seen: list[Any] = []

    async def deny(accesses: AccessesDep) -> None:
        seen.append(accesses)
        raise HTTPException(403)

    app, purgatory = FastAPI(), Purgatory(jobs=MemoryJobStore())
    install(app, purgatory, prefix="/t/{tenant}/purgatory", authorize=deny)
    # As a batch, each line of it would be invalid, and without keys.
    body = b'{\n"handler": "note", "delay": 900,\n"keys": ["alice"]}'
    head = f"Host: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with serve(app, purgatory) as running:
        async with await Connection.open(running.address) as connection:
            for tenant in ("a", ":batch%3F", "%23", "keys"):
                line = f"POST /t/{tenant}/purgatory/jobs HTTP/1.1\r\n"
                connection.write(f"{line}{head}".encode() + body)
                assert (await connection.reply()).status == 403
    assert {access.key for access in seen[0]} == {None, "alice"}
    assert all(found == seen[0] for found in seen)
