"""A buyer's page, as a program: what the script in page.html does."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from purgatory import SystemClock

NS_PER_MS = 1_000_000


class BuyerPage:
    """Shows one order, and is told of every change of it."""

    def __init__(self, client: httpx.AsyncClient, order: dict[str, Any], wait: float) -> None:
        """Follow `order` with long polls of `wait` seconds each."""
        self.order = order
        self.polls = 0
        self.changed_ms = 0
        """When it was last told of a change, on the monotonic clock."""
        self._client = client
        self._wait = wait
        self._clock = SystemClock()
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin to follow."""
        self._task = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Leave, in the midst of a poll."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def settled(self) -> None:
        """Wait until the page shows that the order is settled."""
        assert self._task is not None
        await self._task

    async def _follow(self) -> None:
        while self.order["state"] == "open":
            headers = {
                "If-None-Match": f'"{self.order["version"]}"',
                "Prefer": f"wait={self._wait:g}",
            }
            self.polls += 1
            try:
                answer = await self._client.get(f"/orders/{self.order['id']}", headers=headers)
            except httpx.TransportError:
                # The shop is starting again.
                await asyncio.sleep(0.1)
                continue
            if answer.status_code == 200:
                self.order = answer.json()
                self.changed_ms = self._clock.now_ns() // NS_PER_MS
            elif "Retry-After" in answer.headers:
                # It is stopping, and another one will answer; a page would wait for as long as this
                # says, but nobody else is here to be spared.
                await asyncio.sleep(0.1)
