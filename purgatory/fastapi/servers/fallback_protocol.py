"""uvicorn's own protocol, for the requests that are not for us."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from purgatory.fastapi.http.eager_send import run_in_task
from purgatory.fastapi.servers.park_extension import EXTENSION, Reply, is_unwrapped
from purgatory.operations.delayed_operation import DelayedOperation

# Bytes of a head: httptools takes any number of them.
MAX_OWN_HEAD = 64 * 1024

_HEAD_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: text/plain\r\nconnection: close\r\ncontent-length: 37\r\n\r\n"
    b"The head of the request is too large\n"
)

Keep = Callable[["FallbackProtocol", DelayedOperation], Reply]


class FallbackProtocol(HttpToolsProtocol):
    """uvicorn's own protocol, with a bound on the head of a request.

    With `keep` it offers the application to let a request go that waits (see `let_go`): `keep` is
    called with this protocol, which is done then, and with the operation.
    """

    _is_in_head = True
    _has_head_ended = False
    _head_bytes = 0

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
        keep: Keep | None,
    ) -> None:
        """Be a connection of uvicorn's."""
        super().__init__(config, server_state, app_state, loop)
        self._keep = keep

    @property
    def is_between_requests(self) -> bool:
        """True iff it has read and answered all that it was given."""
        cycle: Any = self.cycle
        if cycle is None:
            scope: Any = self.scope
            return scope is None
        return bool(cycle.response_complete and not cycle.more_body and self._is_last(cycle))

    def forget_idleness(self) -> None:
        """Have it not closed for being idle."""
        self._unset_keepalive_if_required()

    def answer(self, response: Response, *, keeps_alive: bool) -> None:
        """Run a response to a request that was let go, in a task of its own."""
        scope: Any = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            # Not HEAD: that is all that matters.
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
        """Read on, within bounds."""
        was_in_head = self._is_in_head
        self._has_head_ended = False
        super().data_received(data)
        # What holds the end of a head or of a body is not counted: it is one piece, and bounded.
        if not was_in_head or self._has_head_ended:
            self._head_bytes = 0
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_OWN_HEAD and not self.transport.is_closing():
            self.transport.write(_HEAD_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        """Make a scope, with an offer in it."""
        super().on_message_begin()
        if self._keep is not None:
            scope: Any = self.scope
            scope.setdefault("extensions", {})[EXTENSION] = {"let_go": self._let_go}

    def on_headers_complete(self) -> None:
        """Go on with the body."""
        self._is_in_head = False
        self._has_head_ended = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Go on with the next head."""
        self._is_in_head = True
        super().on_message_complete()

    def _is_last(self, cycle: RequestResponseCycle) -> bool:
        """Return True iff nothing was read behind the request of `cycle`."""
        return cycle.scope is self.scope and not self.pipeline and not self.parser.should_upgrade()

    def _let_go(self, scope: Scope, send: Send, operation: DelayedOperation) -> Reply | None:
        cycle: Any = self.cycle
        if (
            self._keep is None
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
        reply = self._keep(self, operation)
        # It ends without a word, as for a client that has gone.
        cycle.disconnected = True
        # They refer to each other, and would stay until the collector comes.
        del cycle.scope["extensions"]
        self._keep = self.parser = self.cycle = self.scope = None  # type: ignore[assignment] # done
        return reply
