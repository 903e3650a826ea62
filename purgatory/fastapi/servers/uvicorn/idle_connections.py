"""Keep-alive connections without a request, and their timeout."""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from typing import Protocol


class Closable(Protocol):
    """A connection."""

    def close(self) -> None:
        """Close it."""
        ...


class IdleConnections:
    """Closes each connection that has been idle for `timeout` seconds.

    All have the same timeout, so the first one has been idle the longest, and one handle of the
    loop serves all: arming and cancelling one per connection costs as much as parking does.
    """

    # {connection: when it became idle}: the order of arrival, and O(1) removal.
    # Invariant: the times only go up; and the handle is armed if there is any connection.
    __slots__ = ("_handle", "_idle_since", "_loop", "_timeout")

    def __init__(self, loop: AbstractEventLoop, timeout: float) -> None:
        """Begin empty."""
        self._loop = loop
        self._timeout = timeout
        self._idle_since: dict[Closable, float] = {}
        self._handle: TimerHandle | None = None

    def __len__(self) -> int:
        """Return the number of idle connections."""
        return len(self._idle_since)

    def add(self, connection: Closable) -> None:
        """Mark `connection`, which must not be idle yet, as idle from now on."""
        self._idle_since[connection] = self._loop.time()
        if self._handle is None:
            self._handle = self._loop.call_later(self._timeout, self._close_oldest)

    def discard(self, connection: Closable) -> None:
        """Mark `connection` as busy. Idempotent."""
        # The handle stays: it finds out when it runs.
        self._idle_since.pop(connection, None)

    def _close_oldest(self) -> None:
        self._handle = None
        now = self._loop.time()
        while self._idle_since:
            connection, since = next(iter(self._idle_since.items()))
            left = since + self._timeout - now
            if left > 0:
                # Up to the next millisecond, which is as precise as uvloop is.
                self._handle = self._loop.call_later(left + 0.001, self._close_oldest)
                return
            del self._idle_since[connection]
            connection.close()
