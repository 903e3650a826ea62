"""Repetition of a worker's steps while its store is out of reach."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from purgatory.job_errors import (
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreNotReadyError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from purgatory.retry_policy import RetryPolicy

logger = logging.getLogger("purgatory.jobs")

Result = TypeVar("Result")

RETRY_POLICY = RetryPolicy(first_ms=50, max_ms=2_000)
# An operator has to start the store, make room, promote it or migrate; then the same step succeeds.
# Any other StoreError concerns that one step.
OUTAGES = (StoreUnavailableError, StoreReadOnlyError, StoreFullError, StoreNotReadyError)


class StoreRetry:
    """Repeats each step until the store has done it; logs the beginning and the end of an outage.

    For steps that the store's protocol allows to repeat, and that have no caller to raise to.
    """

    def __init__(
        self, on_available: Callable[[], object], *, policy: RetryPolicy = RETRY_POLICY
    ) -> None:
        """Call `on_available` when an outage is over."""
        self._on_available = on_available
        self._policy = policy
        # {name of a step: the store's error}: a store may accept reads and refuse writes.
        self._failing: dict[str, str] = {}
        self.outages = 0

    @property
    def error(self) -> str | None:
        """The store's error; None while it works."""
        return next(iter(self._failing.values()), None)

    async def call(self, name: str, step: Callable[[], Awaitable[Result]]) -> Result:
        """Return what `step` returns, as soon as the store has done it."""
        attempt = 0
        while True:
            attempt += 1
            try:
                result = await step()
            except StoreBusyError as exc:
                # One job, and not the store.
                logger.warning(
                    "the step %r waits: %s", name, exc.detail, extra={"action": "job-locked"}
                )
            except OUTAGES as exc:
                self._note_failure(name, exc)
            else:
                self._note_success(name)
                return result
            await asyncio.sleep(self._policy.delay_s(attempt))

    def _note_failure(self, name: str, error: StoreError) -> None:
        if not self._failing:
            self.outages += 1
            logger.error(
                "the job store fails (%s): jobs wait until it is available again",
                error.detail,
                extra={"action": "store-lost"},
            )
        self._failing[name] = error.detail

    def _note_success(self, name: str) -> None:
        if self._failing.pop(name, None) is not None and not self._failing:
            logger.info("the job store is available again", extra={"action": "store-back"})
            self._on_available()
