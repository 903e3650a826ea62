"""Two workers that share signals through a real Valkey, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import httpx_sse
import pytest
from fastapi import FastAPI

from purgatory import Purgatory
from purgatory.fastapi import ParkDep, install
from purgatory.signals.redis import RedisSignals
from tests.acceptance.application import create_app
from tests.acceptance.thread_server import KINDS, serve
from tests.patience import PATIENCE_S
from tests.valkey_server import ValkeyServer

NAME = "1b671a64-40d5-491e-99b0-da01ff1f3341"
WAIT_ID = {"Wait-Id": NAME}


@pytest.fixture(params=[KINDS[0], KINDS[2]], ids=str)
def workers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[httpx.Client]]:
    with ExitStack() as stack:
        valkey = stack.enter_context(ValkeyServer(tmp_path))
        clients = []
        for _ in range(2):
            purgatory = Purgatory(signals=RedisSignals(valkey.url, shards=2))
            server = stack.enter_context(serve(create_app(purgatory), purgatory, request.param))
            url = "http://{}:{}".format(*server.address)
            clients.append(stack.enter_context(httpx.Client(base_url=url, timeout=PATIENCE_S)))
        yield clients


def watched(client: httpx.Client, key: str, **parameters: Any) -> dict[str, Any]:
    response = client.get(f"/purgatory/watch/{key}", params=parameters)
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


def test_a_repeat_in_another_worker_fires_nothing(workers: list[httpx.Client]) -> None:
    headers = {"Idempotency-Key": "once"}
    first, repeat = (
        client.post("/purgatory/keys/key", json={"value": 1}, headers=headers) for client in workers
    )
    assert (first.status_code, repeat.status_code) == (201, 201)
    assert repeat.json() == first.json()
    for number in range(-1, 4):
        # In both logs.
        key = "key" if number < 0 else f"other:{number}"
        other = workers[1].post(f"/purgatory/keys/{key}", json={"value": 2}, headers=headers)
        assert (other.status_code, other.json()["type"].rpartition("/")[2]) == (
            422,
            "idempotency-conflict",
        )


@pytest.mark.parametrize("count", [5, 150, 1_000])
def test_a_batch_that_is_repeated_in_another_worker_fires_nothing(
    workers: list[httpx.Client], count: int
) -> None:
    """Large ones are sent by themselves, and their responses stored compressed."""
    batch = [{"key": f"key:{number}", "value": number} for number in range(count)]
    headers = {"Idempotency-Key": "batch"}
    results = [client.post("/purgatory/keys", json=batch, headers=headers) for client in workers]
    assert results[0].status_code == 201
    assert results[0].json() == results[1].json()
    for number in range(5):
        assert len(watched(workers[0], f"key:{number}", cursor="0", wait=0)["signals"]) == 1


def test_a_fire_in_a_draining_worker_is_as_good_as_any(tmp_path: Path) -> None:
    with ExitStack() as stack:
        valkey = stack.enter_context(ValkeyServer(tmp_path))
        servers, clients = [], []
        for _ in range(2):
            purgatory = Purgatory(signals=RedisSignals(valkey.url))
            servers.append(stack.enter_context(serve(create_app(purgatory), purgatory, KINDS[0])))
            url = "http://{}:{}".format(*servers[-1].address)
            clients.append(stack.enter_context(httpx.Client(base_url=url, timeout=PATIENCE_S)))
        draining, other = clients
        since = other.get("/purgatory/keys/key").json()["cursor"]
        asyncio.run(servers[0].call(servers[0].purgatory.drain))
        for body in ({"value": 1}, {"value": 2}):
            assert draining.post("/purgatory/keys/key", json=body).status_code == 201
        batch = [{"key": "key", "value": 3}]
        assert draining.post("/purgatory/keys", json=batch).status_code == 201
        seen = watched(other, "key", cursor=since, min=3, wait=PATIENCE_S)["signals"]
        assert [signal["value"] for signal in seen] == [1, 2, 3]


def test_a_wait_id_is_of_all_workers(workers: list[httpx.Client]) -> None:
    one, two = workers
    parameters = {"wait": 30}
    with ThreadPoolExecutor() as pool:
        waits = []
        for client in workers:
            waits.append(
                pool.submit(client.get, "/purgatory/watch/key", params=parameters, headers=WAIT_ID)
            )
            until_parked(client, waits[-1])
        older, newer = waits
        assert older.result(PATIENCE_S).status_code == 409
        assert one.get("/purgatory/keys/key").json()["waiting"] == {"here": 0, "everywhere": 1}
        assert one.delete(f"/purgatory/waits/{NAME}").status_code == 204
        assert newer.result(PATIENCE_S).json()["reason"] == "cancelled"
        assert two.delete(f"/purgatory/waits/{NAME}").status_code == 404


def until_parked(client: httpx.Client, wait: Future[httpx.Response]) -> None:
    while not client.get("/purgatory/keys/key").json()["waiting"]["here"]:
        assert not wait.done(), wait.result().text


def test_a_stream_resumes_in_any_worker(workers: list[httpx.Client]) -> None:
    """Each signal of keys in several logs once, in the order of its key, by one short cursor."""
    keys = [f"key:{number}" for number in range(5)]
    target = "/purgatory/watch?" + "&".join(f"key={key}" for key in keys)
    seen: dict[str, list[int]] = {key: [] for key in keys}
    cursor = ""
    for number in range(20):
        for count, key in enumerate(keys):
            workers[count % 2].post(f"/purgatory/keys/{key}", json={"value": number})
    for turn in range(25):
        reader = workers[turn % 2]
        headers = {"Last-Event-ID": cursor} if cursor else {}
        with httpx_sse.connect_sse(reader, "GET", f"{target}&cursor=0", headers=headers) as stream:
            for _, event in zip(range(4), stream.iter_sse(), strict=False):
                seen[event.json()["key"]].append(event.json()["value"])
                cursor = event.id
                assert len(cursor) < 50
    assert seen == {key: list(range(20)) for key in keys}


@pytest.mark.parametrize(("cursor", "status"), [(None, 503), ("now", 410)])
async def test_an_endpoint_whose_signals_are_lost(
    tmp_path: Path, cursor: str | None, status: int
) -> None:
    """Without a cursor there is none that has expired: the same request is made again."""
    with ValkeyServer(tmp_path) as valkey:
        purgatory = Purgatory(signals=RedisSignals(valkey.url))
        app = FastAPI()
        install(app, purgatory)

        @app.get("/wait")
        async def wait(park: ParkDep) -> None:
            await park("key", timeout=PATIENCE_S, cursor=park.cursor("key") if cursor else None)

        transport = httpx.ASGITransport(app=app)
        async with (
            purgatory,
            httpx.AsyncClient(transport=transport, base_url="http://test") as client,
        ):
            await purgatory.fire("other")
            task = asyncio.create_task(client.get("/wait"))
            while not purgatory.waiting("key"):  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0)
            with valkey.client() as server:
                server.flushall()
            response = await task
        assert response.status_code == status
        assert ("Retry-After" in response.headers) == (status == 503)


async def test_a_cursor_of_an_emptied_server(tmp_path: Path) -> None:
    """A process that has not read the log anew says so: the server itself takes writes."""
    with ValkeyServer(tmp_path) as valkey:
        quick, slow = (Purgatory(signals=RedisSignals(valkey.url)) for _ in range(2))
        app = FastAPI()
        install(app, slow)
        transport = httpx.ASGITransport(app=app)
        async with (
            quick,
            slow,
            httpx.AsyncClient(transport=transport, base_url="http://test") as client,
        ):
            # As if it had been suspended: nothing reaches it.
            (follower,) = slow.shared_signals._followers  # type: ignore[union-attr]
            await follower.stop()
            with valkey.client() as server:
                server.flushall()
            (leader,) = quick.shared_signals._followers  # type: ignore[union-attr]
            await leader.catch_up()
            cursor = (await quick.fire("key")).cursor
            response = await client.get(f"/purgatory/watch/key?wait=0&cursor={cursor}")
            assert response.status_code == 503
            assert "has not read the signals up to that cursor" in response.json()["detail"]
            await follower.catch_up()
            response = await client.get(f"/purgatory/watch/key?wait=0&cursor={cursor}")
            assert (response.status_code, response.json()["signals"]) == (200, [])
