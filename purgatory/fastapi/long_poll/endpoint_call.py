"""One call of an endpoint, which may be one of several for the same request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from starlette.types import Message, Scope, Send

from purgatory.fastapi.long_poll.request_messages import RequestMessages
from purgatory.fastapi.long_poll.watch_dependency import WATCHED_KEYS
from purgatory.fastapi.long_poll.watch_header import Headers, take_keys

_DISCONNECT: Final = "http.disconnect"

# Messages of an answer that is kept back, for each turn that the event loop is given.
_TURN: Final = 64


class EndpointCall:
    """Stands between an endpoint and the client, and keeps back an answer that is of no interest.

    Which is decided at the first message of the answer. From then on, an endpoint whose answer is
    kept back sees a client that has left: what it sends goes nowhere, and `receive()` says so. That
    ends a stream as it would end without us; its background tasks run.
    """

    __slots__ = (
        "_keep_back",
        "_messages",
        "_replay",
        "_send",
        "_should_keep_back",
        "_swallowed",
        "headers",
        "is_kept_back",
        "keys",
        "scope",
        "status",
    )

    def __init__(
        self,
        scope: Scope,
        messages: RequestMessages,
        send: Send,
        *,
        should_keep_back: Callable[[EndpointCall], bool],
        keep_back: Callable[[EndpointCall], Awaitable[None]],
    ) -> None:
        """Prepare a call with a copy of `scope`: no call sees what another has put there."""
        self.keys: list[str] = []
        """The keys that the endpoint has named; complete once there are headers."""
        self.scope: Scope = {**scope, WATCHED_KEYS: self.keys}
        if "state" in scope:
            self.scope["state"] = scope["state"].copy()
        if "asgi" in scope:
            # Of that version, sending to a client that has left does nothing, as here; told of a
            # later one, Starlette's streams would not wait for http.disconnect.
            self.scope["asgi"] = {**scope["asgi"], "spec_version": "2.3"}
        self.status = 0
        self.headers: Headers = []
        self.is_kept_back = False
        self._messages = messages
        self._replay: Iterator[Message] = iter(tuple(messages.kept))
        self._send = send
        self._swallowed = 0
        self._should_keep_back = should_keep_back
        self._keep_back = keep_back

    @property
    def etag(self) -> bytes:
        """The ETag of the answer; empty where there is none."""
        return next((value for name, value in self.headers if name == b"etag"), b"")

    async def receive(self) -> Message:
        """Return the client's next message; for the endpoint."""
        message = None
        if not self.is_kept_back:
            message = next(self._replay, None) or await self._messages.next()
        return message or {"type": _DISCONNECT}

    async def send(self, message: Message) -> None:
        """Send `message`, unless the answer is kept back; for the endpoint."""
        if self.is_kept_back:
            self._swallowed += 1
            if self._swallowed % _TURN == 0:
                # A stream that never waits would not notice that it is to end. But most do wait,
                # and it is there, not here, that they clean up when they are cancelled.
                await asyncio.sleep(0)
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers, keys = take_keys(message.get("headers", ()))
            self.keys += keys
            if self._should_keep_back(self):
                self.is_kept_back = True
                self._messages.interrupt()
                await self._keep_back(self)
                return
            message = {**message, "headers": self.headers}
        try:
            await self._send(message)
        except OSError:
            # So says a server of ASGI 2.4 that the client has left; see above.
            pass

    def give_scope_back(self, scope: Scope) -> None:
        """Show those who stand before us, in their `scope`, what the endpoint has put into it."""
        own = {name: scope[name] for name in ("asgi", "state") if name in scope}
        scope.update(self.scope)
        scope.update(own)
        scope.pop(WATCHED_KEYS, None)
        if "state" in own:
            own["state"].clear()
            own["state"].update(self.scope["state"])
