"""Opening of the job store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from purgatory.background import cancel_until_done
from purgatory.errors import PurgatoryClosedError
from purgatory.job_errors import StoreError, StoreNotReadyError, StoreUnavailableError
from purgatory.jobs.stores.protocol import JobStore
from purgatory.retry_policy import RetryPolicy

logger = logging.getLogger("purgatory.jobs")

RETRY_POLICY: Final = RetryPolicy(first_ms=100, max_ms=5_000)


class StoreOpener:
    """Opens a store in the background, and keeps trying while it cannot be opened.

    Only an error of the first attempt reaches the caller, unless it says that the store is out of
    reach: an operator who starts the process can correct it. Later errors are logged.
    """

    def __init__(
        self,
        store: JobStore,
        on_open: Callable[[], Awaitable[None]],
        *,
        policy: RetryPolicy = RETRY_POLICY,
    ) -> None:
        """Prepare; `on_open` is awaited once the store is open, and belongs to opening it."""
        self._store = store
        self._on_open = on_open
        self._policy = policy
        self._task: asyncio.Task[None] | None = None
        # Set after the first attempt, and why that leads to no other.
        self._is_tried = asyncio.Event()
        self._failure: Exception | None = None
        self.error: str | None = "it is being opened"
        """Why the store is not open; None once it is."""

    @property
    def is_open(self) -> bool:
        """True iff the store was opened, and not closed since."""
        return self.error is None

    def begin(self) -> None:
        """Begin to open the store, on the running event loop."""
        self._task = asyncio.create_task(self._open())

    async def wait(self) -> None:
        """Return once the store is open, or is out of reach and will be tried again.

        Raises StoreNotReadyError and other errors of the store that prevent opening it;
        PurgatoryClosedError if stopped before.
        """
        await self._is_tried.wait()
        if isinstance(self._failure, StoreNotReadyError):
            # Its text says what to do, and thirty lines of the store's own calls would hide it.
            raise self._failure.with_traceback(None)
        if self._failure is not None:
            raise self._failure

    async def stop(self) -> None:
        """Stop trying. Idempotent."""
        await cancel_until_done(self._task)
        if not self._is_tried.is_set():
            self._failure = PurgatoryClosedError(
                "the purgatory was drained before its job store was open"
            )
            self._is_tried.set()

    def note_closed(self) -> None:
        """Note that the store is being closed."""
        self.error = "it is closed"

    async def _open(self) -> None:
        try:
            await self._reach()
            await self._on_open()
        except Exception as exc:
            self.error = str(exc)
            if self._is_tried.is_set():
                logger.exception("the job store cannot be opened", extra={"action": "no-store"})
            self._failure = exc
        else:
            self.error = None
        self._is_tried.set()

    async def _reach(self) -> None:
        attempt = 0
        while True:
            try:
                await self._store.open()
            except StoreError as exc:
                self._note_failure(exc)
            else:
                return
            attempt += 1
            await asyncio.sleep(self._policy.delay_s(attempt))

    def _note_failure(self, error: StoreError) -> None:
        is_new = error.detail != self.error
        self.error = error.detail
        if not self._is_tried.is_set() and not isinstance(error, StoreUnavailableError):
            raise error
        self._is_tried.set()
        if is_new:
            logger.error(
                "the job store cannot be opened (%s): it is tried again until it can",
                error.detail,
                extra={"action": "store-lost"},
            )
