"""One call of the endpoint, one of several for the same request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from purgatory.fastapi.long_poll.long_poll_key import WATCHED_KEYS, Headers, take_keys
from purgatory.fastapi.watch.interruptible_receive import InterruptibleReceive

# A GET has hardly ever a body; with a larger one than this, the endpoint is called once.
MAX_KEPT_BYTES: Final = 64 * 1024


class RequestMessages:
    """Returns the client's messages, and keeps the body for the next call of the endpoint."""

    __slots__ = ("_kept_bytes", "_receive", "is_repeatable", "kept")

    def __init__(self, receive: Receive) -> None:
        """Take messages from `receive`."""
        self._receive = InterruptibleReceive(receive)
        self._kept_bytes = 0
        self.kept: list[Message] = []
        """The body so far, for the next call."""
        self.is_repeatable = True
        """False if the body is too large to be kept."""

    async def next(self) -> Message | None:
        """Return the client's next message, or None if interrupted."""
        message = await self._receive()
        if message is not None and message["type"] == "http.request" and self.is_repeatable:
            self._keep(message)
        return message

    def interrupt(self) -> None:
        """Have every `next` that is under way return None."""
        self._receive.interrupt()

    def _keep(self, message: Message) -> None:
        self.kept.append(message)
        self._kept_bytes += len(message.get("body", b""))
        if self._kept_bytes > MAX_KEPT_BYTES:
            self.is_repeatable = False
            self.kept.clear()


_DISCONNECT: Final = "http.disconnect"

# Messages of a withheld response between two turns of the event loop.
_TURN: Final = 64


class EndpointCall:
    """Stands between an endpoint and the client, and withholds a response that the client has.

    That is decided at the first message of the response. An endpoint whose response is withheld
    sees a client that has left: what it sends is dropped, and `receive()` returns a disconnect.
    That ends a stream as it would end without the middleware; background tasks run.
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
        """Prepare a call with a copy of `scope`: no call sees what another one stored there."""
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
        self._messages = messages
        self._replay: Iterator[Message] = iter(tuple(messages.kept))
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
        message = None
        if not self.is_kept_back:
            message = next(self._replay, None) or await self._messages.next()
        return message or {"type": _DISCONNECT}

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
                self._messages.interrupt()
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
