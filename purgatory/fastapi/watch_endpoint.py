"""The endpoints that park."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Message, Receive, Scope, Send

from purgatory.errors import PurgatoryError
from purgatory.fastapi.answer import Answer
from purgatory.fastapi.drive import drive, send_answer
from purgatory.fastapi.endpoint import raw_request, read_body
from purgatory.fastapi.problems import Problem, problem_of
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
        self._room = room
        self._parse = parse
        self._tail = tail
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, now or later."""
        sender = _Sender(send)
        raw = raw_request(scope, self._tail)
        room = self._room
        try:
            if self._max_body:
                raw.body = await read_body(scope, receive, self._max_body)
            request = self._parse(raw, room.purgatory, room.settings)
            parked = room.park(request, sender.respond)
        except Problem as problem:
            await send_answer(send, problem.answer(room.prefix, raw.path))
            return
        except PurgatoryError as exc:
            await send_answer(send, problem_of(exc).answer(room.prefix, raw.path))
            return
        if sender.answer is not None:
            await send_answer(send, sender.answer)
            return
        sender.is_parked = True
        try:
            while not is_disconnect(await receive()):
                # The request's own body, of a GET: of no interest.
                pass
        finally:
            parked.leave()
            room.forget(parked)


class _Sender:
    """Keeps an answer that comes at once for the request's own task; sends a later one itself."""

    __slots__ = ("_send", "answer", "is_parked")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.answer: Answer | None = None
        self.is_parked = False

    def respond(self, answer: Answer) -> None:
        if self.is_parked:
            drive(send_answer(self._send, answer))
        else:
            self.answer = answer


def is_disconnect(message: Message) -> bool:
    """Return True iff `message` says that the client has gone or has its answer."""
    return bool(message["type"] == "http.disconnect")
