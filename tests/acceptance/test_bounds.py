"""Bounds on what is parked and sent: one that is reached is said, counted, and harms nobody.

Over real connections, on each kind of server.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytest
import uvicorn
from fastapi import Depends, FastAPI, Response

from purgatory import Limits, Purgatory
from purgatory.fastapi import (
    ALLOW_ANYONE,
    LongPollKey,
    LongPollMiddleware,
    ParkDep,
    WaitSettings,
    install,
)
from tests.acceptance.client import ClosedByServer, Connection, Reply
from tests.acceptance.thread_server import ServerKind, ThreadServer, serve, serve_endpoints

PARKING = "purgatory.uvicorn:ParkingProtocol"


def _serving(
    kind: ServerKind, limits: Limits | None = None, per_client: int = 100_000, **options: Any
) -> AbstractContextManager[ThreadServer]:
    settings = WaitSettings(max_parked_per_client=per_client)
    return serve_endpoints(kind, Purgatory(limits=limits), settings=settings, **options)


async def _park(
    server: ThreadServer, key: str, headers: dict[str, str] | None = None
) -> Connection:
    before = server.purgatory.parked
    connection = await Connection.open(server.address)
    connection.send("GET", f"/purgatory/watch/{key}?wait=30", headers=headers)
    await server.until_parked(before + 1)
    return connection


async def _refused(
    server: ThreadServer, key: str, headers: dict[str, str] | None = None
) -> dict[str, Any]:
    async with await Connection.open(server.address) as connection:
        target = f"/purgatory/watch/{key}?wait=30"
        reply = await connection.request("GET", target, headers=headers)
        assert 1 <= int(reply.headers["retry-after"]) <= 5
        document: dict[str, Any] = reply.json()
        assert document["status"] == reply.status
        # The connection is still good, and what does not park is not bounded.
        asked = await connection.request("GET", f"/purgatory/watch/{key}?wait=0", headers=headers)
        assert asked.status == 200
        return document


async def _statistics(server: ThreadServer, headers: dict[str, str] | None = None) -> Any:
    async with await Connection.open(server.address) as connection:
        return (await connection.request("GET", "/purgatory/statistics", headers=headers)).json()


async def _fire(server: ThreadServer, *connections: Connection, key: str) -> list[Reply]:
    await server.call(server.purgatory.fire, key)
    found = [await connection.reply() for connection in connections]
    for connection in connections:
        await connection.close()
    return found


async def test_parked_in_all(kind: ServerKind) -> None:
    """503; those who are parked are answered, and then there is room again."""
    with _serving(kind, Limits(max_parked=2)) as server:
        parked = [await _park(server, "a"), await _park(server, "a")]
        for _ in range(3):
            refused = await _refused(server, "b")
            assert (refused["status"], refused["limit"]) == (503, "max_parked")
            assert refused["maximum"] == 2
            assert refused["detail"] == "too many parked requests (limit 2)"
        statistics = await _statistics(server)
        assert statistics["refused"] == {"max_parked": 3} and statistics["parked"] == 2
        assert [reply.status for reply in await _fire(server, *parked, key="a")] == [200, 200]
        await _fire(server, await _park(server, "b"), key="b")


async def test_parked_in_an_endpoint_of_ones_own(kind: ServerKind) -> None:
    """What ParkDep and the middleware are refused is in the statistics, too."""
    purgatory, app = Purgatory(limits=Limits(max_parked=1)), FastAPI()
    install(app, purgatory, authorize=ALLOW_ANYONE)
    app.add_middleware(LongPollMiddleware, purgatory=purgatory)

    @app.get("/parked")
    async def parked(park: ParkDep) -> str:
        return (await park("k", timeout=20)).status

    @app.get("/polled", dependencies=[Depends(LongPollKey("k"))])
    async def polled(response: Response) -> None:
        response.headers["ETag"] = '"1"'

    conditions = {"If-None-Match": '"1"', "Prefer": "wait=50"}
    with serve(app, purgatory, kind) as server:
        first = await _park(server, "k")
        async with await Connection.open(server.address) as connection:
            assert (await connection.get("/parked")).status == 503
            assert (await connection.request("GET", "/polled", headers=conditions)).status == 503
        assert (await _statistics(server))["refused"] == {"max_parked": 2}
        await _fire(server, first, key="k")


@pytest.mark.parametrize("http", ["httptools", "h11", PARKING], ids=["httptools", "h11", "parking"])
@pytest.mark.parametrize("trusted", ["127.0.0.1", "192.0.2.1"])
async def test_the_address_behind_a_proxy_counts_only_where_that_is_trusted(
    http: str, trusted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X-Forwarded-For of anyone else is what the client says of itself."""
    # What `--forwarded-allow-ips` and the service's trusted_proxies set.
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", trusted)
    assert uvicorn.Config(FastAPI(), log_config=None).forwarded_allow_ips == trusted
    with _serving(ServerKind(http, "uvloop"), per_client=1) as server:
        first = await _park(server, "a", {"X-Forwarded-For": "198.51.100.1"})
        same = {"X-Forwarded-For": "203.0.113.9, 198.51.100.1"}
        assert (await _refused(server, "b", same))["status"] == 429
        other = {"X-Forwarded-For": "198.51.100.1, 198.51.100.2"}
        if trusted == "127.0.0.1":
            second = await _park(server, "a", other)
            await _fire(server, first, second, key="a")
        else:
            assert (await _refused(server, "b", other))["status"] == 429
            await _fire(server, first, key="a")


@pytest.mark.parametrize("http", ["h11", PARKING], ids=["h11", "parking"])
@pytest.mark.parametrize("path", ["/purgatory/watch/a", "/elsewhere"])
async def test_the_head_of_a_request_is_bounded(http: str, path: str) -> None:
    """One that never ends is refused and cut off; the rest goes on.

    uvicorn's own httptools protocol has no such bound: a proxy in front has one, as a rule.
    """
    with _serving(ServerKind(http, "asyncio")) as server:
        parked = await _park(server, "a")
        connection = await Connection.open(server.address)
        connection.write(f"GET {path}?wait=0 HTTP/1.1\r\nHost: h\r\nX-Long: ".encode())
        sent = 0
        try:
            while sent < 4_000_000:
                connection.write(b"x" * 10_000)
                sent += 10_000
                await connection.writer.drain()
        except OSError:
            pass
        try:
            assert (await connection.reply()).status in (400, 431)
        except (ClosedByServer, OSError):
            # Reset: it was still sending.
            pass
        await connection.close()
        # Buffers of the kernel hold a part of what was sent.
        assert [reply.status for reply in await _fire(server, parked, key="a")] == [200]


async def test_a_large_body_behind_a_head_is_no_head(kind: ServerKind) -> None:
    """In pieces of any size, again and again on one connection."""
    with _serving(kind) as server:
        async with await Connection.open(server.address) as connection:
            for size in (60_000, 200_000, 900_000):
                batch = [{"key": "k", "value": "x" * 1000}] * (size // 1100)
                reply = await connection.request("POST", "/purgatory/keys", batch)
                assert reply.status == 201
                other = await connection.request("POST", "/elsewhere", batch)
                assert other.status == 404
