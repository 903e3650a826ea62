"""Deadlines of many objects that all have the same timeout."""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Iterator
from contextvars import Context
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Deadlines(Generic[Item]):
    """Calls `on_timeout` with each object that was added `timeout` seconds ago, and not discarded.

    All have the same timeout, so the first one has been there the longest, and one handle of the
    loop serves all: arming and cancelling one per request costs as much as parking does.
    """

    # {object: when it was added}: the order of arrival, and O(1) removal.
    # Invariant: the times only go up; and the handle is armed if there is any object.
    __slots__ = ("_handle", "_on_timeout", "_since", "_timeout", "loop")

    def __init__(
        self, loop: AbstractEventLoop, timeout: float, on_timeout: Callable[[Item], object]
    ) -> None:
        """Begin empty."""
        self.loop = loop
        self._timeout = timeout
        self._on_timeout = on_timeout
        self._since: dict[Item, float] = {}
        self._handle: TimerHandle | None = None

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self._since)

    def __contains__(self, item: Item) -> bool:
        """Return True iff `item` was added, and has neither expired nor been discarded."""
        return item in self._since

    def __iter__(self) -> Iterator[Item]:
        """Return an iterator over the objects, the oldest first."""
        return iter(self._since)

    def add(self, item: Item) -> None:
        """Begin the timeout of `item`, which must not be there yet."""
        self._since[item] = self.loop.time()
        if self._handle is None:
            self._handle = self._arm(self._timeout)

    def discard(self, item: Item) -> None:
        """Forget `item`. Idempotent."""
        # The handle stays: it finds out when it runs.
        self._since.pop(item, None)

    def _expire(self) -> None:
        now = self.loop.time()
        try:
            # The handle counts as armed meanwhile: `on_timeout` may add items.
            while self._since:
                item, since = next(iter(self._since.items()))
                if since + self._timeout > now:
                    break
                del self._since[item]
                self._on_timeout(item)
        finally:
            # After an error too: the loop reports it, and the other items expire next.
            oldest = next(iter(self._since.values()), None)
            self._handle = None if oldest is None else self._arm(oldest + self._timeout - now)

    def _arm(self, delay: float) -> TimerHandle:
        # Up to the next millisecond, which is as precise as uvloop is. In an empty context: that of
        # the object for which it is armed is none of the others'.
        return self.loop.call_later(delay + 0.001, self._expire, context=Context())
