"""The routes of waits, and the endpoints that park requests: as ASGI, or without it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path
from starlette.types import Receive, Send

from purgatory.fastapi.http.bounds import UnreadResponses
from purgatory.fastapi.http.eager_send import (
    PIECE,
    send_from_outside,
    send_or_give_up,
    send_response,
)
from purgatory.fastapi.http.json_bodies import JsonBody
from purgatory.fastapi.http.raw_request import Access, Action, AsgiRequest, RawRequest
from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.routing.plain_endpoint import AdmittedRequest, Answer, add_handler
from purgatory.fastapi.routing.raw_endpoint import (
    AdmittingEndpoint,
    Connection,
    Responder,
)
from purgatory.fastapi.routing.raw_route import add_route, response_header
from purgatory.fastapi.watch.interruptible_receive import LEFT, DisconnectListener
from purgatory.fastapi.watch.parked_requests import ParkedRequest, WaitRegistry
from purgatory.fastapi.watch.request_parser import (
    WAIT_ID_PATTERN,
    WatchParser,
    WatchRequest,
    owned_wait_id,
    parse_wait_id,
    watch_keys,
)
from purgatory.fastapi.watch.schemas import WatchBody, WatchManyResponse


class AsgiWait(DisconnectListener, ParkedRequest):
    """Parks a request inside `receive()`, so that a wait is one task and no future.

    `receive()` returns when the client leaves, and also once the response is complete. So the
    response is sent from outside, at once, when the operation ends, and the request's task, which
    only waited, finds nothing left to do.
    """

    __slots__ = ("_address", "_cancelling", "_early", "_receive", "_send", "_sending", "_task")

    def __init__(
        self,
        request: WatchRequest,
        registry: WaitRegistry,
        receive: Receive,
        send: Send,
        address: str = "",
    ) -> None:
        """Prepare to respond to `request` through `send`, to the client at `address`."""
        ParkedRequest.__init__(self, request, registry)
        self._address = address
        self._receive = receive
        self._send = send
        self._task = None
        # A response before the task waits, which is for the task to send.
        self._early: RawResponse | None = None
        # The task that sends the response, where there has to be one.
        self._sending: asyncio.Task[None] | None = None

    @property
    def address(self) -> str | None:
        """The client's address as the server says it; None if it does not."""
        return self._address or None

    def begin(self) -> Awaitable[Any]:
        """Return what completes the request, for its own task; call it once it is parked."""
        if self._early is not None:
            return send_or_give_up(self._send, self._early, self._unread)
        return self.until_disconnect(self)

    def respond(self, response: RawResponse) -> None:
        """Send a response from outside the task, once that waits."""
        if self._task is None:
            self._early = response
        else:
            # If it fails nothing else ends the task: uvicorn does not report a client that left
            # with another request pipelined behind this one.
            sending = send_response(self._send, response, self._unread)
            needs_task = len(response.body) > PIECE
            self._sending = send_from_outside(
                self._send, sending, self.interrupt, needs_task=needs_task
            )

    def _rest(self, was_pending: object) -> Awaitable[Any] | None:
        return send_or_give_up(self._send, LEFT, self._unread) if was_pending else self._sending

    @property
    def _unread(self) -> UnreadResponses:
        return self._registration.registry.context.unread


class DirectWait(ParkedRequest):
    """Responds on the connection of its request."""

    # The connection itself: a bound method of it would be one more object for each request.
    __slots__ = ("_connection",)

    def __init__(
        self, request: WatchRequest, registry: WaitRegistry, connection: Responder
    ) -> None:
        """Prepare to respond to `request` on `connection`."""
        ParkedRequest.__init__(self, request, registry)
        self._connection = connection
        # Shared by all of them: a copy for each would be a twentieth of its memory.
        self._parked_in = connection.context

    @property
    def address(self) -> str | None:
        """The address at the other end of the connection."""
        return self._connection.address

    def respond(self, response: RawResponse) -> None:
        """Send the response."""
        self._connection.respond(response)


Parse = Callable[[RawRequest], WatchRequest]


class WatchEndpoint(AdmittingEndpoint):
    """Parks requests: as an `AsgiWait` or, on a connection without ASGI, as a `DirectWait`."""

    def __init__(
        self,
        registry: WaitRegistry,
        method: str,
        function: Callable[..., Any],
        parse: Parse,
        body: JsonBody[WatchBody] | None = None,
    ) -> None:
        """Park in `registry` what `function` declares, once `parse` has checked it."""
        super().__init__(
            registry.context,
            method,
            function,
            Access(Action.WAIT),
            body=body,
            # Without a body, `parse` checks all of it, and its cache has most of the parameters.
            admits_whole_head=body is not None,
        )
        self.needs_client = registry.clients.is_active
        self.needs_scope = registry.clients.needs_scope
        self.registry = registry
        self._parse = parse

    # Not async without a body: all of this would stay on the frame of a parked request.
    def serve(self, raw: AsgiRequest, receive: Receive, send: Send) -> Awaitable[None]:
        """Return the response to one request, now or later, to be awaited."""
        # Before the body: a client without permission need not send one.
        refused = self.admit(raw)
        if refused is not None:
            return send_response(send, refused)
        if self.max_body:
            return self._read_and_respond(raw, receive, send)
        return self._respond(raw, receive, send)

    async def _read_and_respond(self, raw: AsgiRequest, receive: Receive, send: Send) -> None:
        refused = await self.read_body(raw, receive)
        if refused is not None:
            await send_response(send, refused)
            return
        responding = self._respond(raw, receive, send)
        del raw
        await responding

    def _respond(self, raw: AsgiRequest, receive: Receive, send: Send) -> Awaitable[None]:
        registry = self.registry
        try:
            wait = AsgiWait(self._parse(raw), registry, receive, send, raw.client)
            registry.park(wait, registry.client(raw))
        except Exception as exc:
            return send_response(send, self.error_response(raw, exc))
        return wait.begin()

    def begin(self, raw: RawRequest, connection: Connection) -> ParkedRequest | None:
        """Respond on `connection` to an admitted request with its body, now or later.

        Returns its wait, None if it was refused: call `abandon` when the client leaves.
        """
        registry = self.registry
        try:
            wait = DirectWait(self._parse(raw), registry, connection)
            registry.park(wait, registry.client(raw))
        except Exception as exc:
            connection.respond(self.error_response(raw, exc))
            return None
        return wait


ETAG: Final = response_header("ETag", "The cursor, in quotes: for If-None-Match of the next wait.")
PREFERENCE_APPLIED: Final = response_header(
    "Preference-Applied", "The applied preferences, or the maximum for a longer wait."
)
PURGATORY_CURSOR: Final = response_header("Purgatory-Cursor", "The cursor for the next wait.")
PROBLEMS: Final = (
    "bad-cursor",
    "superseded",
    "cursor-expired",
    "too-many-waits",
    "full",
    "draining",
    "not-open",
    "signals-unavailable",
)
_EndedWaitId = Annotated[
    str, Path(description="A Wait-Id.", json_schema_extra={"pattern": WAIT_ID_PATTERN})
]


def add_watch_routes(router: APIRouter, registry: WaitRegistry) -> None:
    """Add the routes of waits to `router`."""
    parser = WatchParser(registry.purgatory, registry.settings)
    add_route(
        router,
        "/watch",
        watch_keys,
        WatchEndpoint(registry, "POST", watch_keys, parser.parse_several, parser.body),
        response_model=WatchManyResponse,
        response_description="How the wait ended, with an entry for each key that fired.",
        responses={
            200: {"headers": PREFERENCE_APPLIED},
            204: {
                "description": "Nothing fired, with `Prefer: return=minimal`.",
                "headers": PREFERENCE_APPLIED | PURGATORY_CURSOR,
            },
        },
        problems=("bad-json", *PROBLEMS, "body-too-large", "unsupported-media-type"),
    )

    async def cancel_wait(request: AdmittedRequest, id: _EndedWaitId) -> Answer:  # noqa: A002 - as OpenAPI has it
        """End a wait.

        End the wait of that Wait-Id: its response has the reason "cancelled".
        """
        await registry.cancel(owned_wait_id(request.raw, parse_wait_id(id)))
        return Answer(RawResponse.empty(204))

    add_handler(
        router,
        registry.context,
        "DELETE /waits/{id}",
        cancel_wait,
        Access(Action.WAIT),
        status_code=204,
        response_description="The wait has ended, and its request has a response.",
        problems=("unknown-wait", "signals-unavailable"),
    )
