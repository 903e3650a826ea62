"""The endpoints that park."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.types import Receive, Scope, Send

from purgatory.fastapi.asgi_wait import AsgiWait
from purgatory.fastapi.direct_wait import Connection, DirectWait
from purgatory.fastapi.drive import send_answer
from purgatory.fastapi.endpoint import path_parameter, problem_from, read_body
from purgatory.fastapi.foreign_pages import refuse_foreign_pages
from purgatory.fastapi.problems import Problem
from purgatory.fastapi.raw_request import RawRequest
from purgatory.fastapi.scope_request import ScopeRequest
from purgatory.fastapi.waiting_room import WaitingRoom
from purgatory.fastapi.watch_request import WaitSettings, WatchRequest
from purgatory.purgatory import Purgatory

Parser = Callable[[RawRequest, Purgatory, WaitSettings], WatchRequest]


class WatchEndpoint:
    """Parks a request: as an `AsgiWait`, or where there is no ASGI as a `DirectWait`."""

    def __init__(
        self, room: WaitingRoom, parse: Parser, *, tail: str = "", max_body: int = 0
    ) -> None:
        """Park what `parse` makes of a request in `room`."""
        self.room = room
        self.tail = tail
        self.max_body = max_body
        self._parse = parse

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Return what answers one request, now or later."""
        return self.handle(scope, receive, send, path_parameter(scope, self.tail))

    # Not async where there is no body: all of this would stay on the frame of a parked request.
    def handle(self, scope: Scope, receive: Receive, send: Send, tail: str) -> Awaitable[None]:
        """The same for a router that knows the path's `tail`."""
        raw = ScopeRequest(scope, tail)
        if self.max_body:
            return self._read_and_answer(raw, scope, receive, send)
        return self._answer(raw, receive, send)

    async def _read_and_answer(
        self, raw: RawRequest, scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            # Before the body: who has no token need not send one.
            self.room.authenticate(raw)
            raw.body = await read_body(scope, receive, self.max_body)
        except Problem as problem:
            await send_answer(send, problem.answer(self.room.prefix, raw.path))
            return
        answering = self._answer(raw, receive, send)
        del raw, scope
        await answering

    def _answer(self, raw: RawRequest, receive: Receive, send: Send) -> Awaitable[None]:
        room = self.room
        try:
            wait = AsgiWait(self._request(raw), room, receive, send)
            room.park(wait, room.client(raw))
        except Exception as exc:
            return send_answer(send, problem_from(exc).answer(room.prefix, raw.path))
        return wait.begin()

    def begin(self, raw: RawRequest, connection: Connection) -> DirectWait | None:
        """Answer a request whose body is here on its `connection`, now or later.

        Returns the wait where there is one: call `leave` when the client goes.
        """
        room = self.room
        try:
            wait = DirectWait(self._request(raw), room, connection)
            room.park(wait, room.client(raw))
        except Exception as exc:
            connection.respond(problem_from(exc).answer(room.prefix, raw.path))
            return None
        return wait

    def _request(self, raw: RawRequest) -> WatchRequest:
        """Return what a request asks for; raise Problem."""
        room = self.room
        raw.permit = room.authenticate(raw)
        if self.max_body:
            refuse_foreign_pages(raw)
        return self._parse(raw, room.purgatory, room.settings)
