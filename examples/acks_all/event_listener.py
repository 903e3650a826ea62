"""Waiting for a condition of a purgatory without polling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from purgatory.operations import OperationEvent


class EventListener:
    """A purgatory listener that wakes waiters, for the demonstration and the tests."""

    def __init__(self) -> None:
        """Start without any event."""
        self._happened = asyncio.Event()

    def __call__(self, event: OperationEvent) -> None:
        """Record that an operation began to wait, or ended."""
        self._happened.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when `condition` is true; it is checked after each event."""
        while not condition():
            self._happened.clear()
            await self._happened.wait()
