"""What the connections of one uvicorn server share."""

from __future__ import annotations

import asyncio
import logging
from contextvars import Context, copy_context
from operator import methodcaller
from typing import Any
from weakref import WeakKeyDictionary

from uvicorn.config import Config
from uvicorn.logging import TRACE_LOG_LEVEL
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.server import ServerState

from purgatory.fastapi.http.bounds.deadlines import Deadlines
from purgatory.fastapi.http.bounds.incoming_requests import INCOMING_STATE_KEY, IncomingRequests
from purgatory.fastapi.http.bounds.unread_responses import UNREAD_STATE_KEY, UnreadResponses
from purgatory.fastapi.servers.fast_routes import find_fast_routes, is_bare
from purgatory.fastapi.servers.send_wrappers import can_see_through
from purgatory.fastapi.servers.uvicorn.access_log import AccessLog
from purgatory.fastapi.servers.uvicorn.fallback_protocol import FallbackProtocol, Release
from purgatory.fastapi.servers.uvicorn.request_reader import RequestReader
from purgatory.fastapi.servers.uvicorn.response_encoder import ResponseEncoder
from purgatory.fastapi.servers.uvicorn.write_batcher import WriteBatcher


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
