"""A baseline: waiting for a key or a deadline, as people write it by hand."""

from __future__ import annotations

import asyncio


class Waiter:
    """A future, the handle of its deadline, and its keys."""

    __slots__ = ("future", "handle", "keys")

    def __init__(
        self, future: asyncio.Future[bool], handle: asyncio.TimerHandle, keys: tuple[str, ...]
    ) -> None:
        self.future = future
        self.handle = handle
        self.keys = keys


class HandMade:
    """Futures in a dict by key, each with a `call_later`; both are removed at the end of a wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiters: dict[str, dict[asyncio.Future[bool], Waiter]] = {}

    def wait(self, keys: tuple[str, ...], timeout: float) -> Waiter:
        """Return a waiter whose future is True once a key fired, and False at the deadline."""
        future = self._loop.create_future()
        waiter = Waiter(future, self._loop.call_later(timeout, self._expire, future, keys), keys)
        for key in keys:
            self._waiters.setdefault(key, {})[future] = waiter
        return waiter

    def fire(self, key: str) -> int:
        """Complete the waiters for `key`; return how many."""
        # A copy: completing a waiter takes it out of this dict.
        waiters = list(self._waiters.get(key, {}).values())
        for waiter in waiters:
            self.complete(waiter)
        return len(waiters)

    def complete(self, waiter: Waiter) -> None:
        """Complete one waiter, before its deadline."""
        if not waiter.future.done():
            waiter.handle.cancel()
            self._forget(waiter.future, waiter.keys)
            waiter.future.set_result(True)

    def _expire(self, future: asyncio.Future[bool], keys: tuple[str, ...]) -> None:
        if not future.done():
            self._forget(future, keys)
            future.set_result(False)

    def _forget(self, future: asyncio.Future[bool], keys: tuple[str, ...]) -> None:
        for key in keys:
            waiters = self._waiters[key]
            del waiters[future]
            if not waiters:
                del self._waiters[key]
