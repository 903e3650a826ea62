"""The messages of a request whose endpoint is called several times."""

from __future__ import annotations

from typing import Final

from starlette.types import Message, Receive

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
