"""The context (`contextvars`) of requests: middleware and log filters see their own request's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from itertools import product

import pytest
from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from purgatory import DelayedOperation, Purgatory
from purgatory.fastapi import (
    ALLOW_ANYONE,
    DelayedResponse,
    LongPollKey,
    LongPollMiddleware,
    ParkDep,
    install,
)
from purgatory.operations import OperationEvent
from purgatory.outcome import Status
from tests.acceptance.client import Connection, Crowd, ask
from tests.acceptance.thread_server import KINDS, ServerKind, ThreadServer, each_kind

ID: ContextVar[str] = ContextVar("ID", default="nobody")
ALL_KINDS = (
    *KINDS,
    ServerKind("httptools", "asyncio"),
    ServerKind("purgatory.uvicorn:ParkingProtocol", "asyncio"),
)


class RequestIds:
    """Sets the id of each request, and adds it to the response, as middleware of logs does."""

    def __init__(self, app: ASGIApp, *, sends: bool) -> None:
        self._app = app
        self._sends = sends

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["state"]["begun_as"] = ID.get()
        own = dict(scope["headers"]).get(b"x-id")
        if own is not None:
            ID.set(own.decode())

        async def reply(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message["headers"], (b"x-reply-id", ID.get().encode())]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, reply if self._sends else send)


class Paid(DelayedOperation):
    """Completes when its key has fired; then, or at its end, it responds."""

    def __init__(self, respond: Callable[[Response], object], response: Response) -> None:
        super().__init__(50_000)
        self._respond = respond
        self._response = response
        self.is_due = False

    def try_complete(self) -> bool:
        return self.is_due and self.force_complete()

    def on_complete(self) -> None:
        self._respond(self._response)

    def on_cancellation(self) -> None:
        self._respond(self._response)


class Application:
    """An application with each way to wait for "k"."""

    def __init__(self) -> None:
        self.app = app = FastAPI()
        self.ended_as: list[str] = []
        self.version = "1"
        self.parked: list[Paid] = []
        self.purgatory = purgatory = Purgatory(listeners=[self._note])
        install(app, purgatory, authorize=ALLOW_ANYONE)

        @app.get("/park")
        async def park(park: ParkDep) -> str:
            return (await park("k", timeout=50)).status

        @app.get("/delayed")
        async def delayed() -> DelayedResponse:
            return DelayedResponse(lambda respond: self._park(respond, JSONResponse({})))

        @app.get("/streamed")
        async def streamed() -> DelayedResponse:
            async def pieces() -> AsyncIterator[bytes]:
                yield ID.get().encode()

            return DelayedResponse(lambda respond: self._park(respond, StreamingResponse(pieces())))

        @app.get("/tagged", dependencies=[Depends(LongPollKey("k"))])
        async def tagged() -> Response:
            return Response(self.version, headers={"ETag": f'"{self.version}"'})

        @app.get("/begun")
        async def begun(request: Request) -> str:
            return str(request.state.begun_as)

        @app.post("/fire")
        async def fire(name: str) -> None:
            ID.set(name)
            self.version = "2"
            for operation in self.parked:
                operation.is_due = True
            await purgatory.fire("k")

    def begin_anew(self) -> None:
        """Forget what was parked before."""
        self.version = "1"
        self.parked.clear()
        self.ended_as.clear()

    def _park(self, respond: Callable[[Response], object], response: Response) -> Paid:
        operation = Paid(respond, response)
        self.parked.append(operation)
        self.purgatory.park_operation(operation, ["k"])
        return operation

    def _note(self, event: OperationEvent) -> None:
        if event.status is not Status.PENDING:
            self.ended_as.append(ID.get())


WATCH = "/purgatory/watch/k?wait=50"
WAYS: Mapping[str, Mapping[str, str]] = {
    WATCH: {},
    "/park": {},
    "/delayed": {},
    "/streamed": {},
    "/tagged": {"If-None-Match": '"1"', "Prefer": "wait=50"},
}


async def fire(server: ThreadServer) -> None:
    assert (await ask(server.address, "POST", "/fire?name=B")).status == 200


async def drop(server: ThreadServer) -> None:
    async with await Connection.open(server.address) as connection:
        await connection.request("DELETE", "/purgatory/keys/k", headers={"X-Id": "B"})


async def drain(server: ThreadServer) -> None:
    async def drained() -> None:
        ID.set("B")
        await server.purgatory.drain()

    await server.call(drained)


kind = each_kind(*ALL_KINDS)


@pytest.fixture
def application() -> Application:
    """An application without middleware."""
    return Application()


@pytest.fixture
def purgatory(application: Application) -> Purgatory:
    """Its purgatory."""
    return application.purgatory


@pytest.fixture
def app(application: Application) -> FastAPI:
    """What is served of it."""
    return application.app


@pytest.fixture(params=[True, False], ids=["that sends", "that does not send"])
def middleware(application: Application, request: pytest.FixtureRequest) -> None:
    """Middleware around the application."""
    application.app.add_middleware(LongPollMiddleware, purgatory=application.purgatory)
    application.app.add_middleware(RequestIds, sends=request.param)


@pytest.mark.usefixtures("middleware")
async def test_a_response_is_sent_and_the_next_request_begins_in_contexts_of_their_own(
    application: Application, server: ThreadServer, kind: ServerKind
) -> None:
    """Whichever request ends the wait of another, and however."""
    for way, complete in product(WAYS, (fire, drop)):
        application.begin_anew()
        async with await Connection.open(server.address) as connection:
            connection.send("GET", way, headers={**WAYS[way], "X-Id": "A"})
            await server.until_parked(1)
            connection.send("GET", "/begun")
            await complete(server)
            reply = await connection.reply()
            assert reply.headers.get("x-reply-id", "A") == "A", way
            assert application.ended_as == ["A"]
            if way == "/streamed":
                assert reply.body == b"A"
            begun_as = (await connection.reply()).json()
            # Where the request's own task sends, uvicorn's protocols go on in its context.
            is_by_uvicorn = way in ("/park", "/tagged") and "ParkingProtocol" not in kind.http
            assert begun_as == "nobody" or (is_by_uvicorn and begun_as == "A")


@pytest.mark.usefixtures("middleware")
async def test_so_is_the_response_of_a_wait_that_is_drained(
    application: Application, server: ThreadServer
) -> None:
    """By whoever drains, and whichever way it waits."""
    async with Crowd(server.address, len(WAYS)) as members:
        for number, (member, way) in enumerate(zip(members, WAYS, strict=True)):
            member.send("GET", way, headers={**WAYS[way], "X-Id": f"A{number}"})
        await server.until_parked(len(WAYS))
        await drain(server)
        for number, (member, way) in enumerate(zip(members, WAYS, strict=True)):
            reply = await member.reply()
            assert reply.headers.get("x-reply-id", f"A{number}") == f"A{number}"
            if way == "/streamed":
                assert reply.body == f"A{number}".encode()
    assert sorted(application.ended_as) == [f"A{number}" for number in range(len(WAYS))]


async def test_a_wait_without_middleware_ends_in_no_requests_context(
    application: Application, server: ThreadServer
) -> None:
    """Nor does the one that is pipelined behind it, which is read when that has its response."""
    async with await Connection.open(server.address) as connection:
        connection.send("GET", WATCH)
        await server.until_parked(1)
        connection.send("GET", WATCH)
        await fire(server)
        assert (await connection.reply()).json()["reason"] == "fired"
        await server.until_parked(1)
        await fire(server)
        assert (await connection.reply()).json()["reason"] == "fired"
    assert application.ended_as == ["nobody", "nobody"]
