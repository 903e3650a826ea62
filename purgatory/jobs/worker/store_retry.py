"""The way to a store that may be out of reach for a while."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from purgatory.jobs.model.errors import (
    StoreError,
    StoreFullError,
    StoreNotReadyError,
    StoreReadOnlyError,
    StoreUnavailableError,
)

logger = logging.getLogger("purgatory.jobs")

Result = TypeVar("Result")

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0
# Somebody has to start it, make room, promote it or migrate; then it does what it was asked. Any
# other StoreError is what it has against one step.
AWAY = (StoreUnavailableError, StoreReadOnlyError, StoreFullError, StoreNotReadyError)


class StoreRetry:
    """Repeats steps until the store has done them; logs the beginning and the end of an outage.

    For a scheduler, whose steps may be repeated by the protocol, and which has nobody to report to.
    """

    def __init__(self, on_back: Callable[[], object]) -> None:
        """Call `on_back` when the store can be reached again."""
        self._on_back = on_back
        # {name of a step: what the store said}: a store may take reads and refuse writes.
        self._failing: dict[str, str] = {}
        self.outages = 0

    @property
    def error(self) -> str | None:
        """What the store said; None while it works."""
        return next(iter(self._failing.values()), None)

    async def call(self, name: str, step: Callable[[], Awaitable[Result]]) -> Result:
        """Return what `step` returns, once the store is there to do it."""
        pause = FIRST_PAUSE
        while True:
            try:
                result = await step()
            except AWAY as exc:
                self._note_failure(name, exc)
            else:
                self._note_success(name)
                return result
            await asyncio.sleep(pause * random.uniform(0.5, 1))
            pause = min(2 * pause, LONGEST_PAUSE)

    def _note_failure(self, name: str, error: StoreError) -> None:
        if not self._failing:
            self.outages += 1
            logger.error(
                "the store of jobs fails (%s): jobs wait until it is back",
                error.detail,
                extra={"action": "store-lost"},
            )
        self._failing[name] = error.detail

    def _note_success(self, name: str) -> None:
        if self._failing.pop(name, None) is not None and not self._failing:
            logger.info("the store of jobs is back", extra={"action": "store-back"})
            self._on_back()
