"""What the connections of one uvicorn server share."""

from __future__ import annotations

import asyncio
import copy
import logging
from typing import Any
from weakref import WeakKeyDictionary

from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.logging import TRACE_LOG_LEVEL
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.protocols.utils import get_client_addr, get_path_with_query_string, get_remote_addr
from uvicorn.server import ServerState

from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.servers.fallback_protocol import FallbackProtocol, Keep
from purgatory.fastapi.servers.fast_routes import find_shortcuts, is_bare
from purgatory.fastapi.servers.idle_connections import IdleConnections
from purgatory.fastapi.servers.request_reader import DirectRequest, RequestReader
from purgatory.fastapi.servers.write_batcher import WriteBatcher

_CLOSE = b"connection: close\r\n"
_access_logger = logging.getLogger("uvicorn.access")


class ParkingServer:
    """Reads and answers for every connection, and makes uvicorn's own protocol where it is needed.

    Made with the first connection: by then the application has started.
    """

    def __init__(
        self,
        config: Config,
        state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Find the shortcuts of the application that is served."""
        self.state = state
        self.loop = loop
        self.idle = IdleConnections(loop, config.timeout_keep_alive)
        self.outbox = WriteBatcher(loop)
        # uvicorn asks this for each connection.
        self.keeps_access_log = _access_logger.hasHandlers()
        # False where `is_full` need not be asked.
        self.is_limited = config.limit_concurrency is not None
        self._config = config
        self._app_state = app_state
        app: Any = config.loaded_app
        self._proxy_headers: ProxyHeadersMiddleware | None = None
        if isinstance(app, ProxyHeadersMiddleware):
            self._proxy_headers = copy.copy(app)
            self._proxy_headers.app = _nothing
            app = app.app
        # Whoever traces wants to see every message.
        is_traced = logging.getLogger("uvicorn.error").isEnabledFor(TRACE_LOG_LEVEL)
        shortcuts = [] if is_traced else find_shortcuts(app)
        self.reader = RequestReader(shortcuts, config.root_path)
        self._can_let_go = not is_traced and is_bare(app)
        # The headers of uvicorn, which makes them anew every second.
        self._default_headers: list[tuple[bytes, bytes]] = []
        # {status: how an answer begins, with these headers}
        self._starts: dict[int, bytes] = {}
        # The last answer: the waiters that one signal wakes are nearly always told the same.
        self._last_answer: RawResponse | None = None
        self._last_bytes = b""

    @property
    def is_full(self) -> bool:
        """True iff uvicorn refuses requests, for `--limit-concurrency`."""
        limit = self._config.limit_concurrency
        return limit is not None and (
            len(self.state.connections) >= limit or len(self.state.tasks) >= limit
        )

    def own_protocol(self, keep: Keep) -> FallbackProtocol:
        """Return a protocol of uvicorn's own, for what is not for us; see there for `keep`."""
        return FallbackProtocol(
            self._config,
            self.state,
            self._app_state,
            self.loop,
            keep if self._can_let_go else None,
        )

    def encode(self, answer: RawResponse, *, keeps_alive: bool) -> bytes:
        """Return the bytes of an answer, as uvicorn would send it."""
        if self.state.default_headers is not self._default_headers:
            self._default_headers = self.state.default_headers
            self._starts.clear()
            self._last_answer = None
        if answer is self._last_answer and keeps_alive:
            return self._last_bytes
        start = self._starts.get(answer.status) or self._start(answer.status)
        if not keeps_alive:
            return answer.encoded(start, b"" if answer.is_last else _CLOSE)
        self._last_answer, self._last_bytes = answer, answer.encoded(start)
        return self._last_bytes

    def _start(self, status: int) -> bytes:
        """Return how an answer with that status begins, in this second."""
        lines = (name + b": " + value + b"\r\n" for name, value in self._default_headers)
        start = self._starts[status] = STATUS_LINE[status] + b"".join(lines)
        return start

    def access_entry(
        self, request: DirectRequest, transport: asyncio.Transport
    ) -> tuple[str, str, str, str]:
        """Return what the access log will say of a request, where somebody keeps one."""
        return (
            "{}:{}".format(*client) if (client := self.client(request, transport)) else "",
            request.shortcut.method,
            request.target,
            f"1.{request.minor_version.decode('ascii')}",
        )

    def entry_of(self, scope: Scope) -> tuple[str, str, str, str] | None:
        """Return what the access log will say of a request that was let go."""
        if not self.keeps_access_log:
            return None
        served: Any = scope
        return (
            get_client_addr(served),
            scope["method"],
            get_path_with_query_string(served),
            scope["http_version"],
        )

    def log_access(self, entry: tuple[str, str, str, str], status: int) -> None:
        """Write a line to uvicorn's access log."""
        _access_logger.info('%s - "%s %s HTTP/%s" %d', *entry, status)

    def client(
        self, request: DirectRequest, transport: asyncio.Transport
    ) -> tuple[str, int] | None:
        """Return the address of who asks, behind the proxies that uvicorn was told to trust."""
        scope: Scope = {"type": "http", "scheme": "http", "client": get_remote_addr(transport)}
        if self._proxy_headers is not None and request.has_header(b"x-forwarded-for"):
            scope["headers"] = request.headers
            # Its own rules of whom to trust. It waits for nothing but what is inside it.
            proxy_headers: Any = self._proxy_headers
            try:
                proxy_headers(scope, _nothing, _nothing).send(None)
            except StopIteration:
                pass
        client: tuple[str, int] | None = scope["client"]
        return client


_servers: WeakKeyDictionary[ServerState, ParkingServer] = WeakKeyDictionary()


def parking_server(
    config: Config,
    state: ServerState,
    app_state: dict[str, Any],
    loop: asyncio.AbstractEventLoop,
) -> ParkingServer:
    """Return what the connections of the server with that state share."""
    found = _servers.get(state)
    if found is None:
        found = _servers[state] = ParkingServer(config, state, app_state, loop)
    return found


async def _nothing(*args: object) -> None:
    pass
