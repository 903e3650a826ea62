"""The endpoints that park requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.types import Receive, Scope, Send

from purgatory.fastapi.access.content_type import check_content
from purgatory.fastapi.http.asgi_request import AsgiRequest
from purgatory.fastapi.http.eager_send import send_response
from purgatory.fastapi.http.problem_mapping import problem_of_exception
from purgatory.fastapi.http.problems import Problem
from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.fastapi.http.request_body import read_body
from purgatory.fastapi.routing.connection import Connection
from purgatory.fastapi.routing.endpoint_spec import EndpointSpec
from purgatory.fastapi.routing.raw_endpoint import path_parameter
from purgatory.fastapi.watch.asgi_wait import AsgiWait
from purgatory.fastapi.watch.direct_wait import DirectWait
from purgatory.fastapi.watch.request import WatchRequest
from purgatory.fastapi.watch.wait_registry import WaitRegistry

Parse = Callable[[RawRequest], WatchRequest]


class WatchEndpoint:
    """Parks requests: as an `AsgiWait` or, on a connection without ASGI, as a `DirectWait`."""

    def __init__(self, registry: WaitRegistry, spec: EndpointSpec, parse: Parse) -> None:
        """Park requests in `registry`, once `parse` has checked them."""
        self.context = registry.context
        self.needs_client = registry.counts_clients
        self.registry = registry
        self.tail = spec.tail
        self.max_body = spec.max_body
        self._parse = parse

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Return the response to one request, now or later, to be awaited."""
        return self.handle(scope, receive, send, path_parameter(scope, self.tail))

    # Not async without a body: all of this would stay on the frame of a parked request.
    def handle(self, scope: Scope, receive: Receive, send: Send, tail: str) -> Awaitable[None]:
        """The same for a router that knows the path's `tail`."""
        raw = AsgiRequest(scope, tail)
        try:
            # Before the body: a client without permission need not send one.
            self._admit(raw)
        except Exception as exc:
            return self._refuse(raw, send, exc)
        if self.max_body:
            return self._read_and_respond(raw, scope, receive, send)
        return self._respond(raw, receive, send)

    async def _read_and_respond(
        self, raw: RawRequest, scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            raw.body = await read_body(scope, receive, self.max_body)
        except Problem as problem:
            await self._refuse(raw, send, problem)
            return
        responding = self._respond(raw, receive, send)
        del raw, scope
        await responding

    def _respond(self, raw: RawRequest, receive: Receive, send: Send) -> Awaitable[None]:
        registry = self.registry
        try:
            wait = AsgiWait(self._parse(raw), registry, receive, send)
            registry.park(wait, registry.client(raw))
        except Exception as exc:
            return self._refuse(raw, send, exc)
        return wait.begin()

    def _refuse(self, raw: RawRequest, send: Send, error: Exception) -> Awaitable[None]:
        return send_response(
            send, problem_of_exception(error).response(self.context.prefix, raw.path)
        )

    def begin(self, raw: RawRequest, connection: Connection) -> DirectWait | None:
        """Respond on `connection` to a request whose body is complete, now or later.

        Returns its wait, None if it was refused: call `abandon` when the client leaves.
        """
        registry = self.registry
        try:
            self._admit(raw)
            wait = DirectWait(self._parse(raw), registry, connection)
            registry.park(wait, registry.client(raw))
        except Exception as exc:
            connection.respond(problem_of_exception(exc).response(self.context.prefix, raw.path))
            return None
        return wait

    def _admit(self, raw: RawRequest) -> None:
        raw.permit = self.context.authenticate(raw)
        if self.max_body:
            check_content(raw)
