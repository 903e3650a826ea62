"""One call of the endpoint, one of several for a request, and the keys that it names."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from string import Formatter
from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import Message, Scope, Send

from purgatory.fastapi.http.asgi import InterruptibleReceive
from purgatory.fastapi.routing.routes import effective_route

logger = logging.getLogger("purgatory.fastapi")

KEY_HEADER: Final = b"long-poll-key"

Headers = list[tuple[bytes, bytes]]


def take_keys(headers: Iterable[tuple[bytes, bytes]]) -> tuple[Headers, list[str]]:
    """Return the headers without ours, and the keys in ours."""
    kept: Headers = []
    keys: list[str] = []
    for name, value in headers:
        if name == KEY_HEADER:
            keys += filter(None, (key.strip() for key in value.decode("latin-1").split(",")))
        else:
            kept.append((name, value))
    return kept, keys


def without_key_header(send: Send) -> Send:
    """Return a `send` that removes our header."""

    # Not a coroutine function: that would be one coroutine more for every message.
    def send_on(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            headers = message.get("headers", ())
            kept = [pair for pair in headers if pair[0] != KEY_HEADER]
            message = {**message, "headers": kept}
        return send(message)

    return send_on


# Where in the scope the middleware looks for keys: None if the request does not wait, and absent
# without the middleware.
WATCHED_KEYS: Final = "purgatory.watched_keys"


@dataclass(frozen=True, slots=True)
class LongPollKey:
    """A dependency that declares: this response changes when that key fires.

        @app.get("/orders/{order_id}", dependencies=[Depends(LongPollKey("order:{order_id}"))])

    For `LongPollMiddleware`; without it a warning is logged, once. Its value is the key. Parameters
    are used as the path has them: if the endpoint takes 007 for 7, refuse the one or name the key
    in the response's header, or that client waits for `order:007`, which never fires.

    Two of the same template are equal, so that `app.dependency_overrides` finds them. Raises
    ValueError for a template with anything but plain names of path parameters in braces.
    """

    template: str
    # Whether the missing middleware has been logged.
    _said: list[bool] = field(default_factory=list, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Raise ValueError unless the template is text and `{names}`."""
        for _, name, specification, conversion in Formatter().parse(self.template):
            if name is not None and (not name.isidentifier() or specification or conversion):
                raise ValueError(
                    f"template {self.template!r} has a field {name!r}: a field is the plain name "
                    "of a path parameter, such as {order_id}"
                )

    @property
    def names(self) -> set[str]:
        """The path parameters that the template has."""
        return {name for _, name, _, _ in Formatter().parse(self.template) if name is not None}

    # Nothing is awaited, but FastAPI would run a plain function in a thread.
    async def __call__(self, request: HTTPConnection) -> str:
        """Add the key for the middleware, and return it."""
        try:
            key = self.template.format_map(request.path_params)
        except KeyError as exc:
            raise RuntimeError(
                f"LongPollKey({self.template!r}) is used in an endpoint whose path has no "
                f"parameter {exc}; it has "
                f"{', '.join(map(repr, request.path_params)) or 'none'}"
            ) from None
        keys: list[str] | None = request.scope.get(WATCHED_KEYS)
        if keys is not None:
            keys.append(key)
        elif not self._said and WATCHED_KEYS not in request.scope:
            self._warn(request)
        return key

    def _warn(self, request: HTTPConnection) -> None:
        if request.scope.get("method") not in ("GET", "HEAD"):
            # The middleware leaves such a request alone, and a WebSocket.
            return
        self._said.append(True)
        logger.warning(
            "LongPollKey(%r) at %s has no effect without the middleware, and clients that wait get "
            "a response at once: app.add_middleware(LongPollMiddleware, purgatory=purgatory)",
            self.template,
            getattr(effective_route(request.scope), "path", request.url.path),
            extra={"action": "middleware-missing"},
        )


def drop_exit_stacks(scope: Scope) -> None:
    """Remove what FastAPI has stored for one call: a quarter of what a parked request keeps."""
    for name in [name for name, value in scope.items() if type(value) is AsyncExitStack]:
        del scope[name]


# Messages of a withheld response between two turns of the event loop.
_TURN: Final = 64


class EndpointCall:
    """Stands between an endpoint and the client, and withholds a response that the client has.

    That is decided at the first message of the response. An endpoint whose response is withheld
    sees a client that has left: what it sends is dropped, and `receive()` returns a disconnect.
    That ends a stream as it would end without the middleware; background tasks run.
    """

    def __init__(
        self,
        scope: Scope,
        receive: InterruptibleReceive,
        send: Send,
        *,
        should_keep_back: Callable[[EndpointCall], bool],
        keep_back: Callable[[EndpointCall], Awaitable[None]],
    ) -> None:
        """Prepare a call with a copy of `scope`: no call sees what another one stored there.

        The request has no body.
        """
        self.keys: list[str] = []
        """The keys that the endpoint has named; complete once there are headers."""
        self.scope: Scope = {**scope, WATCHED_KEYS: self.keys}
        if "state" in scope:
            self.scope["state"] = scope["state"].copy()
        if "asgi" in scope:
            # In that version, sending to a client that has left does nothing, as here; with a
            # later one, Starlette's streams would not wait for http.disconnect.
            self.scope["asgi"] = {**scope["asgi"], "spec_version": "2.3"}
        self.status = 0
        self.headers: Headers = []
        self.is_kept_back = False
        self._receive = receive
        self._has_read = False
        self._send = send
        self._swallowed = 0
        self._should_keep_back = should_keep_back
        self._keep_back = keep_back

    @property
    def etag(self) -> bytes:
        """The ETag of the response; empty if it has none."""
        return next((value for name, value in self.headers if name == b"etag"), b"")

    async def receive(self) -> Message:
        """Return the client's next message: the endpoint's `receive`."""
        if not (self._has_read or self.is_kept_back):
            self._has_read = True
            return {"type": "http.request", "body": b"", "more_body": False}
        message = None if self.is_kept_back else await self._receive()
        return message or {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Send `message`, unless the response is withheld: the endpoint's `send`."""
        if self.is_kept_back:
            self._swallowed += 1
            if self._swallowed % _TURN == 0:
                # A stream that never waits would not be cancelled. Most do wait, and clean up there
                # when they are.
                await asyncio.sleep(0)
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers, keys = take_keys(message.get("headers", ()))
            self.keys += keys
            if self._should_keep_back(self):
                self.is_kept_back = True
                self._receive.interrupt()
                await self._keep_back(self)
                return
            message = {**message, "headers": self.headers}
        try:
            await self._send(message)
        except OSError:
            # A server of ASGI 2.4 raises this when the client has left; see above.
            pass

    def give_scope_back(self, scope: Scope) -> None:
        """Copy what the endpoint stored in its scope to `scope`, for middleware outside of ours."""
        own = {name: scope[name] for name in ("asgi", "state") if name in scope}
        scope.update(self.scope)
        scope.update(own)
        scope.pop(WATCHED_KEYS, None)
        if "state" in own:
            own["state"].clear()
            own["state"].update(self.scope["state"])
