"""Counting the turns of an event loop."""

from __future__ import annotations

import asyncio
from typing import Self


class Turns:
    """Counts the turns of the loop while it is entered."""

    def __init__(self) -> None:
        self.count = 0

    async def __aenter__(self) -> Self:
        self._counting = asyncio.create_task(self._count())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._counting.cancel()

    async def _count(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)
