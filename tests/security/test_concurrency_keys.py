"""Concurrency keys over HTTP: what a client sees of its own, and what it cannot do to others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI

from purgatory import Purgatory
from purgatory.fastapi import BearerTokens, install
from purgatory.jobs import JobContext, MemoryJobStore
from tests.acceptance.client import Connection, Reply
from tests.acceptance.thread_server import ThreadServer, serve
from tests.patience import PATIENCE_S

VICTIM = "token-of-the-victim-who-adds-jobs"
LOW = "token-of-an-attacker-who-adds-jobs"
ALL = "token-of-an-operator-who-may-do-all"
TOKENS = f"""
{VICTIM} defer
{LOW} defer
{ALL} *
"""
JOB: dict[str, Any] = {"handler": "charge", "delay": 0.0, "concurrency_key": "customer:7"}


@pytest.fixture
def server() -> Iterator[ThreadServer]:
    app, purgatory = FastAPI(), Purgatory(jobs=MemoryJobStore())
    is_over = threading.Event()

    @purgatory.handler("charge", http=True, max_running_per_key=1)
    def charge(job: JobContext) -> None:
        assert is_over.wait(PATIENCE_S)

    install(app, purgatory, authorize=BearerTokens.from_text(TOKENS))
    with serve(app, purgatory) as running:
        yield running
        is_over.set()


async def ask(server: ThreadServer, token: str, method: str, path: str, body: Any = None) -> Reply:
    async with await Connection.open(server.address) as connection:
        headers = {"Authorization": f"Bearer {token}"}
        return await connection.request(method, f"/purgatory{path}", body, headers)


async def until_states(server: ThreadServer, states: list[tuple[str, Any]]) -> None:
    """Return once each job is in its state, and blocked by that."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if [(job_id, await state_of(server, job_id)) for job_id, _ in states] == states:
                return
            await asyncio.sleep(0.01)


async def state_of(server: ThreadServer, job_id: str) -> tuple[str, str | None]:
    job = (await ask(server, LOW, "GET", f"/jobs/{job_id}")).json()
    assert job["concurrency_key"] == "customer:7"
    return job["state"], job["blocked_by"]


async def test_nobody_holds_up_the_jobs_of_another(server: ThreadServer) -> None:
    """Equal keys of two tokens are two keys; a job says why it waits."""
    ids = [(await ask(server, LOW, "POST", "/jobs", JOB)).json()["id"]]
    running, blocked = ("running", None), ("waiting", "max_running_per_key")
    await until_states(server, [(ids[0], running)])
    ids.append((await ask(server, LOW, "POST", "/jobs", JOB)).json()["id"])
    batch = await ask(server, VICTIM, "POST", "/jobs:batch", JOB)
    assert batch.status == 200, batch.body
    ids.append(batch.json()["id"])
    await until_states(server, list(zip(ids, [running, blocked, running], strict=True)))
    listed = (await ask(server, ALL, "GET", "/jobs?state=waiting")).json()["jobs"]
    assert [(job["id"], job["blocked_by"]) for job in listed] == [(ids[1], blocked[1])]
    # Those of every client, for who may list jobs at all.
    query = "/jobs?concurrency_key=customer:7&limit=2"
    page = (await ask(server, ALL, "GET", query)).json()
    rest = (await ask(server, ALL, "GET", page["next"].removeprefix("/purgatory"))).json()
    assert {job["id"] for job in (*page["jobs"], *rest["jobs"])} == set(ids)
    assert (await ask(server, LOW, "GET", query)).status == 403
    only = (await ask(server, ALL, "GET", f"{query}&blocked=true")).json()
    assert ([job["id"] for job in only["jobs"]], only["next"]) == ([ids[1]], None)
    assert (await ask(server, ALL, "GET", "/jobs?blocked=yes")).status == 422
    counts = (await ask(server, ALL, "GET", "/statistics")).json()["jobs"]["states"]
    assert (counts["waiting"], counts["running"], counts["blocked"]) == (1, 2, 1)


@pytest.mark.parametrize("key", ["", "a\n", "k" * 257, 7, "~0123456789abcdef~customer:7"])
async def test_a_key_that_is_none_is_refused(server: ThreadServer, key: Any) -> None:
    """By its pointer; and so is one that would be that of another client."""
    reply = await ask(server, ALL, "POST", "/jobs", {**JOB, "concurrency_key": key})
    assert reply.status in (400, 422) and "concurrency_key" in str(reply.json())
