"""Responses that leave: closed if their clients do not read them, or if all hold too many bytes."""

from __future__ import annotations

import logging
from typing import Final, Protocol

from purgatory.fastapi.http.bounds.byte_budget import DEFAULT_TIMEOUT, ByteBudget

logger = logging.getLogger("purgatory.fastapi")

# A response that was read has been sent as well: more of them are on their way at once.
DEFAULT_MAX_UNREAD_BYTES: Final = 256 * 1024 * 1024

UNREAD_STATE_KEY: Final = "purgatory_unread"
"""Key of UnreadResponses in the state of the lifespan, for servers that write responses."""


class UnreadResponse(Protocol):
    """A response that the client has not read yet, or a connection with such responses."""

    @property
    def unread_bytes(self) -> int:
        """The bytes in memory of this process that are not sent."""
        ...

    def give_up(self) -> None:
        """Send no more, and close the connection."""
        ...


class UnreadResponses(ByteBudget[UnreadResponse]):
    """Closes connections whose client reads nothing for `timeout` seconds, or to make room.

    The client loses its response, and nothing else: it did not get the cursor after it.
    """

    __slots__ = ()

    def __init__(
        self, timeout: float = DEFAULT_TIMEOUT, max_bytes: int = DEFAULT_MAX_UNREAD_BYTES
    ) -> None:
        """Begin empty; `timeout` is in seconds, in which the client has to read something."""
        super().__init__(timeout, max_bytes)

    def _current_size(self, item: UnreadResponse) -> int:
        return item.unread_bytes

    def _on_timeout(self, item: UnreadResponse) -> None:
        if 0 < item.unread_bytes < self._sizes.get(item, 0):
            # Slow, but it reads.
            self.hold(item, item.unread_bytes)
            return
        self.release(item)
        self._give_up(item, f"nothing of it was read for {self._timeout:g} seconds")

    def _evict(self, item: UnreadResponse) -> None:
        self._give_up(
            item, f"such responses hold more than max_unread_bytes ({self._max_bytes}) in all"
        )

    def _give_up(self, item: UnreadResponse, reason: str) -> None:
        logger.info(
            "a connection is closed with %d bytes of its response unread: %s",
            item.unread_bytes,
            reason,
            extra={"action": "response-unread"},
        )
        item.give_up()
