"""What connections of one server share: limits, routes, and how responses become HTTP/1.1."""

from __future__ import annotations

import asyncio
import copy
import logging
import re
from asyncio import AbstractEventLoop, Transport
from collections.abc import Callable
from contextvars import Context, copy_context
from operator import methodcaller
from typing import Any, Final, Protocol, runtime_checkable
from urllib.parse import quote
from weakref import WeakKeyDictionary

from starlette.responses import Response
from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.logging import TRACE_LOG_LEVEL
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.server import ServerState

from purgatory.fastapi.http.bounds import Deadlines, IncomingRequests, UnreadResponses
from purgatory.fastapi.http.responses import RawResponse, status_line
from purgatory.fastapi.routing.endpoints import CONTEXT_STATE_KEY, EndpointContext
from purgatory.fastapi.routing.routes import find_fast_routes, is_bare
from purgatory.fastapi.servers.fallback_protocol import FallbackProtocol, Release
from purgatory.fastapi.servers.request_reader import DirectRequest, RequestReader

AccessEntry = tuple[str, str, str, str]
"""Client, method, path with query, HTTP version."""

_logger = logging.getLogger("uvicorn.access")
_FORWARDED: Final = frozenset({b"x-forwarded-for"})


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

    def entry(self, request: DirectRequest, transport: asyncio.Transport, peer: str) -> AccessEntry:
        """Return the entry of a request from `transport`, whose other end is `peer`."""
        return (
            _address(self.client(request, transport)) if request.has_any(_FORWARDED) else peer,
            request.fast_route.method,
            request.target,
            "1.1" if request.minor_version == b"1" else "1.0",
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
        peer = _peer(transport)
        if self._proxy_headers is None or not request.has_any(_FORWARDED):
            return peer
        scope: Scope = {"type": "http", "scheme": "http", "client": peer}
        scope["headers"] = request.headers
        # uvicorn's own rules of trust. Nothing is awaited but the application, which is ours.
        proxy_headers: Any = self._proxy_headers
        try:
            proxy_headers(scope, _no_app, _no_app).send(None)
        except StopIteration:
            pass
        client: tuple[str, int] | None = scope["client"]
        return client


def peer_address(transport: asyncio.Transport) -> str:
    """Return the address at the other end as the access log has it."""
    return _address(_peer(transport))


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
        # Routes behind middleware are not fast, but the bounds of their router hold for all heads.
        # A server may run no lifespan, and an application may have no router of ours.
        contexts = [route.endpoint.context for route in fast_routes]
        context: EndpointContext | None = app_state.get(CONTEXT_STATE_KEY)
        context = context or next(iter(contexts), None)
        self.incoming = IncomingRequests() if context is None else context.incoming
        self.unread = UnreadResponses() if context is None else context.unread
        self._can_release = not is_traced and is_bare(app)

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
    config: Config, state: ServerState, app_state: dict[str, Any], loop: asyncio.AbstractEventLoop
) -> ServerContext:
    """Return what the connections of the server with that state share."""
    found = _contexts.get(state)
    if found is None:
        found = _contexts[state] = ServerContext(config, state, app_state, loop)
    return found


_CLOSE = b"connection: close\r\n"


class ResponseEncoder:
    """Encodes the responses of one server."""

    __slots__ = ("_default_headers", "_last_bytes", "_last_response", "_starts", "_state")

    def __init__(self, state: ServerState) -> None:
        """Add the default headers of `state` to each response."""
        self._state = state
        # uvicorn replaces this list every second, for the header Date.
        self._default_headers: list[tuple[bytes, bytes]] = []
        # {status: the status line and the default headers}
        self._starts: dict[int, bytes] = {}
        # Waiters that one signal wakes nearly always get the same response.
        self._last_response: RawResponse | None = None
        self._last_bytes = b""

    def encode(self, response: RawResponse, *, keeps_alive: bool) -> bytes:
        """Return a response as uvicorn would send it."""
        if self._state.default_headers is not self._default_headers:
            self._default_headers = self._state.default_headers
            self._starts.clear()
            self._last_response = None
        if response is self._last_response and keeps_alive:
            return self._last_bytes
        start = self._starts.get(response.status) or self._start(response.status)
        if not keeps_alive:
            return response.encoded(start, b"" if response.is_last else _CLOSE)
        self._last_response, self._last_bytes = response, response.encoded(start)
        return self._last_bytes

    def _start(self, status: int) -> bytes:
        lines = (name + b": " + value + b"\r\n" for name, value in self._default_headers)
        start = self._starts[status] = status_line(status) + b"".join(lines)
        return start


# These decide on the length of the body or on the connection: the server has to see them.
_OF_THE_SERVER: Final = frozenset({b"connection", b"transfer-encoding", b"upgrade"})
_WITHOUT_BODY: Final = frozenset({204, 304})
# RFC 9110, section 5.
_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")


def plain_response(response: Response) -> RawResponse | None:
    """Return `response` as a RawResponse; None if it has to be run, or is not well-formed."""
    if type(response).__call__ is not Response.__call__ or response.background is not None:
        return None
    body = bytes(response.body)
    length = b"0" if response.status_code in _WITHOUT_BODY else None
    for name, value in response.raw_headers:
        if name in _OF_THE_SERVER or not (_NAME.fullmatch(name) and _VALUE.fullmatch(value)):
            return None
        if name == b"content-length":
            length = value
    if length != b"%d" % len(body):
        return None
    return RawResponse(response.status_code, response.raw_headers, body)


# So many bytes are not kept for the end of the turn: very many long responses may be in one.
MAX_BATCH: Final = 256 * 1024


class WriteBatcher:
    """Writes all responses of one turn of the event loop together, at its end.

    Each write may wake a client, and on the same machine that costs as much as parking does. A
    client, or a proxy, that gets its responses together is woken once.
    """

    # Invariant: a flush is scheduled unless there is nothing to write, and _size is the sum of it.
    __slots__ = ("_before", "_context", "_loop", "_size", "_written")

    def __init__(self, loop: AbstractEventLoop, *, before: Callable[[], object]) -> None:
        """Begin empty; `before` is called before responses are written."""
        self._loop = loop
        # Not that of the first response of a turn.
        self._context = copy_context()
        self._before = before
        self._written: list[tuple[Transport, bytes]] = []
        self._size = 0

    def write(self, transport: Transport, data: bytes) -> None:
        """Write `data` to `transport` before the event loop waits again."""
        if not self._written:
            self._loop.call_soon(self.flush, context=self._context)
        self._written.append((transport, data))
        self._size += len(data)
        if self._size > MAX_BATCH:
            self.flush()

    def flush(self) -> None:
        """Write everything now: call it before anything else is done with a transport."""
        if not self._written:
            return
        self._before()
        written, self._written = self._written, []
        self._size = 0
        for transport, data in written:
            if not transport.is_closing():
                transport.write(data)
