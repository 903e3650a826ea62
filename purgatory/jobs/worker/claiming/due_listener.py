"""Announcements of jobs that are due soon."""

from __future__ import annotations

import asyncio

from purgatory.jobs.worker.store_clock import StoreClock

# A job that is due sooner than this is claimed at once, others are claimed together.
SOON_MS = 1_000
COLLECT_MS = 250


class DueListener:
    """Wakes the claimer when the store announces jobs that can be claimed.

    A `StoreListener`, called on the event loop: at once for a job that is due within SOON_MS, once
    every COLLECT_MS for the rest.
    """

    def __init__(self, clock: StoreClock) -> None:
        """Begin idle."""
        self._clock = clock
        self._is_announced = False
        self._awake = asyncio.Event()
        self._collecting: asyncio.TimerHandle | None = None

    def on_due(self, due_ms: int) -> None:
        """Wake the claimer, now or a little later."""
        self._is_announced = True
        if not self._clock.is_set or self._clock.remaining_ms(due_ms) <= SOON_MS:
            self.wake()
        elif self._collecting is None:
            loop = asyncio.get_running_loop()
            self._collecting = loop.call_later(COLLECT_MS / 1000, self._on_collected)

    def on_change(self, job_id: str) -> None:
        """Ignore it: if it can be claimed, `on_due` follows at once."""

    def wake(self) -> None:
        """Wake the claimer now."""
        self._awake.set()

    def take_announced(self) -> bool:
        """Return True iff jobs were announced since the last call."""
        is_announced, self._is_announced = self._is_announced, False
        return is_announced

    def reset(self) -> None:
        """Make `wait` wait for a new wake-up."""
        self._awake.clear()

    async def wait(self, timeout_ms: int | None = None) -> None:
        """Return once woken since `reset`, or after `timeout_ms`."""
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._awake.wait()
        except TimeoutError:
            pass

    def close(self) -> None:
        """Wake the claimer for the last time."""
        if self._collecting is not None:
            self._collecting.cancel()
        self.wake()

    def _on_collected(self) -> None:
        self._collecting = None
        self.wake()
