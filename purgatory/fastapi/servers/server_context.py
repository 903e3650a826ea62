"""What the connections of one uvicorn server share."""

from __future__ import annotations

import asyncio
import copy
import logging
from contextvars import Context, copy_context
from operator import methodcaller
from typing import Any, Protocol, runtime_checkable
from urllib.parse import quote
from weakref import WeakKeyDictionary

from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.logging import TRACE_LOG_LEVEL
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.server import ServerState

from purgatory.fastapi.http.bounds import (
    INCOMING_STATE_KEY,
    UNREAD_STATE_KEY,
    Deadlines,
    IncomingRequests,
    UnreadResponses,
)
from purgatory.fastapi.servers.fallback_protocol import FallbackProtocol, Release
from purgatory.fastapi.servers.fast_routes import find_fast_routes, is_bare
from purgatory.fastapi.servers.fastapi_internals import can_see_through
from purgatory.fastapi.servers.request_reader import DirectRequest, RequestReader
from purgatory.fastapi.servers.response_encoder import ResponseEncoder, WriteBatcher

AccessEntry = tuple[str, str, str, str]
"""Client, method, path with query, HTTP version."""

_logger = logging.getLogger("uvicorn.access")


@runtime_checkable
class LineHandler(Protocol):
    """A handler of the access log that needs no record."""

    def add_line(self, client: str, method: str, target: str, version: str, status: int) -> None:
        """Add the line of a response."""
        ...

    def write_lines(self) -> None:
        """Write the lines that were added."""
        ...


class AccessLog:
    """Writes the lines of one server, and finds the clients behind its proxies.

    A LineHandler that is the logger's only handler is given the lines of each turn of the event
    loop together: making a record of each would take more time than all else about a request.
    """

    __slots__ = ("_line_handler", "_proxy_headers", "is_enabled")

    def __init__(self, config: Config) -> None:
        """Log as uvicorn does with `config`, once that is loaded."""
        # uvicorn asks this for each connection.
        self.is_enabled = _logger.hasHandlers()
        self._line_handler = _only_line_handler()
        self._proxy_headers: ProxyHeadersMiddleware | None = None
        app: Any = config.loaded_app
        if isinstance(app, ProxyHeadersMiddleware):
            self._proxy_headers = copy.copy(app)
            self._proxy_headers.app = _no_app

    def entry(self, request: DirectRequest, transport: asyncio.Transport) -> AccessEntry:
        """Return the entry of a request that was read from `transport`."""
        return (
            _address(self.client(request, transport)),
            request.fast_route.method,
            request.target,
            f"1.{request.minor_version.decode('ascii')}",
        )

    def entry_of_scope(self, scope: Scope) -> AccessEntry | None:
        """Return the entry of an ASGI request; None if there is no access log."""
        if not self.is_enabled:
            return None
        target = quote(scope["path"])
        if query := scope["query_string"]:
            target = f"{target}?{query.decode('ascii')}"
        return _address(scope.get("client")), scope["method"], target, scope["http_version"]

    def write(self, entry: AccessEntry, status: int) -> None:
        """Log a response with that status: once `flush` is called, at the latest."""
        if self._line_handler is not None:
            if _logger.isEnabledFor(logging.INFO):
                self._line_handler.add_line(*entry, status)
            return
        _logger.info('%s - "%s %s HTTP/%s" %d', *entry, status)

    def flush(self) -> None:
        """Write every line, before the responses are sent."""
        if self._line_handler is not None:
            self._line_handler.write_lines()

    def client(
        self, request: DirectRequest, transport: asyncio.Transport
    ) -> tuple[str, int] | None:
        """Return the address of the client, behind the proxies that uvicorn trusts."""
        scope: Scope = {"type": "http", "scheme": "http", "client": _peer(transport)}
        if self._proxy_headers is not None and request.has_header(b"x-forwarded-for"):
            scope["headers"] = request.headers
            # uvicorn's own rules of trust. Nothing is awaited but the application, which is ours.
            proxy_headers: Any = self._proxy_headers
            try:
                proxy_headers(scope, _no_app, _no_app).send(None)
            except StopIteration:
                pass
        client: tuple[str, int] | None = scope["client"]
        return client


def _only_line_handler() -> LineHandler | None:
    """Return the handler that gets the records of the access log, if that is a LineHandler."""
    if _logger.filters or (_logger.propagate and logging.getLogger().handlers):
        return None
    if len(_logger.handlers) != 1 or _logger.handlers[0].filters:
        return None
    handler: object = _logger.handlers[0]
    return handler if isinstance(handler, LineHandler) else None


def _peer(transport: asyncio.Transport) -> tuple[str, int] | None:
    """Return the address at the other end; None for a Unix socket."""
    peer = transport.get_extra_info("peername")
    return (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) else None


def _address(client: tuple[str, int] | None) -> str:
    return "{}:{}".format(*client) if client else ""


async def _no_app(*args: object) -> None:
    pass


class ServerContext:
    """The reader, the encoder and the logs of one server, for all its connections.

    Made with the first connection: by then the application has started.
    """

    def __init__(
        self,
        config: Config,
        state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Find the fast routes of the application that is served."""
        self.state = state
        self.loop = loop
        # (`contextvars`) Each request gets a copy. No request's own: the first connection is
        # accepted in that of the server.
        self.context = Context() if getattr(config, "reset_contextvars", False) else copy_context()
        # Connections that are kept alive without a request.
        self.idle: Deadlines[asyncio.Protocol] = Deadlines(
            loop, config.timeout_keep_alive, methodcaller("close")
        )
        self.access_log = AccessLog(config)
        self.writes = WriteBatcher(loop, before=self.access_log.flush)
        self.encoder = ResponseEncoder(state)
        # False if `is_full` need not be asked.
        self.is_limited = config.limit_concurrency is not None
        self._config = config
        self._app_state = app_state
        app: Any = config.loaded_app
        if isinstance(app, ProxyHeadersMiddleware):
            app = app.app
        # At this level uvicorn logs every ASGI message: all of them have to pass there.
        is_traced = logging.getLogger("uvicorn.error").isEnabledFor(TRACE_LOG_LEVEL)
        fast_routes = [
            route
            for route in ([] if is_traced else find_fast_routes(app))
            # FastAPI puts its own root path in place of the server's.
            if route.is_found_at(config.root_path, app.root_path or config.root_path)
            and not route.endpoint.needs_scope
        ]
        self.reader = RequestReader(fast_routes, config.root_path)
        contexts = [route.endpoint.context for route in fast_routes]
        # Routes behind middleware are not fast, but the bounds of their router hold for all heads.
        incoming: IncomingRequests | None = app_state.get(INCOMING_STATE_KEY)
        if incoming is None:
            # The server runs no lifespan.
            incoming = contexts[0].incoming if contexts else IncomingRequests()
        self.incoming = incoming
        unread: UnreadResponses | None = app_state.get(UNREAD_STATE_KEY)
        if unread is None:
            unread = contexts[0].unread if contexts else UnreadResponses()
        self.unread = unread
        # Of the kinds of problems, where a request is refused whose route is not known yet.
        self.prefix = contexts[0].prefix if contexts else ""
        self._can_release = not is_traced and is_bare(app) and can_see_through()

    @property
    def is_full(self) -> bool:
        """True iff uvicorn refuses requests, for `--limit-concurrency`."""
        limit = self._config.limit_concurrency
        return limit is not None and (
            len(self.state.connections) >= limit or len(self.state.tasks) >= limit
        )

    def make_fallback(self, release: Release) -> FallbackProtocol:
        """Return a protocol of uvicorn's for the requests that have no fast route."""
        return FallbackProtocol(
            self._config,
            self.state,
            self._app_state,
            self.loop,
            release if self._can_release else None,
            self.incoming,
            self.context,
        )


_contexts: WeakKeyDictionary[ServerState, ServerContext] = WeakKeyDictionary()


def server_context(
    config: Config,
    state: ServerState,
    app_state: dict[str, Any],
    loop: asyncio.AbstractEventLoop,
) -> ServerContext:
    """Return what the connections of the server with that state share."""
    found = _contexts.get(state)
    if found is None:
        found = _contexts[state] = ServerContext(config, state, app_state, loop)
    return found
