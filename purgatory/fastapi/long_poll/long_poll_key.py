"""`LongPollKey`: the dependency that names a key of a response."""

from __future__ import annotations

# No `from __future__ import annotations`: before FastAPI 0.124 an instance whose class has a text
# for an annotation is no dependency.
import logging
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field
from string import Formatter
from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import Message, Send

from purgatory.fastapi.routing.request_internals import effective_route

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


logger = logging.getLogger("purgatory.fastapi")

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
