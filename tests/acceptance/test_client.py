"""The clients of the library against a real server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from fastapi import FastAPI

from purgatory import CursorExpiredError, Limits, Purgatory
from purgatory.client import AsyncClient, Client, RefusedError
from purgatory.fastapi import ALLOW_ANYONE, BearerTokens, install
from purgatory.jobs import JobNotFoundError, MemoryJobStore
from tests.acceptance.thread_server import KINDS, ThreadServer, serve
from tests.patience import PATIENCE_S


@pytest.fixture
def server() -> Iterator[ThreadServer]:
    """A server with jobs, and a short history."""
    app = FastAPI()
    purgatory = Purgatory(jobs=MemoryJobStore(), limits=Limits(max_signals_per_key=5))
    purgatory.handled_elsewhere(["note"], http=True)
    install(app, purgatory, authorize=ALLOW_ANYONE)
    with serve(app, purgatory, KINDS[2]) as running:
        yield running


async def test_waiting_and_firing(server: ThreadServer) -> None:
    """One key or several, from a cursor or from now; nothing is a result that is false."""
    async with AsyncClient(server.url) as client:
        assert not await client.wait("a", timeout=0)
        waiting = asyncio.create_task(client.wait("a", "b", timeout=PATIENCE_S))
        await server.until_parked(1)
        fired = await client.fire("b", {"n": 1})
        assert fired.completed == 1
        result = await waiting
        [signal] = result.signals
        assert result and result.reason == "fired"
        assert (signal.key, signal.seq, signal.value) == ("b", 1, {"n": 1})
        assert abs(signal.at - datetime.now(UTC)) < timedelta(minutes=1)
        await client.fire("a", 2)
        again = await client.wait("a", "b", timeout=0, cursor=result.cursors)
        assert [each.value for each in again.signals] == [2]
        assert await client.fire("a", 3, idempotency_key="once") == await client.fire(
            "a", 3, idempotency_key="once"
        )


@pytest.mark.parametrize("key", [".", "..", "...", "%2e", "./.."])
async def test_keys_of_dots(server: ThreadServer, key: str) -> None:
    """Whatever HTTP makes of dots in a path, the key is fired, once for an Idempotency-Key."""
    async with AsyncClient(server.url) as client:
        first = await client.fire(key, {"n": 1}, idempotency_key="once")
        assert await client.fire(key, {"n": 1}, idempotency_key="once") == first
        found = await client.wait(key, timeout=0, cursor="0")
        assert [(each.key, each.value, each.cursor) for each in found.signals] == [
            (key, {"n": 1}, first.cursor)
        ]


async def test_following(server: ThreadServer) -> None:
    """Signals as they come; leaving the loop ends the stream; a cursor resumes it."""
    async with AsyncClient(server.url) as client:
        signals = client.follow("a", "b", cursor="0")
        for number in range(3):
            await client.fire("ab"[number % 2], number)
            found = await anext(signals)
            assert found.value == number
        await signals.aclose()
        await server.until_parked(0)
        await client.fire("b", 3)
        resumed = client.follow("a", "b", cursor=found.cursor)
        assert (await anext(resumed)).value == 3
        await server.call(server.purgatory.cancel, "b")
        assert [signal async for signal in resumed] == []
        first = (await client.fire("a")).cursor
        for _ in range(6):
            await client.fire("a")
        with pytest.raises(CursorExpiredError) as caught:
            await anext(client.follow("a", cursor=first))
        late = client.follow("a", cursor=caught.value.earliest)
        assert [(await anext(late)).seq for _ in range(5)] == [5, 6, 7, 8, 9]
        await late.aclose()


def test_in_a_thread(server: ThreadServer) -> None:
    """The same without an event loop."""
    with Client(server.url) as client:
        fired = client.fire("k", 1)
        assert client.wait("k", timeout=0, cursor="0").signals[0].cursor == fired.cursor
        timer = threading.Timer(0.05, client.fire, ["k", 2])
        timer.start()
        found = client.follow("k", cursor="0")
        assert [next(found).value for _ in range(2)] == [1, 2]
        found.close()
        timer.join()
        job = client.defer("note", {"a": 1}, delay=900, keys=["k"], on_fire="cancel")
        assert [each.id for each in client.jobs(state="waiting")] == [job.id]
        assert client.fire("k").jobs == 1
        assert job.wait(PATIENCE_S).state == "cancelled"


async def test_jobs(server: ThreadServer) -> None:
    """Deferred once, read, awaited, cancelled; one that is unknown has its own error."""
    async with AsyncClient(server.url) as client:
        jobs = [await client.defer("note", delay=900, idempotency_key="once") for _ in range(2)]
        assert jobs[0].id == jobs[1].id
        at = datetime.now(UTC) + timedelta(hours=1)
        for _ in range(3):
            await client.defer("note", at=at)
        assert len([job async for job in client.jobs(handler="note")]) == 4
        assert (await jobs[0].get()).state == "waiting"
        with pytest.raises(TimeoutError):
            await jobs[0].wait(0.05)
        waiting = asyncio.create_task(jobs[0].wait())
        await server.until_parked(1)
        assert (await jobs[0].cancel()).state == "cancelled"
        assert (await waiting).is_final
        with pytest.raises(JobNotFoundError):
            await client.job("0" * 32).get()
        with pytest.raises(RefusedError) as refused:
            await client.defer("unknown", delay=1)
        assert refused.value.slug == "unknown-handler"
        with pytest.raises(ValueError, match="zone"):
            await client.defer("note", at=datetime(2030, 1, 1))


async def test_tokens() -> None:
    """A token is sent with each request; without the right one, the stream is refused."""
    app, purgatory = FastAPI(), Purgatory()
    tokens = BearerTokens([("a-token-of-sixteen-or-more", "wait:* fire:*")])
    install(app, purgatory, authorize=tokens)
    with serve(app, purgatory, KINDS[2]) as server:
        async with AsyncClient(server.url, token="a-token-of-sixteen-or-more") as client:
            await client.fire("k", 1)
            assert (await anext(client.follow("k", cursor="0"))).value == 1
        async with AsyncClient(server.url) as client:
            with pytest.raises(RefusedError, match=r".") as refused:
                await anext(client.follow("k"))
            assert refused.value.status == 401
