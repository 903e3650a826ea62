"""A deadline for each of many items, and a bound on the bytes that all of them hold.

Of requests that arrive, and of responses that leave, the oldest make room. A client that means well
has sent its request, and has read its response, within moments; one that fills the memory holds the
oldest ones, and cannot keep others out. Refusing those who come instead would let it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextvars import Context
from typing import Final, Generic, TypeVar

from purgatory.fastapi.http.bounds.deadlines import Deadlines

# As nginx has it for a head, and between two pieces of a body, both ways.
DEFAULT_TIMEOUT: Final = 60.0

Item = TypeVar("Item")


class ByteBudget(ABC, Generic[Item]):
    """Ends items `timeout` seconds after they begin, or while all hold over `max_bytes`.

    Beyond `max_bytes`, the oldest are ended, except one that alone holds all of the bytes.
    """

    # {item: bytes} of those that hold any, the oldest first: only they can free memory.
    # Invariant: held_bytes == sum(_sizes.values()) and all(_sizes.values()).
    __slots__ = ("_deadlines", "_max_bytes", "_sizes", "_timeout", "held_bytes")

    def __init__(self, timeout: float, max_bytes: int) -> None:
        """Begin empty; `timeout` is in seconds."""
        self._timeout = timeout
        self._max_bytes = max_bytes
        self._sizes: dict[Item, int] = {}
        self._deadlines: Deadlines[Item] | None = None
        self.held_bytes = 0

    def __len__(self) -> int:
        """Return the number of items."""
        return 0 if self._deadlines is None else len(self._deadlines)

    def hold(self, item: Item, size: int) -> None:
        """Count `size` bytes of `item`; its deadline begins with the first call.

        May end any item, `item` too, before it returns.
        """
        loop = asyncio.get_running_loop()
        if self._deadlines is None or self._deadlines.loop is not loop:
            self._deadlines = Deadlines(loop, self._timeout, self._on_timeout)
        if item not in self._deadlines:
            self._deadlines.add(item)
        self._count(item, size)
        if self.held_bytes > self._max_bytes:
            self._make_room()

    def release(self, item: Item) -> None:
        """Forget an item that is complete, or has left. Idempotent."""
        self._count(item, 0)
        if self._deadlines is not None:
            self._deadlines.discard(item)

    def _items(self) -> list[Item]:
        return [] if self._deadlines is None else [*self._deadlines]

    @abstractmethod
    def _on_timeout(self, item: Item) -> None:
        """End `item`, which is counted but has no deadline any more."""

    @abstractmethod
    def _evict(self, item: Item) -> None:
        """End `item`, which has been released, to make room."""

    def _current_size(self, item: Item) -> int:
        """Return the bytes that `item` holds now."""
        return self._sizes[item]

    def _count(self, item: Item, size: int) -> None:
        self.held_bytes += size - self._sizes.get(item, 0)
        if size:
            self._sizes[item] = size
        else:
            self._sizes.pop(item, None)

    def _make_room(self) -> None:
        left = self.held_bytes
        found: dict[Item, int] = {}
        evicted: list[Item] = []
        for item, size in self._sizes.items():
            found[item] = current = self._current_size(item)
            left += current - size
            if left <= self._max_bytes or left == current:
                break
            evicted.append(item)
            left -= current
        for item, size in found.items():
            self._count(item, size)
        # All of them first: a connection that is refused is held again, while it lingers.
        for item in evicted:
            self.release(item)
        for item in evicted:
            # Not in the context of the request that takes the room.
            Context().run(self._evict, item)
