"""The endpoints that park."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from purgatory.fastapi.answer import Answer
from purgatory.fastapi.drive import drive, send_answer
from purgatory.fastapi.endpoint import path_parameter, problem_from, raw_request, read_body
from purgatory.fastapi.foreign_pages import refuse_foreign_pages
from purgatory.fastapi.parked_request import ParkedRequest, Respond
from purgatory.fastapi.problems import Problem
from purgatory.fastapi.raw_request import RawRequest
from purgatory.fastapi.waiting_room import WaitingRoom
from purgatory.fastapi.watch_request import WaitSettings, WatchRequest
from purgatory.purgatory import Purgatory

Parser = Callable[[RawRequest, Purgatory, WaitSettings], WatchRequest]


class WatchEndpoint:
    """Parks a request inside `receive()`, so that one wait is one task and no future of ours.

    `receive()` returns when the client leaves, and also once our own answer is complete. So whoever
    completes the operation sends the answer at once, from outside; and this task, which was only
    waiting, finds that there is nothing left to do.
    """

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
        raw = raw_request(scope, tail)
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
        sender = _Sender(send)
        parked = self.begin(raw, sender)
        if sender.answer is not None:
            return send_answer(send, sender.answer)
        assert parked is not None
        sender.task = asyncio.current_task()
        return _wait(parked, sender, receive)

    def begin(self, raw: RawRequest, respond: Respond) -> ParkedRequest | None:
        """Answer a request whose body is here through `respond`, now or later.

        Returns the wait where there is one: call `leave` when the client goes.
        """
        room = self.room
        try:
            raw.permit = room.authenticate(raw)
            if self.max_body:
                refuse_foreign_pages(raw)
            request = self._parse(raw, room.purgatory, room.settings)
            return room.park(request, respond, room.client(raw))
        except Exception as exc:
            respond(problem_from(exc).answer(room.prefix, raw.path))
            return None


async def _wait(parked: ParkedRequest, sender: _Sender, receive: Receive) -> None:
    """Wait until the request is answered, or its client has gone."""
    try:
        while not is_disconnect(await receive()):
            # The request's own body, of a GET: of no interest.
            pass
    except asyncio.CancelledError:
        if not sender.has_failed:
            raise
    finally:
        parked.leave()


class _Sender:
    """Keeps an answer that comes at once for the request's own task; sends a later one itself."""

    __slots__ = ("_send", "answer", "has_failed", "task")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.answer: Answer | None = None
        self.has_failed = False
        # The request's own, once it is parked.
        self.task: asyncio.Task[Any] | None = None

    # Called as it is: a bound method would be one more object for each parked request.
    def __call__(self, answer: Answer) -> None:
        if self.task is None:
            self.answer = answer
        else:
            drive(send_answer(self._send, answer), self._on_failure)

    def _on_failure(self) -> None:
        # With no answer complete, nothing else would ever end the request's task: uvicorn does not
        # tell it of a client that left with another request pipelined behind this one.
        self.has_failed = True
        if self.task is not None:
            self.task.cancel()


def is_disconnect(message: Message) -> bool:
    """Return True iff `message` says that the client has gone or has its answer."""
    return bool(message["type"] == "http.disconnect")
