"""The endpoints that park requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.types import Receive, Scope, Send

from purgatory.fastapi.http.asgi_request import AsgiRequest
from purgatory.fastapi.http.eager_send import send_response
from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.fastapi.routing.admission import AdmittingEndpoint
from purgatory.fastapi.routing.connection import Connection
from purgatory.fastapi.routing.endpoint_spec import EndpointSpec
from purgatory.fastapi.routing.raw_endpoint import path_parameter
from purgatory.fastapi.watch.asgi_wait import AsgiWait
from purgatory.fastapi.watch.direct_wait import DirectWait
from purgatory.fastapi.watch.parked_request import ParkedRequest
from purgatory.fastapi.watch.request import WatchRequest
from purgatory.fastapi.watch.wait_registry import WaitRegistry

Parse = Callable[[RawRequest], WatchRequest]


class WatchEndpoint(AdmittingEndpoint):
    """Parks requests: as an `AsgiWait` or, on a connection without ASGI, as a `DirectWait`."""

    def __init__(self, registry: WaitRegistry, spec: EndpointSpec, parse: Parse) -> None:
        """Park requests in `registry`, once `parse` has checked them."""
        super().__init__(registry.context, spec)
        self.needs_client = registry.clients.is_active
        self.needs_scope = registry.clients.needs_scope
        self.registry = registry
        self._parse = parse

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Return the response to one request, now or later, to be awaited."""
        return self.handle(scope, receive, send, path_parameter(scope, self.path_parameter))

    # Not async without a body: all of this would stay on the frame of a parked request.
    def handle(
        self, scope: Scope, receive: Receive, send: Send, path_value: str
    ) -> Awaitable[None]:
        """The same for a router that knows the path's `path_value`."""
        raw = AsgiRequest(scope, path_value)
        # Before the body: a client without permission need not send one.
        refused = self.admit(raw)
        if refused is not None:
            return send_response(send, refused)
        if self.max_body:
            return self._read_and_respond(raw, scope, receive, send)
        return self._respond(raw, receive, send)

    async def _read_and_respond(
        self, raw: AsgiRequest, scope: Scope, receive: Receive, send: Send
    ) -> None:
        refused = await self.read_body(raw, scope, receive)
        if refused is not None:
            await send_response(send, refused)
            return
        responding = self._respond(raw, receive, send)
        del raw, scope
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
