"""uvicorn's protocol, for requests without a fast route. The only user of its private names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import signature
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from purgatory.fastapi.http.bounds.incoming_requests import IncomingRequests
from purgatory.fastapi.http.eager_send import run_in_task
from purgatory.fastapi.http.problems import Problem
from purgatory.fastapi.servers.park_extension import EXTENSION, RELEASE, Respond
from purgatory.fastapi.servers.send_wrappers import is_unwrapped
from purgatory.fastapi.servers.uvicorn.response_encoder import status_line
from purgatory.operations.delayed_operation import DelayedOperation

# Bytes of a head: httptools takes any number of them.
MAX_HEAD: Final = 64 * 1024

_REFUSAL: Final = (
    b"%bcontent-type: text/plain\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b\n"
)

Release = Callable[["FallbackProtocol", DelayedOperation], Respond]
"""Takes a request over from this protocol, and returns how to respond to it."""


class FallbackProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with a bound on the head of a request.

    With `release` it offers the extension `purgatory.park` to the application: `release` is called
    with this protocol, which is not used again, and with the operation that the request waits for.
    """

    # True from the first byte of a head to its last one.
    _is_in_head = False
    _is_new_head = False
    # Of the current head; 1 for one that began within the last piece, which is bounded by itself.
    _head_bytes = 0

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
        release: Release | None,
        incoming: IncomingRequests,
    ) -> None:
        """Serve one connection as uvicorn does; its heads are among `incoming`."""
        super().__init__(config, server_state, app_state, loop)
        self._release = release
        self._incoming = incoming

    @property
    def is_between_requests(self) -> bool:
        """True iff everything received so far was read and responded to."""
        cycle: Any = self.cycle
        if cycle is None:
            scope: Any = self.scope
            return scope is None
        return bool(cycle.response_complete and not cycle.more_body and self._is_last(cycle))

    @property
    def keeps_alive(self) -> bool:
        """True iff the connection stays open after the current response."""
        return bool(self.cycle.keep_alive)

    @property
    def current_scope(self) -> Scope:
        """The ASGI scope of the current request."""
        scope: Any = self.cycle.scope
        return dict(scope)

    def cancel_idle_timeout(self) -> None:
        """Keep the connection open although it was idle."""
        self._unset_keepalive_if_required()

    def respond(self, response: Response, *, keeps_alive: bool) -> None:
        """Run a response to a request that was released, in a task of its own."""
        scope: Any = {
            "type": "http",
            "asgi": {"version": self.config.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            # All that matters is that it is not HEAD.
            "method": "GET",
            "path": "/",
            "raw_path": b"/",
            "query_string": b"",
            "root_path": self.root_path,
            "headers": [],
            "client": self.client,
            "server": self.server,
            "scheme": self.scheme,
        }
        cycle = RequestResponseCycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=keeps_alive,
            on_response=self.on_response_complete,
        )
        cycle.more_body = False
        self.scope, self.cycle = scope, cycle
        receive: Any = cycle.receive
        send: Any = cycle.send
        run_in_task(response(scope, receive, send), self.transport.close)

    def data_received(self, data: bytes) -> None:
        """Parse `data`, within the bounds on the head."""
        is_same_head = self._is_in_head
        self._is_new_head = False
        super().data_received(data)
        if not self._is_in_head or self.transport.is_closing():
            self._head_bytes = 0
            self._incoming.release(self)
            return
        if self._is_new_head or not is_same_head:
            self._incoming.release(self)
            self._head_bytes = 1
        else:
            self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD:
            self._end(431, f"the head of the request is larger than {MAX_HEAD} bytes")
        elif self._is_responding:
            # uvicorn's timeout begins with the response, and ends with the rest of the head.
            self._incoming.release(self)
        else:
            self._incoming.hold(self, self._head_bytes)

    def refuse(self, problem: Problem) -> None:
        """Respond to half a head, and close the connection."""
        self._end(problem.status, problem.detail)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget half a head, and what was received of bodies."""
        self._incoming.release(self)
        super().connection_lost(exc)
        # A scope refers to this protocol by its extension. What still runs has its own references.
        self.pipeline.clear()
        self.cycle = self.scope = None  # type: ignore[assignment] # done

    def on_response_complete(self) -> None:
        """Free what was not read of the body: it would stay as long as the connection."""
        cycle: Any = self.cycle
        if cycle is not None and cycle.response_complete:
            cycle.body = bytearray()
        super().on_response_complete()

    def on_message_begin(self) -> None:
        """Make a scope that offers the extension."""
        self._is_in_head = self._is_new_head = True
        super().on_message_begin()
        if self._release is not None:
            scope: Any = self.scope
            scope.setdefault("extensions", {})[EXTENSION] = {RELEASE: self._release_request}

    def on_headers_complete(self) -> None:
        """Note that the body begins."""
        self._is_in_head = False
        super().on_headers_complete()

    @property
    def _is_responding(self) -> bool:
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    def _end(self, status: int, detail: str) -> None:
        """Refuse half a head."""
        body = detail.encode("ascii")
        self.transport.write(_REFUSAL % (status_line(status), len(body) + 1, body))
        self.transport.close()

    def _is_last(self, cycle: RequestResponseCycle) -> bool:
        """Return True iff nothing was read behind the request of `cycle`."""
        return cycle.scope is self.scope and not self.pipeline and not self.parser.should_upgrade()

    def _release_request(
        self, scope: Scope, send: Send, operation: DelayedOperation
    ) -> Respond | None:
        cycle: Any = self.cycle
        if (
            self._release is None
            or cycle is None
            # Some routes copy the scope, and share what is in it.
            or scope.get("extensions") is not cycle.scope.get("extensions")
            or not self._is_last(cycle)
            or cycle.more_body
            or cycle.response_started
            or cycle.disconnected
            or cycle.scope["method"] == "HEAD"
            or not is_unwrapped(send, cycle.send)
        ):
            return None
        self.flow.resume_reading()
        respond = self._release(self, operation)
        # The cycle ends without a response, as for a client that has left.
        cycle.disconnected = True
        # They refer to each other, and would stay until the collector comes.
        del cycle.scope["extensions"]
        self._release = self.parser = self.cycle = self.scope = None  # type: ignore[assignment] # done
        return respond


_OF_PROTOCOL: Final = """
    _unset_keepalive_if_required access_logger client config connection_lost connection_made
    cycle data_received eof_received flow logger on_headers_complete on_message_begin
    on_message_complete on_response_complete parser pause_writing pipeline resume_writing root_path
    scheme scope server server_state shutdown transport
"""
_OF_CYCLE: Final = """
    disconnected keep_alive more_body receive response_complete response_started scope send
"""
_OF_CYCLE_CALL: Final = """
    access_log access_logger default_headers expect_100_continue flow keep_alive logger
    message_event on_response scope transport
"""
_OF_STATE: Final = "connections default_headers tasks total_requests"


def missing_internals() -> list[str]:
    """Return the names that this version of uvicorn lacks of those used here."""

    async def no_app(scope: Any, receive: Any, send: Any) -> None:
        pass

    nothing: Any = None
    # Any object is a loop for a protocol that is only looked at.
    no_loop: Any = object()
    state = ServerState()
    config = Config(no_app, http=HttpToolsProtocol, ws="none", lifespan="off", log_config=None)
    owners: list[tuple[object, str]] = [
        (HttpToolsProtocol(config, state, {}, no_loop), _OF_PROTOCOL),
        (state, _OF_STATE),
    ]
    parameters = signature(RequestResponseCycle).parameters
    missing = [
        f"RequestResponseCycle({name}=)"
        for name in _OF_CYCLE_CALL.split()
        if name not in parameters
    ]
    if not missing:
        cycle = RequestResponseCycle(**dict.fromkeys(parameters, nothing))
        owners.append((cycle, _OF_CYCLE))
    for owner, names in owners:
        of = type(owner).__name__
        missing += [f"{of}.{name}" for name in names.split() if not hasattr(owner, name)]
    return missing
