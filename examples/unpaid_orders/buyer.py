"""A buyer's page as a program: it does what the script in page.html does."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from purgatory.timer import SystemClock

NS_PER_MS = 1_000_000


class BuyerPage:
    """Follows one order with long polls."""

    def __init__(self, client: httpx.AsyncClient, order: dict[str, Any], wait: float) -> None:
        """Follow `order` with long polls of `wait` seconds each."""
        self.order = order
        self.polls = 0
        self.changed_ms = 0
        """The monotonic time of the last change that it received."""
        self._client = client
        self._wait = wait
        self._clock = SystemClock()
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Start following the order."""
        self._task = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Stop, and disconnect during a poll."""
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
                response = await self._client.get(f"/orders/{self.order['id']}", headers=headers)
            except httpx.TransportError:
                # The shop is restarting.
                await asyncio.sleep(0.1)
                continue
            if response.status_code == 200:
                self.order = response.json()
                self.changed_ms = self._clock.now_ns() // NS_PER_MS
            elif "Retry-After" in response.headers:
                # The shop is stopping and will restart. A real page would wait for Retry-After
                # seconds; here it is the only client.
                await asyncio.sleep(0.1)
