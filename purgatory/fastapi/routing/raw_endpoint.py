"""Endpoints as raw ASGI applications, which the direct path of our servers can also call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from typing import Any, Protocol

from starlette.types import Receive, Scope, Send

from purgatory.fastapi.http.eager_send import Resumed, finish_in_task, send_or_give_up
from purgatory.fastapi.http.raw_request import AsgiRequest, RawRequest
from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.routing.admission import AdmittingEndpoint


class Responder(Protocol):
    """What a response to the current request is given to."""

    @property
    def address(self) -> str | None:
        """The address of the other end; None if unknown."""
        ...

    @property
    def context(self) -> Context:
        """The context (`contextvars`) of which each request gets a copy."""
        ...

    def respond(self, response: RawResponse) -> None:
        """Send the response to the current request."""
        ...


class Connection(Responder, Protocol):
    """Serves one request at a time, whose response may be a stream."""

    def begin_stream(
        self, head: RawResponse, chunked_head: RawResponse, on_readable: Callable[[], object]
    ) -> None:
        """Send the head of a response whose body comes in pieces, in chunks if that is possible.

        `on_readable` is called when the client has read what was sent, after `is_write_paused`.
        """
        ...

    @property
    def is_write_paused(self) -> bool:
        """True while the client has not read what was sent: do not send more."""
        ...

    def send_piece(self, piece: bytes) -> None:
        """Send a part of the body, which is not empty."""
        ...

    def end_stream(self, piece: bytes) -> None:
        """Send the last part of the body, which is not empty: the response is complete."""
        ...

    def give_up(self) -> None:
        """Disconnect."""
        ...


Handler = Callable[[RawRequest], Coroutine[Any, Any, RawResponse]]


class RawEndpoint(AdmittingEndpoint):
    """One endpoint: reads a bounded body, calls its handler, and sends the response or a problem.

    FastAPI's own handling of a request takes ten times as long, and these checks are stricter: a
    parameter that is unknown or given twice is refused.
    """

    needs_client = False
    """True iff `begin` reads the address of the client."""
    needs_scope = False
    """True iff it is only for ASGI requests, and `begin` is not called."""

    def __init__(self, handler: Handler, *args: Any, **options: Any) -> None:
        """Have `handler` respond to what an AdmittingEndpoint of the other arguments admits."""
        super().__init__(*args, **options)
        self._handler = handler

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Return the awaitable that responds to one request."""
        return self.handle(scope, receive, send, path_parameter(scope, self.path_parameter))

    async def handle(self, scope: Scope, receive: Receive, send: Send, path_value: str) -> None:
        """Respond to one request whose path ends with `path_value`."""
        raw = AsgiRequest(scope, path_value)
        # Before the body: a client without a token need not send one.
        response = self.admit(raw)
        if response is None and self.max_body:
            response = await self.read_body(raw, scope, receive)
        if response is None:
            try:
                response = await self._handler(raw)
            except Exception as exc:
                response = self.error_response(raw, exc)
        await send_or_give_up(send, response, self.context.unread)

    def begin(self, raw: RawRequest, connection: Connection) -> None:
        """Respond on `connection` to an admitted request with its body, as a rule at once."""
        handling = self._handler(raw)
        try:
            pending = handling.send(None)
        except StopIteration as finished:
            response: RawResponse = finished.value
        except Exception as exc:
            response = self.error_response(raw, exc)
        else:
            _ = finish_in_task(self._respond_later(Resumed(handling, pending), raw, connection))
            return
        connection.respond(response)

    async def _respond_later(
        self, handling: Awaitable[RawResponse], raw: RawRequest, connection: Connection
    ) -> None:
        try:
            response = await handling
        except Exception as exc:
            response = self.error_response(raw, exc)
        connection.respond(response)


def path_parameter(scope: Scope, name: str) -> str:
    """Return a path parameter; empty for an empty name."""
    return str(scope["path_params"][name]) if name else ""
