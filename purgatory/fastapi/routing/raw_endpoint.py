"""Endpoints as raw ASGI, inside FastAPI's routes, so that they stand in its OpenAPI."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from purgatory.errors import PurgatoryError
from purgatory.fastapi.access.content_type import check_content
from purgatory.fastapi.http.asgi_request import AsgiRequest
from purgatory.fastapi.http.eager_send import Resumed, finish_in_task, send_response
from purgatory.fastapi.http.problems import Problem, problem_of_error
from purgatory.fastapi.http.raw_request import RawRequest, body_too_large
from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.routing.connection import Connection
from purgatory.fastapi.routing.dependency_route import guarded
from purgatory.fastapi.routing.endpoint_context import EndpointContext

logger = logging.getLogger("purgatory.fastapi")

Handler = Callable[[RawRequest], Coroutine[Any, Any, RawResponse]]

# So much of a body that is refused is read all the same, and dropped: a connection that is closed
# on unread data is reset, and a client that is still sending loses the answer (RFC 9112, 9.6).
MAX_DISCARDED = 16 * 1024 * 1024


class RawEndpoint:
    """One endpoint: reads a bounded body, asks its handler, and sends the answer or a problem.

    FastAPI's own handling of a request takes ten times as long, and these checks are stricter: a
    parameter that is unknown or given twice is refused.
    """

    needs_client = False
    """True iff `begin` reads the address of the client."""

    def __init__(
        self,
        context: EndpointContext,
        handler: Handler,
        *,
        tail: str = "",
        max_body: int = 0,
        is_public: bool = False,
        checks_content: bool = False,
    ) -> None:
        """Answer with `handler`; `tail` names the path parameter that it works on.

        `checks_content` is for a POST that takes no body; one that takes a body does so anyway.
        """
        self._is_public = is_public
        self._checks_content = checks_content or max_body > 0
        self.context = context
        self.tail = tail
        self.max_body = max_body
        self._handler = handler

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Return what answers one request."""
        return self.handle(scope, receive, send, path_parameter(scope, self.tail))

    async def handle(self, scope: Scope, receive: Receive, send: Send, tail: str) -> None:
        """The same for a router that knows the path's `tail`."""
        raw = AsgiRequest(scope, tail)
        try:
            # Before the body: who has no token need not send one.
            self._admit(raw)
            if self.max_body:
                raw.body = await read_body(scope, receive, self.max_body)
        except Problem as problem:
            answer = problem.response(self.context.prefix, raw.path)
        else:
            try:
                answer = await self._handle(raw)
            except Exception as exc:
                answer = self._refusal(raw, exc)
        await send_response(send, answer)

    def begin(self, raw: RawRequest, connection: Connection) -> None:
        """Answer a request whose body is here on its `connection`, as a rule at once."""
        try:
            self._admit(raw)
        except Exception as exc:
            connection.respond(self._refusal(raw, exc))
            return
        handling = self._handle(raw)
        try:
            pending = handling.send(None)
        except StopIteration as finished:
            answer: RawResponse = finished.value
        except Exception as exc:
            answer = self._refusal(raw, exc)
        else:
            finish_in_task(self._answer_later(Resumed(handling, pending), raw, connection))
            return
        connection.respond(answer)

    async def _answer_later(
        self, handling: Awaitable[RawResponse], raw: RawRequest, connection: Connection
    ) -> None:
        try:
            answer = await handling
        except Exception as exc:
            answer = self._refusal(raw, exc)
        connection.respond(answer)

    def _admit(self, raw: RawRequest) -> None:
        if not self._is_public:
            raw.permit = self.context.authenticate(raw)
        if self._checks_content:
            check_content(raw)

    def _handle(self, raw: RawRequest) -> Coroutine[Any, Any, RawResponse]:
        return self._handler(raw)

    def _refusal(self, raw: RawRequest, error: Exception) -> RawResponse:
        return problem_of_exception(error).response(self.context.prefix, raw.path)


class TaskEndpoint(RawEndpoint):
    """An endpoint whose handler is in a task from its first step on, as `asyncio.timeout` needs.

    Without one a handler begins in whatever reads from the connection, and gets a task only where
    it waits: no matter for what is in memory, but stores of jobs are others' code.
    """

    async def _handle(self, raw: RawRequest) -> RawResponse:
        await asyncio.sleep(0)
        return await self._handler(raw)


class RawRoute(APIRoute):
    """A route whose endpoint's signature is for OpenAPI, and whose requests go to `raw`.

    The endpoint function carries `raw` and `refuse_method` as attributes, because FastAPI may make
    a route again from its endpoint when a router is included.
    """

    # {id of an inclusion of the router: the inclusion, and `raw` behind its dependencies}
    _guarded: dict[int, tuple[Any, ASGIApp]] | None = None

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request to the raw endpoint; refuse a method that the address does not take.

        Dependencies of the application, or with which the router was included, come first.
        """
        if scope["method"] not in (self.methods or ()):
            await self.endpoint.refuse_method(scope, receive, send)  # type: ignore[attr-defined] # see above
            return
        # How the router was included; None for a router that serves by itself.
        included = scope.get("fastapi", {}).get("effective_route_context") or self
        if included.dependencies:
            raw = self._behind_dependencies(included)
        else:
            raw = self.endpoint.raw  # type: ignore[attr-defined] # see above
        await raw(scope, receive, send)

    def _behind_dependencies(self, included: Any) -> ASGIApp:
        if self._guarded is None:
            self._guarded = {}
        if id(included) not in self._guarded:
            app = guarded(
                self.endpoint.raw,  # type: ignore[attr-defined] # see above
                included.path,
                included.dependencies,
                included.dependency_overrides_provider,
            )
            self._guarded[id(included)] = (included, app)
        return self._guarded[id(included)][1]


def method_not_allowed(prefix: str, allowed: list[str]) -> ASGIApp:
    """Return what answers 405 for an address that takes the methods in `allowed`."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        methods = ", ".join(allowed)
        problem = Problem(
            "method-not-allowed",
            f"{scope['path']} does not take {scope['method']}: it takes {methods}",
            headers={"Allow": methods},
        )
        await send_response(send, problem.response(prefix, scope["path"]))

    return refuse


def problem_of_exception(error: Exception) -> Problem:
    """Return the refusal that an exception of an endpoint amounts to; log what is no refusal."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, PurgatoryError):
        problem = problem_of_error(error)
    else:
        problem = Problem("internal-error", "the request failed for a reason that is in the log")
    if problem.status == 500:
        logger.error("a request failed", exc_info=error, extra={"action": "request-failed"})
    return problem


def path_parameter(scope: Scope, name: str) -> str:
    """Return one of the path parameters; none for no name."""
    return str(scope["path_params"][name]) if name else ""


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Return the whole body; raise Problem beyond `limit` bytes, of which nothing is kept."""
    announced, expects_continue = _announced(scope)
    if announced == 0:
        # Nothing is to be waited for.
        return b""
    if announced > limit and (announced > MAX_DISCARDED or expects_continue):
        raise body_too_large(limit)
    body = bytearray()
    received = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Problem("bad-json", "the client left before the body was complete")
        chunk = message.get("body", b"")
        received += len(chunk)
        if received <= limit:
            body += chunk
        elif received > MAX_DISCARDED:
            raise body_too_large(limit)
        if not message.get("more_body", False):
            break
    if received > limit:
        raise body_too_large(limit)
    return bytes(body)


def _announced(scope: Scope) -> tuple[int, bool]:
    """Return the length of the body as announced, or -1, and whether the client asks to send it."""
    # The last of each name: servers check that there are no two of these.
    headers: dict[bytes, bytes] = dict(scope["headers"])
    expects_continue = headers.get(b"expect", b"").lower() == b"100-continue"
    length = headers.get(b"content-length")
    # Where there is a Transfer-Encoding, it is that which counts.
    if length is None or b"transfer-encoding" in headers:
        return -1, expects_continue
    # One of more digits than this is too large for anyone.
    is_number = length.isdigit() and len(length) < 16
    return int(length) if is_number else sys.maxsize, expects_continue
