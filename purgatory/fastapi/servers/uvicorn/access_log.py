"""Lines of uvicorn's access log, for the requests that uvicorn does not see."""

from __future__ import annotations

import asyncio
import copy
import logging
from typing import Any, Protocol, runtime_checkable
from urllib.parse import quote

from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from purgatory.fastapi.servers.uvicorn.request_reader import DirectRequest

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
