"""Announcements of jobs that are due soon."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterator
from contextlib import contextmanager

from purgatory.jobs.worker.store_clock import StoreClock

# A job that is due sooner than this is claimed at once, others are claimed together.
SOON_MS = 1_000
COLLECT_MS = 250


class DueListener:
    """Wakes the claimer when the store announces jobs that can be claimed.

    A `StoreListener`, called on the event loop: at once for a job that is due within SOON_MS, once
    every COLLECT_MS for the rest.
    """

    def __init__(self, clock: StoreClock, unhandled_delay_ms: int) -> None:
        """Begin idle; `unhandled_delay_ms` is by how much jobs of other workers are put off."""
        self._clock = clock
        # Our own releases are announced as due at this distance or beyond.
        self._own_ms = min(SOON_MS, unhandled_delay_ms)
        self._is_muted = False
        # Jobs whose announcements are ignored while muted, and the job of the next announcement.
        self._own: Container[str] = ()
        self._changed: str | None = None
        self._is_announced = False
        self._awake = asyncio.Event()
        self._collecting: asyncio.TimerHandle | None = None

    def on_due(self, due_ms: int) -> None:
        """Wake the claimer, now or a little later."""
        changed, self._changed = self._changed, None
        if self._is_muted and (
            changed in self._own or self._clock.remaining_ms(due_ms) >= self._own_ms
        ):
            return
        self._is_announced = True
        if not self._clock.is_set or self._clock.remaining_ms(due_ms) <= SOON_MS:
            self.wake()
        elif self._collecting is None:
            loop = asyncio.get_running_loop()
            self._collecting = loop.call_later(COLLECT_MS / 1000, self._on_collected)

    def on_change(self, job_id: str) -> None:
        """Note the job: if it can be claimed, `on_due` follows at once."""
        self._changed = job_id

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

    @contextmanager
    def muted(self, own: Container[str] = ()) -> Iterator[None]:
        """Ignore announcements of jobs that this worker releases itself.

        Those of the ids in `own`, also if they are due: only for a store that announces each job
        by itself.
        """
        self._is_muted, self._own = True, own
        try:
            yield
        finally:
            self._is_muted, self._own = False, ()

    def close(self) -> None:
        """Wake the claimer for the last time."""
        if self._collecting is not None:
            self._collecting.cancel()
        self.wake()

    def _on_collected(self) -> None:
        self._collecting = None
        self.wake()
