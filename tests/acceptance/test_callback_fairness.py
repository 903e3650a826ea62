"""Callbacks of one client do not hold up those of others, nor the application's own handlers."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from purgatory import Purgatory
from purgatory.fastapi import BearerTokens, install
from purgatory.jobs import JobContext, JobHandle, JobState, MemoryJobStore, WorkerSettings
from purgatory.jobs.callbacks import CALLBACK, Callback
from purgatory.jobs.callbacks.webhook import Webhook
from purgatory.jobs.worker import JobStatistics
from tests.acceptance.callback_receiver import CallbackReceiver, receiving
from tests.patience import PATIENCE_S, until

LOW, VICTIM = "token-of-an-attacker", "token-of-the-victim"


class DrippingServer:
    """Begins a response to each request, and does not end it."""

    def __init__(self) -> None:
        self.requests = 0
        self.may_end = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.requests += 1
        writer.write(b"HTTP/1.1 200 OK\r\nX: ")
        await self.may_end.wait()
        writer.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self, "127.0.0.1", 0, backlog=1_000)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            self.may_end.set()
            server.close()


class SlowLookUps:
    """Looks names up, those of `silent` hosts not before they may end."""

    def __init__(self) -> None:
        self.silent: list[str] = []
        self.may_end = threading.Event()

    def __call__(self, host: str, port: int, **options: Any) -> list[Any]:
        if host.startswith("silent"):
            self.silent.append(host)
            self.may_end.wait(PATIENCE_S)
            raise OSError("no answer")
        return list(socket.getaddrinfo(host, port, **options))


@pytest.fixture
def receiver() -> Iterator[CallbackReceiver]:
    with receiving() as running:
        yield running


@pytest.fixture
def look_ups() -> Iterator[SlowLookUps]:
    look_ups = SlowLookUps()
    yield look_ups
    look_ups.may_end.set()


async def add(purgatory: Purgatory, owner: str | None, *urls: str) -> list[JobHandle]:
    """Add callbacks that are due now, as `owner` would over HTTP."""
    specs = [
        purgatory.jobs.spec(CALLBACK, Callback.of(url), delay=0, max_attempts=1) for url in urls
    ]
    await purgatory.jobs.add([replace(spec, owner=owner) for spec in specs])
    return [purgatory.job(spec.id) for spec in specs]


async def add_over_http(client: httpx.AsyncClient, token: str, *urls: str) -> list[str]:
    """Add callbacks that are due now; return the ids of their jobs."""
    lines = [
        json.dumps({"callback": {"url": url}, "delay": 0.0, "max_attempts": 1}) for url in urls
    ]
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/x-ndjson"}
    added = await client.post("/purgatory/jobs:batch", content="\n".join(lines), headers=headers)
    return [json.loads(line)["id"] for line in added.text.splitlines()]


def jobs_of(purgatory: Purgatory) -> JobStatistics:
    statistics = purgatory.statistics().jobs
    assert statistics is not None
    return statistics


async def test_a_server_that_drips_holds_up_nobody_else(receiver: CallbackReceiver) -> None:
    """600 callbacks to it leave slots to others, to other hosts, and to handlers of one's own."""
    settings, dripping, app = WorkerSettings(grace_ms=0), DrippingServer(), FastAPI()
    purgatory = Purgatory(jobs=MemoryJobStore(), job_settings=settings)
    purgatory.handler(CALLBACK, http=True)(Webhook(timeout=PATIENCE_S, allow_private=True))
    install(app, purgatory, authorize=BearerTokens([(LOW, "defer"), (VICTIM, "defer")]))
    transport = httpx.ASGITransport(app)

    @purgatory.handler("note")
    async def note(job: JobContext) -> None:
        """Do nothing."""

    async with (
        dripping.running() as port,
        purgatory,
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        urls = [f"http://127.0.0.1:{port}/{n}" for n in range(600)]
        slow = [purgatory.job(job) for job in await add_over_http(client, LOW, *urls)]
        await until(lambda: dripping.requests == 50)
        [victims] = await add_over_http(client, VICTIM, f"{receiver.url}/of/victim")
        job = purgatory.job(victims)
        assert (await job.wait(PATIENCE_S)).state is JobState.DONE
        assert receiver.next().path == "/of/victim"
        # At another host than the one that drips, which has all the slots that it may have.
        [other] = await add_over_http(client, LOW, f"http://localhost:{receiver.port}/of/low")
        assert (await purgatory.job(other).wait(PATIENCE_S)).state is JobState.DONE
        # Without an owner, and not a callback.
        handle = await purgatory.defer("note", delay=0)
        assert (await handle.wait(PATIENCE_S)).state is JobState.DONE
        await until(lambda: jobs_of(purgatory).running == 50)
        assert (jobs_of(purgatory).waiting, jobs_of(purgatory).failed) == (550, 0)
        # What waits for a slot was not started.
        attempts = [(await job.get()).attempt for job in slow]
        assert (attempts.count(1), attempts.count(0), dripping.requests) == (50, 550, 50)


async def test_silent_names_hold_up_nobody_else(
    receiver: CallbackReceiver, look_ups: SlowLookUps
) -> None:
    """A callback that may fail once only is sent, though 300 names are looked up for ever."""
    purgatory = Purgatory(jobs=MemoryJobStore())
    webhook = Webhook(timeout=PATIENCE_S, allow_private=True, look_up=look_ups)
    purgatory.handler(CALLBACK)(webhook)
    async with purgatory:
        await add(purgatory, LOW, *[f"http://silent{n}.example/" for n in range(300)])
        await until(lambda: len(look_ups.silent) == 100)
        [job] = await add(purgatory, VICTIM, f"http://localhost:{receiver.port}/")
        assert (await job.wait(PATIENCE_S)).state is JobState.DONE
        assert len(look_ups.silent) == 100
        look_ups.may_end.set()


async def test_a_look_up_keeps_its_slot_for_as_long_as_it_takes(look_ups: SlowLookUps) -> None:
    """Its callback has failed long before, and others begin with a slot and a thread in hand."""
    purgatory = Purgatory(jobs=MemoryJobStore())
    purgatory.handler(CALLBACK)(Webhook(timeout=0.1, max_running=4, look_up=look_ups))
    async with purgatory:
        jobs = await add(purgatory, LOW, *[f"http://silent{n}.example/" for n in range(6)])
        await until(lambda: jobs_of(purgatory).failed == 2)
        await until(lambda: jobs_of(purgatory).running == 0)
        assert (len(look_ups.silent), jobs_of(purgatory).waiting) == (2, 4)
        assert sorted([(await job.get()).attempt for job in jobs]) == [0, 0, 0, 0, 1, 1]
        look_ups.may_end.set()
        await until(lambda: jobs_of(purgatory).failed == 6)
