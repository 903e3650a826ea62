"""One limit on what a client has parked, whatever door it came through."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest
from fastapi import FastAPI, Header, Response
from starlette.requests import HTTPConnection
from starlette.responses import StreamingResponse

from purgatory import Purgatory
from purgatory.fastapi import (
    ALLOW_ANYONE,
    DelayedResponse,
    FollowDep,
    LongPollMiddleware,
    ParkDep,
    WaitSettings,
    install,
)
from purgatory.jobs import JobContext, MemoryJobStore
from purgatory.operations import DelayedOperation
from tests.acceptance.client import Connection, Reply
from tests.acceptance.thread_server import KINDS_BY_DAY, ServerKind, ThreadServer, serve
from tests.patience import PATIENCE_S, until

DOORS = ["watch", "events", "job", "park", "follow", "delayed", "poll"]
MAXIMUM = len(DOORS)


async def authorize(user: Annotated[str, Header()]) -> str:
    return user


def client_of(request: HTTPConnection) -> str | None:
    return request.headers.get("user")


class _Delayed(DelayedOperation):
    """Responds when it ends."""

    def __init__(self, delay_ms: int, respond: Any) -> None:
        super().__init__(delay_ms)
        self._respond = respond

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        self._respond(Response(status_code=200))


def _application(purgatory: Purgatory, authorize: Any) -> FastAPI:
    app = FastAPI()
    settings = WaitSettings(max_parked_per_client=MAXIMUM)
    app.add_middleware(LongPollMiddleware, purgatory=purgatory)
    install(app, purgatory, authorize=authorize, settings=settings, client=client_of)

    @purgatory.handler("note", http=True)
    async def note(job: JobContext) -> None:
        """Do nothing."""

    @app.get("/park")
    async def park(park: ParkDep) -> str:
        return (await park("k", timeout=PATIENCE_S)).status

    @app.get("/follow")
    async def follow(follow: FollowDep) -> StreamingResponse:
        async def events() -> AsyncIterator[str]:
            async for signal in follow("k"):
                yield str(signal.value)

        return StreamingResponse(events())

    @app.get("/delayed")
    async def delayed() -> Response:
        def begin(respond: Any) -> DelayedOperation:
            operation = _Delayed(purgatory.delay_ms(PATIENCE_S), respond)
            purgatory.park_operation(operation, ["k"])
            return operation

        return DelayedResponse(begin)

    @app.get("/poll")
    async def poll(response: Response) -> str:
        response.headers.update({"ETag": '"1"', "Long-Poll-Key": "k"})
        return "as it was"

    return app


# Whether `authorize` names clients, too, or only `client=`.
NAMING = pytest.mark.parametrize("authorize", [authorize, ALLOW_ANYONE], ids=["both", "client"])


@pytest.fixture(params=KINDS_BY_DAY, ids=str)
def server(request: pytest.FixtureRequest, authorize: Any) -> Iterator[ThreadServer]:
    kind: ServerKind = request.param
    purgatory = Purgatory(jobs=MemoryJobStore())
    with serve(_application(purgatory, authorize), purgatory, kind) as running:
        yield running


class Client:
    """One client, by its identity, with a connection for each request."""

    def __init__(self, server: ThreadServer, name: str) -> None:
        self._server = server
        self._headers = {"User": name}
        self.connections: list[Connection] = []
        self._job: Reply | None = None

    async def send(self, door: str) -> Connection:
        """Begin a wait through a door."""
        headers = dict(self._headers)
        target = f"/{door}"
        if door == "watch":
            target = f"/purgatory/watch/k?wait={PATIENCE_S}"
        elif door == "events":
            target, headers["Accept"] = "/purgatory/watch/k", "text/event-stream"
        elif door in ("job", "poll"):
            headers |= {"Prefer": "wait=50", "If-None-Match": '"1"'}
        if door == "job":
            job = await self.job()
            target, headers["If-None-Match"] = job.headers["location"], job.headers["etag"]
        connection = await Connection.open(self._server.address)
        self.connections.append(connection)
        connection.send("GET", target, headers=headers)
        return connection

    async def job(self) -> Reply:
        """Return the response to the addition of a job, which is made once."""
        if self._job is None:
            body = {"handler": "note", "delay": 900.0}
            async with await Connection.open(self._server.address) as connection:
                self._job = await connection.request(
                    "POST", "/purgatory/jobs", body, {**self._headers}
                )
        return self._job

    async def refused(self, door: str) -> None:
        """A wait through this door is one too many."""
        reply = await (await self.send(door)).reply()
        assert b'"limit":"max_parked_per_client"' in reply.body, door
        # A stream of events says it by an event.
        assert door == "events" or (reply.status, "retry-after" in reply.headers) == (429, True)

    async def leave(self) -> None:
        for connection in self.connections:
            await connection.close()


@NAMING
async def test_one_limit_for_all_doors(server: ThreadServer) -> None:
    """A client that has parked once through each may park through none; another one may."""
    purgatory = server.purgatory
    clients = [Client(server, name) for name in ("alice", "127.0.0.1")]
    for number, client in enumerate(clients):
        for door in DOORS:
            await client.send(door)
        await until(lambda n=number: purgatory.parked == (n + 1) * MAXIMUM)  # type: ignore[misc]
    for door in DOORS:
        await clients[0].refused(door)
    assert purgatory.statistics().refused == {"max_parked_per_client": MAXIMUM}
    for client in clients:
        await client.leave()
    await until(lambda: purgatory.parked == 0)
    again = Client(server, "alice")
    for door in DOORS:
        await again.send(door)
    await until(lambda: purgatory.parked == MAXIMUM)
    await again.leave()
    await until(lambda: purgatory.parked == 0)
    limit = server.app.state.purgatory_clients
    await until(lambda: not limit._counts)
