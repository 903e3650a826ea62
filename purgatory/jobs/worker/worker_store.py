"""The store as one worker uses it: opened, and its steps repeated, while it is away; and its clock.

The clock is an estimate, from the timestamps of the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from purgatory.background import cancel_until_done
from purgatory.errors import PurgatoryClosedError
from purgatory.job_errors import (
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreNotReadyError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from purgatory.jobs.model.job import Job, JobClaim
from purgatory.jobs.model.limits import Bounds
from purgatory.jobs.model.steps import (
    CLOCK_SLACK_MS,
    Claim,
    Claimed,
    Prune,
    Renew,
    Result,
    Start,
    Step,
    accepted,
)
from purgatory.jobs.stores.protocol import JobStore
from purgatory.jobs.worker.settings import WorkerCounters, WorkerSettings
from purgatory.retry_policy import RetryPolicy
from purgatory.timer import Clock
from purgatory.timer.clock import NS_PER_MS

logger = logging.getLogger("purgatory.jobs")

# From here on, what waits for the store's time is armed again. Slow responses move the estimate by
# less, once.
STEP_NS: Final = 100 * NS_PER_MS
LAST_MS: Final = 10**15
"""Later than any time of a store."""
# Steps that are remembered, to date what was before them.
_MAX_STEPS: Final = 32


class _Offset(NamedTuple):
    """The store's time minus the local time, since a time between two local ones."""

    ns: int
    after_ns: float
    by_ns: float


class StoreClock:
    """Follows the store's clock by the local monotonic one, from the store's timestamps.

    The estimate is a little slow, by the time that a response takes: what is armed by it is rarely
    early, and the store refuses what is. The wall clock of this machine plays no part. The store's
    may be set: then the next timestamp moves the estimate, and `on_step` is called.
    """

    def __init__(self, clock: Clock) -> None:
        """Begin without an estimate."""
        self._clock = clock
        self.local_ns: Callable[[], int] = clock.now_ns
        """Return the local time: read it before asking the store, and pass it to `note`."""
        self.on_step: Callable[[int], object] = lambda moved_ns: None
        """Called once the estimate has moved by STEP_NS or more since the last call, or the
        beginning, with how far."""
        # The store's time minus the local time, at least and at most.
        self._offset_ns: int | None = None
        self._most_ns = 0
        # When the estimate was found right last, or set.
        self._noted_ns = 0
        # Those of before each step, and of now; the last one is the reference for the next step.
        self._offsets: deque[_Offset] = deque(maxlen=_MAX_STEPS)

    @property
    def is_set(self) -> bool:
        """True iff `note` was called."""
        return self._offset_ns is not None

    async def ask(self, store: JobStore) -> None:
        """Update the estimate by asking the store, which may raise."""
        asked_ns = self.local_ns()
        self.note(await store.now_ms(), asked_ns)

    def note(self, store_ms: int, asked_ns: int) -> None:
        """Update the estimate: the store responded `store_ms` to a request made at `asked_ns`."""
        # The store read its clock some time after the request, and `store_ms` is rounded down.
        now_ns = self._clock.now_ns()
        min_ns = store_ms * NS_PER_MS - now_ns
        max_ns = (store_ms + 1) * NS_PER_MS - asked_ns
        before_ns, self._noted_ns = self._noted_ns, now_ns
        is_new = self._offset_ns is None or max_ns < self._offset_ns or self._most_ns < min_ns
        self._most_ns = max_ns if is_new else min(self._most_ns, max_ns)
        if self._offset_ns is not None and min_ns <= self._offset_ns <= max_ns:
            return
        self._offset_ns = min_ns
        if not self._offsets:
            self._offsets.append(_Offset(min_ns, float("-inf"), float("-inf")))
            return
        moved_ns = min_ns - self._offsets[-1].ns
        if abs(moved_ns) >= STEP_NS:
            self._offsets.append(_Offset(min_ns, before_ns, now_ns))
            self.on_step(moved_ns)

    def now_ms(self) -> int:
        """Return the store's time. Call `note` first."""
        assert self._offset_ns is not None
        return (self._clock.now_ns() + self._offset_ns) // NS_PER_MS

    def bounds_ms(self) -> tuple[int, int]:
        """Return the store's time at least and at most.

        Before `note`, by the local wall clock: then it is any later time at most.
        """
        if self._offset_ns is None:
            return max(0, self._clock.wall_ms() - CLOCK_SLACK_MS), LAST_MS
        now_ns = self._clock.now_ns()
        return (now_ns + self._offset_ns) // NS_PER_MS, (now_ns + self._most_ns) // NS_PER_MS

    def remaining_ms(self, due_ms: int) -> int:
        """Return the time until `due_ms`, rounded up; negative if it is past. Call `note` first."""
        assert self._offset_ns is not None
        return -(-(due_ms * NS_PER_MS - self._clock.now_ns() - self._offset_ns) // NS_PER_MS)

    def age_ms(self, store_ms: int) -> int:
        """Return how long ago the store's clock was at `store_ms`, also before it was set.

        By the local clock, as far back as this process has followed the store's. Call `note` first.
        """
        now_ns = self._clock.now_ns()
        until_ns: float = now_ns
        for offset in reversed(self._offsets):
            at_ns = store_ms * NS_PER_MS - offset.ns
            if offset.after_ns <= at_ns <= until_ns:
                return (now_ns - at_ns) // NS_PER_MS
            until_ns = offset.by_ns
        return max(0, self.now_ms() - store_ms)


T = TypeVar("T")

RETRY_POLICY = RetryPolicy(first_ms=50, max_ms=2_000)
# An operator has to start the store, make room, promote it or migrate; then the same step succeeds.
# Any other StoreError concerns that one step.
OUTAGES = (StoreUnavailableError, StoreReadOnlyError, StoreFullError, StoreNotReadyError)


# Jobs in one step: the worker handles a step's result in one turn of the loop, in some 5 ms.
BATCH = 250


async def _no_results() -> list[Any]:
    return []


class WorkerStore:
    """A store as one worker uses it: each step is repeated until the store has done it.

    The store's protocol makes every step safe to repeat, and these have no caller to raise to. No
    method raises while the store is out of reach; `store` itself is for steps that are not
    repeated. Logs the beginning and the end of an outage.
    """

    # Methods that only pass a call on are no coroutines: a frame less for each step of each job.

    def __init__(
        self,
        store: JobStore,
        *,
        worker: str,
        settings: WorkerSettings,
        clock: StoreClock,
        counters: WorkerCounters,
    ) -> None:
        """Work on `store`, which is open, as `worker`, which names this process to others.

        `clock` follows that of the store. `counters` may be those of an earlier worker.
        """
        self.store = store
        self._worker = worker
        self.settings = settings
        self.limits = store.limits
        self.lease_ms = settings.lease_ms
        self.clock = clock
        self.counters = counters
        self.on_available: Callable[[], object] = lambda: None
        """Called when an outage is over."""
        # {name of a step: the store's error}: a store may accept reads and refuse writes.
        self._failing: dict[str, str] = {}
        self.outages = 0
        # When a claim is to look for leases that have ended as the store's clock went back.
        self._look_ns = clock.local_ns()
        # No more than a store returns at once: a short result means that nothing is left.
        self.batch = min(BATCH, store.limits.max_batch)

    @property
    def error(self) -> str | None:
        """The store's error; None while it works."""
        return next(iter(self._failing.values()), None)

    async def now_ms(self) -> int:
        """Return the store's clock, and synchronize ours with it."""
        asked_ns = self.clock.local_ns()
        now_ms = await self._repeat("now_ms", self.store.now_ms)
        self.clock.note(now_ms, asked_ns)
        return now_ms

    def next_due_ms(self, handlers: tuple[str, ...]) -> Awaitable[int | None]:
        """Return the earliest due_ms of the jobs of `handlers` that can be claimed now, or None."""
        return self._repeat("next_due_ms", lambda: self.store.next_due_ms(handlers))

    async def claim(
        self,
        *,
        within_ms: int,
        limit: int,
        handlers: tuple[str, ...],
        bounds: tuple[Bounds, ...] = (),
    ) -> Claimed:
        """Lease up to `limit` jobs that are due within `within_ms`, the earliest first."""
        asked_ns = self.clock.local_ns()
        clock_ms = None
        if asked_ns >= self._look_ns:
            clock_ms = self.clock.now_ms() if self.clock.is_set else 0
            self.put_off_look()
        step = Claim(self._worker, within_ms, limit, self.lease_ms, handlers, bounds, clock_ms)
        [claimed] = await self.run([step])
        self.clock.note(claimed.now_ms, asked_ns)
        return claimed

    def put_off_look(self) -> None:
        """Let live workers renew their leases, as they do three times per lease, before a look."""
        self._look_ns = self.clock.local_ns() + self.lease_ms * NS_PER_MS // 2

    async def renew(self, claims: Sequence[JobClaim]) -> list[JobClaim]:
        """Extend leases; return the claims that are lost or finished.

        A claim that the store was too busy to look at is neither: ask again.
        """
        renewed = await self.run([Renew(claim, self.lease_ms) for claim in claims])
        return [claim for claim, result in zip(claims, renewed, strict=True) if result is False]

    async def renew_one(self, claim: JobClaim) -> bool:
        """Extend a lease, as soon as the store can; return False if the claim is lost."""

        async def ask() -> bool:
            [result] = await self.store.run([Renew(claim, self.lease_ms)])
            return accepted(result)

        return await self._repeat("Renew", ask)

    async def start(
        self, claim: JobClaim, attempt: int, bounds: Bounds | None = None
    ) -> tuple[Job | None, int]:
        """Start a job; None if the claim is lost; a job that is WAITING still if not due yet.

        Also return the local time in ns before which its lease has not begun.
        """
        asked_ns = 0

        def ask() -> Awaitable[list[Job | None]]:
            nonlocal asked_ns
            asked_ns = self.clock.local_ns()
            return self.store.run([Start(claim, self.lease_ms, attempt, bounds)])

        [job] = await self._repeat("Start", ask)
        return job, asked_ns

    def run(self, steps: Sequence[Step[Result]]) -> Awaitable[list[Result]]:
        """Return the results of steps of one kind; the store is not asked for those of none."""
        if not steps:
            return _no_results()
        return self._repeat(type(steps[0]).__name__, lambda: self.store.run(steps))

    async def prune(self, *, finished_before_ms: int, keep: int) -> bool:
        """Delete a batch of old jobs; return True iff more may be left."""
        [pruned] = await self.run([Prune(finished_before_ms, keep, self.batch)])
        return pruned == self.batch

    async def _repeat(self, name: str, step: Callable[[], Awaitable[T]]) -> T:
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
            await asyncio.sleep(RETRY_POLICY.delay_s(attempt))

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
            self.on_available()


OPENING_RETRY: Final = RetryPolicy(first_ms=100, max_ms=5_000)


class StoreOpener:
    """Opens a store in the background, and keeps trying while it cannot be opened.

    Only an error of the first attempt reaches the caller, unless it says that the store is out of
    reach: an operator who starts the process can correct it. Later errors are logged.
    """

    def __init__(self, store: JobStore, on_open: Callable[[], Awaitable[None]]) -> None:
        """Prepare; `on_open` is awaited once the store is open, and belongs to opening it."""
        self._store = store
        self._on_open = on_open
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
            await asyncio.sleep(OPENING_RETRY.delay_s(attempt))

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
