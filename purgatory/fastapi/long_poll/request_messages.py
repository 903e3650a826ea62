"""The messages of a request whose endpoint is called more than once."""

from __future__ import annotations

from typing import Final

from starlette.types import Message, Receive

from purgatory.fastapi.watch.interruptible_receive import InterruptibleReceive

# GETs have no body to speak of; one with more than this is answered without a second call.
MAX_KEPT_BYTES: Final = 64 * 1024


class RequestMessages:
    """Hands out the client's messages, and keeps the body for the next call of the endpoint."""

    __slots__ = ("_kept_bytes", "_receive", "is_repeatable", "kept")

    def __init__(self, receive: Receive) -> None:
        """Take messages from `receive`."""
        self._receive = InterruptibleReceive(receive)
        self._kept_bytes = 0
        self.kept: list[Message] = []
        """The body so far, for an endpoint that is called again."""
        self.is_repeatable = True
        """False where the body was too large to be kept."""

    async def next(self) -> Message | None:
        """Return the next message from the client, or None where it was interrupted."""
        message = await self._receive()
        if message is not None and message["type"] == "http.request" and self.is_repeatable:
            self._keep(message)
        return message

    def interrupt(self) -> None:
        """Have whoever waits in `next` go on, with None."""
        self._receive.interrupt()

    def _keep(self, message: Message) -> None:
        self.kept.append(message)
        self._kept_bytes += len(message.get("body", b""))
        if self._kept_bytes > MAX_KEPT_BYTES:
            self.is_repeatable = False
            self.kept.clear()
