"""Waiting for something to happen in a purgatory, without asking again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from purgatory import OperationEvent


class Onlooker:
    """A listener of a purgatory, for those who tell stories or test."""

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self._happened = asyncio.Event()

    def __call__(self, event: OperationEvent) -> None:
        """Take note that an operation began to wait, or ended."""
        self._happened.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once `condition` holds, which is tried after each event."""
        while not condition():
            self._happened.clear()
            await self._happened.wait()
