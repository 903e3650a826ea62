"""Endpoints as raw ASGI applications, which the direct path of our servers can also call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from starlette.types import Receive, Scope, Send

from purgatory.fastapi.access.content_type import check_content
from purgatory.fastapi.http.asgi_request import AsgiRequest
from purgatory.fastapi.http.eager_send import Resumed, finish_in_task, send_response
from purgatory.fastapi.http.problem_mapping import problem_of_exception
from purgatory.fastapi.http.problems import Problem
from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.http.request_body import read_body
from purgatory.fastapi.routing.connection import Connection
from purgatory.fastapi.routing.endpoint_context import EndpointContext
from purgatory.fastapi.routing.endpoint_spec import EndpointSpec

Handler = Callable[[RawRequest], Coroutine[Any, Any, RawResponse]]


class RawEndpoint:
    """One endpoint: reads a bounded body, calls its handler, and sends the response or a problem.

    FastAPI's own handling of a request takes ten times as long, and these checks are stricter: a
    parameter that is unknown or given twice is refused.
    """

    needs_client = False
    """True iff `begin` reads the address of the client."""

    def __init__(self, context: EndpointContext, spec: EndpointSpec, handler: Handler) -> None:
        """Serve what `spec` declares with `handler`."""
        self.context = context
        self.tail = spec.tail
        self.max_body = spec.max_body
        self._is_public = spec.action is None
        self._takes_content = spec.takes_content
        self._handler = handler

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Return the awaitable that responds to one request."""
        return self.handle(scope, receive, send, path_parameter(scope, self.tail))

    async def handle(self, scope: Scope, receive: Receive, send: Send, tail: str) -> None:
        """Respond to one request whose path ends with `tail`."""
        raw = AsgiRequest(scope, tail)
        try:
            # Before the body: a client without a token need not send one.
            self._admit(raw)
            if self.max_body:
                raw.body = await read_body(scope, receive, self.max_body)
        except Problem as problem:
            response = problem.response(self.context.prefix, raw.path)
        else:
            try:
                response = await self._handle(raw)
            except Exception as exc:
                response = self._error_response(raw, exc)
        await send_response(send, response)

    def begin(self, raw: RawRequest, connection: Connection) -> None:
        """Respond on `connection` to a request whose body has been read, as a rule at once."""
        try:
            self._admit(raw)
        except Exception as exc:
            connection.respond(self._error_response(raw, exc))
            return
        handling = self._handle(raw)
        try:
            pending = handling.send(None)
        except StopIteration as finished:
            response: RawResponse = finished.value
        except Exception as exc:
            response = self._error_response(raw, exc)
        else:
            finish_in_task(self._respond_later(Resumed(handling, pending), raw, connection))
            return
        connection.respond(response)

    async def _respond_later(
        self, handling: Awaitable[RawResponse], raw: RawRequest, connection: Connection
    ) -> None:
        try:
            response = await handling
        except Exception as exc:
            response = self._error_response(raw, exc)
        connection.respond(response)

    def _admit(self, raw: RawRequest) -> None:
        if not self._is_public:
            raw.permit = self.context.authenticate(raw)
        if self._takes_content:
            check_content(raw)

    def _handle(self, raw: RawRequest) -> Coroutine[Any, Any, RawResponse]:
        return self._handler(raw)

    def _error_response(self, raw: RawRequest, error: Exception) -> RawResponse:
        return problem_of_exception(error).response(self.context.prefix, raw.path)


class TaskEndpoint(RawEndpoint):
    """An endpoint whose handler runs in a task from its first step on, as `asyncio.timeout` needs.

    A RawEndpoint runs its handler in the callback that reads from the connection, and creates a
    task only if the handler waits. That is enough for handlers that work in memory; a job store
    may need the current task at any time.
    """

    async def _handle(self, raw: RawRequest) -> RawResponse:
        await asyncio.sleep(0)
        return await self._handler(raw)


def path_parameter(scope: Scope, name: str) -> str:
    """Return a path parameter; empty for an empty name."""
    return str(scope["path_params"][name]) if name else ""
