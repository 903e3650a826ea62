"""The class Purgatory, which an application creates, parks on and fires."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast, overload

from purgatory.errors import (
    PurgatoryClosedError,
    SignalsUnavailableError,
    WrongThreadError,
    check_keys_type,
    check_type,
    wrong_type,
)
from purgatory.event_loop.expiration_reaper import ExpirationReaper
from purgatory.event_loop.inspection import Inspection
from purgatory.event_loop.parked_operations import LogListener, note_operation, noting
from purgatory.event_loop.parking import Parking
from purgatory.event_loop.sliced_runner import SlicedRunner
from purgatory.event_loop.thread_calls import ThreadCalls
from purgatory.job_errors import JobsNotFiredError, NoJobStoreError, StoreError
from purgatory.job_statistics import JobStatistics
from purgatory.json_value import json_value, stored_value
from purgatory.limits import Limits
from purgatory.operations.delayed_operation import (
    UNTRIED,
    DelayedOperation,
    DelayedOperationPurgatory,
)
from purgatory.operations.operation_listeners import Listener, Recorder
from purgatory.operations.resumable_batch import ResumableBatch
from purgatory.operations.watch_key import check_key
from purgatory.outcome import FireResult, Outcome
from purgatory.signals import MemorySignals, SignalStatistics
from purgatory.signals.memory import HistoryTrimmer
from purgatory.signals.model import (
    EntryType,
    Idempotency,
    SharedSignalStatistics,
)
from purgatory.timer import Clock, SystemClock, SystemTimer, compiled
from purgatory.timer.clock import NS_PER_MS, Seconds
from purgatory.turn_budget import TurnBudget

if TYPE_CHECKING:
    from purgatory.jobs import JobContext, JobHandle, Jobs, JobStore, WorkerSettings
    from purgatory.jobs.handlers import HandlerOptions, JobFunction, JobHandlers
    from purgatory.jobs.handlers.handler import Grid
    from purgatory.jobs.handlers.registry import (
        HandlerDecorator,
        OptionalFunction,
        OptionalJobFunction,
    )
    from purgatory.jobs.model.spec import JobOptions
    from purgatory.jobs.stores.protocol import StoredFire
    from purgatory.signals.redis import RedisSignals

logger = logging.getLogger("purgatory")

T = TypeVar("T")
Payload = TypeVar("Payload")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class LevelStatistics:
    """One level of the timing wheel."""

    tick_ms: int
    """Milliseconds of one bucket."""
    span_ms: int
    """Milliseconds of the whole level."""
    buckets: int
    """Buckets that are not empty."""
    tasks: int
    """Timers in these buckets."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Exact counts of one purgatory, now and since it was made."""

    parked: int
    """Operations that wait."""
    keys: int
    """Keys that are watched."""
    watched: int
    """Watches: an operation counts once for each of its keys."""
    parked_bytes: int
    """About the memory that the keys of operations with several keys take; see
    `Limits.max_parked_bytes`."""
    fires: int
    """Signals that this process has fired."""
    fired: int
    """Operations that a key completed."""
    expired: int
    """Operations that reached their deadline."""
    cancelled: int
    """Operations that were cancelled, or whose client left."""
    drained: int
    """Operations that ended because the process shuts down."""
    outdated: int
    """Operations that ended because signals that they waited for were lost or are no longer
    kept."""
    is_draining: bool
    """The process is shutting down."""
    signals: SignalStatistics
    """The signals that are kept."""
    shared_signals: SharedSignalStatistics | None
    """How signals are exchanged with other processes; None if they are in memory."""
    timers: int
    """Timers that are pending; one of them ages the signals that are kept."""
    levels: tuple[LevelStatistics, ...]
    """The timing wheel, the finest level first."""
    wake_ups: int
    """How often the event loop was woken for the timer."""
    longest_turn_ms: float
    """The longest that expirations have held the event loop at once, since it was last opened."""
    longest_lateness_ms: int
    """The longest that a timer ran after its time."""
    is_compiled: bool
    """The core runs compiled, not as plain Python."""
    jobs: JobStatistics | None
    """Delayed jobs in this process; None without a store of jobs."""
    refused: dict[str, int]
    """How often each bound on what waits was reached, by the bound's name."""


class Purgatory:
    """Delayed operations on an event loop: park until a key fires, fire it, and drain.

    With a store of jobs, also delayed jobs: defer one until a deadline, or until a key fires.

    Open it with `async with`, or let `purgatory.fastapi.install` do so. It belongs to the event
    loop and the thread on which it was opened; other threads and signal handlers use
    `run_threadsafe`. It may be opened several times on this loop and closes with the last of them.

    Once closed it can be opened again, on any loop: waits, timers and the worker of jobs start
    anew. Signals stay in memory, so cursors remain valid. The counts of
    `statistics` go on too; `longest_turn_ms` and those of the worker's recovery start anew.
    """

    def __init__(
        self,
        name: str = "purgatory",
        *,
        limits: Limits | None = None,
        tick_ms: int = 1,
        wheel_size: int = 256,
        clock: Clock | None = None,
        listeners: Iterable[Listener | Recorder] = (),
        jobs: JobStore | None = None,
        job_settings: WorkerSettings | None = None,
        signals: RedisSignals | None = None,
    ) -> None:
        """Make a purgatory. `tick_ms` is the precision of deadlines: never early, up to it late.

        `listeners` are called for operations; JobRecorders also for jobs that end.
        It opens and closes `jobs`, and runs those jobs for which it has a handler. It opens and
        closes `signals`, which it shares with other processes; without, its
        signals are in memory.
        """
        check_type("name", name, str, "a string: other arguments are named, as in jobs=store")
        self.name: str = name
        if limits is not None:
            check_type("limits", limits, Limits, "Limits(max_parked=...)")
        if jobs is not None and (isinstance(jobs, type) or not hasattr(jobs, "limits")):
            raise wrong_type("jobs", jobs, 'a job store, such as SqlJobStore("sqlite:///jobs.db")')
        if clock is not None and (isinstance(clock, type) or not hasattr(clock, "now_ns")):
            example = "a clock, such as current_clock() of purgatory.testing, or leave it out"
            raise wrong_type("clock", clock, example)
        if not hasattr(listeners, "__iter__"):
            raise wrong_type("listeners", listeners, "a list of them, as in [listener]")
        self.limits: Limits = Limits() if limits is None else limits
        self.clock: Clock = SystemClock() if clock is None else clock
        if signals is not None and (isinstance(signals, type) or not hasattr(signals, "bind")):
            raise wrong_type("signals", signals, 'RedisSignals("redis://...")')
        self.shared_signals: RedisSignals | None = signals
        self.signals: MemorySignals = (
            MemorySignals(clock=self.clock, limits=self.limits)
            if signals is None
            else signals.bind(self.clock, self.limits)
        )
        self._timer = SystemTimer(tick_ms=tick_ms, wheel_size=wheel_size, clock=self.clock)
        self._listeners = listeners = tuple(listeners)
        self._operations = DelayedOperationPurgatory(name, self._timer, listeners=listeners)
        max_age_ms = math.ceil(self.limits.max_signal_age * 1000)
        self._trims = [
            HistoryTrimmer(each, self._timer, max_age_ms) for each in self.signals.parts()
        ]
        self._parking = Parking(
            name, self.limits, self.clock, self.signals, self._operations, self._trims[0]
        )
        if signals is not None:
            signals.peers.answers["waiting"] = self.waiting
        # Keys that `cancel` has dropped: an entry of the signals each, as a fire is one.
        self._drops = 0
        self._reaper: ExpirationReaper | None = None
        self._drained: asyncio.Future[int] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._thread_calls = ThreadCalls(name)
        self._handlers: JobHandlers | None = None
        self._jobs: Jobs | None = None if jobs is None else self._jobs_of(jobs, job_settings)

    def _jobs_of(self, store: JobStore, settings: WorkerSettings | None) -> Jobs:
        # Here: an application without jobs would import a hundred modules that it never uses. Not
        # at the first request either.
        from purgatory.jobs.jobs import Jobs

        return Jobs(
            store,
            self.handlers,
            timer=self._timer,
            signals=self.signals,
            park=self.park_operation,
            require_open=self._parking.require_open,
            delay_ms=self._parking.delay_ms,
            fire_all=self._fire_stored,
            shared_signals=self.shared_signals,
            settings=settings,
            listeners=self._listeners,
        )

    async def __aenter__(self) -> Self:
        """Open the purgatory on the running event loop, and its store of jobs.

        A store that cannot be reached is tried again until it can; `missing` says so meanwhile.
        Raises StoreNotReadyError, and what `open` raises.
        """
        self.open()
        try:
            if self.shared_signals is not None:
                await self.shared_signals.opened()
            if self._jobs is not None:
                await self._jobs.opened()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Close the purgatory: callers still parked get an outcome with status "drained"."""
        await self.close()

    def __repr__(self) -> str:
        """Return the name, the state and the number of parked operations."""
        state = "closed" if not self.is_open else "draining" if self.is_draining else "open"
        return f"<Purgatory {self.name!r}: {state}, {self.parked} parked>"

    def add_listener(self, listener: Listener | Recorder) -> None:
        """Add a listener like those of `Purgatory(listeners=...)`; only before it is opened.

        Raises RuntimeError while the purgatory is open.
        """
        if self._parking.opened:
            raise RuntimeError(
                f"purgatory {self.name!r} is open: add listeners before, or give them to Purgatory("
                "listeners=[...])"
            )
        self._listeners = (*self._listeners, listener)
        self._operations.add_listener(listener)
        if self._jobs is not None:
            self._jobs.set_listeners(self._listeners)

    @property
    def missing(self) -> list[str]:
        """Why jobs are not run or signals not exchanged now, a sentence each. Empty if they are."""
        shared = [] if self.shared_signals is None else self.shared_signals.missing
        return shared + ([] if self._jobs is None else self._jobs.missing)

    @property
    def parked(self) -> int:
        """The number of waiting operations."""
        return self._operations.delayed

    @property
    def is_open(self) -> bool:
        """True iff it was opened and not closed since."""
        return self._parking.opened > 0 and self._closing is None

    @property
    def is_draining(self) -> bool:
        """True from `drain` until it is closed: nothing is parked, and nothing will be."""
        return self._parking.is_draining

    def open(self) -> None:
        """Start on the running event loop; a second call counts, and needs its own `close`.

        A store of jobs is opened meanwhile: `async with` waits for it, this does not.

        Raises WrongThreadError while it is open on another loop, and PurgatoryClosedError while it
        drains or closes: it can be opened again as soon as `close` has returned. ValueError on an
        AutojumpEventLoop with another clock than this purgatory's, and with the clock of such a
        loop on another one.
        """
        loop = asyncio.get_running_loop()
        parking = self._parking
        if parking.loop is None:
            self._check_clock(loop)
            # What is started here goes on for long after the span in which it is.
            with self._trace_context(None):
                self._begin(loop)
        elif parking.loop is not loop:
            raise WrongThreadError(self._open_elsewhere(parking.loop))
        elif parking.is_draining or self._closing is not None:
            raise PurgatoryClosedError(
                f"purgatory {self.name!r} drains: it can be opened again after `await close()`"
            )
        parking.opened += 1

    def _check_clock(self, loop: asyncio.AbstractEventLoop) -> None:
        # With purgatory.testing: the time of one never reaches a deadline of the other.
        loop_clock = getattr(loop, "clock", None)
        if loop_clock is self.clock:
            return
        if hasattr(loop_clock, "now_ns"):
            raise ValueError(
                f"purgatory {self.name!r} has another clock than its event loop, "
                f"{type(loop).__name__}, so its deadlines would never pass: make it with "
                "Purgatory(clock=asyncio.get_running_loop().clock)"
            )
        if getattr(self.clock, "is_of_loop", False):
            raise ValueError(
                f"purgatory {self.name!r} has the clock of the fixture purgatory_clock, which "
                f"stands still on this event loop, {type(loop).__name__}, so its deadlines would "
                "never pass: run the test with the fixture purgatory_run, or with "
                "purgatory_loop_factory in anyio_backend; Starlette's TestClient has a loop of its "
                "own: use httpx.AsyncClient with ASGITransport, or Purgatory() without a clock; "
                "for pytest-asyncio, see 'Testing code that waits' in the documentation"
            )

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._drained = self._closing = None
        self._operations.is_closed = False
        self._parking.begin(loop)
        self._thread_calls.open(loop)
        woken = self._reaper.wake_ups if self._reaper else 0
        self._reaper = ExpirationReaper(self._timer, loop, wake_ups=woken)
        self._reaper.start()
        if self.signals.statistics().signals:
            # They are still kept from the last time.
            for trim in self._trims:
                trim.wake()
        if self.shared_signals is not None:
            self.shared_signals.begin(
                LogListener(self._parking, self._operations, self._run_batch, self._wake_trim)
            )
        if self._jobs is not None:
            self._jobs.begin()
        logger.info("purgatory %r is open", self.name, extra={"action": "purgatory-opened"})

    def _open_elsewhere(self, loop: asyncio.AbstractEventLoop) -> str:
        if loop.is_closed():
            return (
                f"purgatory {self.name!r} was not closed before its event loop ended, and what "
                "waited is lost: make a new one, and open it with `async with`, which closes it"
            )
        return (
            f"purgatory {self.name!r} is open on another event loop: close it there first, or make "
            "a purgatory for each loop. Applications that run at the same time in one process, as "
            "in tests, are made by a function together with their purgatory "
            "(docs/how-to/test-your-code.md)"
        )

    async def close(self) -> None:
        """Drain, stop the timer and close the store of jobs, if this matches the first `open`.

        Idempotent. It continues if the caller is cancelled. If a handler or the store of jobs fails
        to close, that error is raised once everything else is closed; the purgatory is closed then,
        too, and can be opened again. Raises WrongThreadError.
        """
        if not self._parking.opened:
            return
        loop = self._parking.require_open()
        if self._parking.opened > 1:
            self._parking.opened -= 1
            return
        if self._closing is None:
            # A task of its own: one that is cancelled would leave half of it open.
            self._closing = loop.create_task(self._close(), name="purgatory-close")
            # Not in `finally`: a loop that ends cancels the task, perhaps before its first step.
            self._closing.add_done_callback(self._end)
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                if self.shared_signals is not None:
                    stack.push_async_callback(self.shared_signals.close)
                if self._jobs is not None:
                    stack.push_async_callback(self._jobs.close)
                await self.drain()
        except Exception as exc:
            exc.add_note(f"purgatory {self.name!r} is closed all the same, and can be opened again")
            raise

    def _end(self, closing: asyncio.Task[None]) -> None:
        # What the drain has left if it was cancelled.
        self._operations.shutdown()
        assert self._reaper is not None
        self._reaper.stop()
        self._timer.close()
        self._parking.end()
        self._thread_calls.close()
        logger.info("purgatory %r is closed", self.name, extra={"action": "purgatory-closed"})

    async def park(
        self,
        *keys: str,
        timeout: Seconds,
        until: Callable[[], object] | None = None,
        cursor: str | Mapping[str, str | None] | None = None,
    ) -> Outcome:
        """Wait until one of `keys` fires, or until `timeout` seconds have passed.

        Never early, and less than a tick late. Costs an object, which is its own future: no task,
        no thread, and nothing is left behind when the awaiting task is cancelled.

        With `until`, a key that fires only makes the predicate be tried again: it is tried at once,
        again once the keys are watched, and whenever one fires (Kafka's `tryComplete`), then in a
        copy of this task's context (`contextvars`). What it raises is raised here.

        `cursor` is from `Purgatory.cursor` or an earlier outcome, for every key or one for each:
        what fired since then counts, so that nothing is lost between two waits; "0" is from the
        earliest kept. Without it, what fires from now on counts.

        While the purgatory drains the outcome is "drained" at once.

        Raises TypeError or ValueError for arguments that make no sense, InvalidKeyError,
        InvalidTimeoutError, BadCursorError, CursorExpiredError, LimitReachedError,
        PurgatoryClosedError and WrongThreadError.
        """
        if self.shared_signals is not None:
            self._parking.require_open()
            await self._catch_up(keys, cursor)
        operation = self._parking.park(keys, timeout, until, cursor)
        try:
            await operation
        except BaseException:
            # If the awaiting task was cancelled, the operation is out at once.
            operation.abandon()
            raise
        return operation.outcome

    @overload
    async def fire(self, key: str, value: Any = None, owner: str | None = None) -> FireResult: ...
    @overload
    async def fire(
        self, key: str, value: Any = None, owner: str | None = None, *, session: object
    ) -> None: ...
    # Both may be positional: keyword-only, `owner` would take 4 % of a fire, also if not given.
    async def fire(
        self, key: str, value: Any = None, owner: str | None = None, session: object | None = None
    ) -> FireResult | None:
        """Fire `key`: keep the signal, and try every operation that watches it.

        `value` is any JSON value, or a pydantic model, which is dumped as one. Waiters get it as
        JSON has it: a tuple as a list, keys as strings. Returns once every operation that was
        waiting has been tried; very many are tried over several turns of the event loop, and all of
        them are even if the caller is cancelled meanwhile.

        Delayed jobs on the key are decided too, in whichever process they wait; where certainly
        there is none, the store of jobs is not asked. Where it is away, or takes longer than a
        second, `jobs_pending` says so: those jobs that were deferred before this fire are decided
        when it is back, by any process where signals are shared, by this one where they are in
        memory. Where it refuses, or more is pending than there is room for, JobsNotFiredError says
        so: the signal is kept and the operations were tried all the same, and another fire decides
        the jobs that are left.

        `owner` is on whose behalf the key is fired. Once the memory for signals is full, an owner
        that has more than an equal part of it loses its oldest signals first, so that one who fires
        very many evicts nobody else's. Fires without an owner are those of one more.

        With shared signals it returns once the signal is in their log, and was applied here.

        `session` is an AsyncSession or AsyncConnection of SQLAlchemy on the database of an
        SqlJobStore. Then the fire is stored, None is returned, and once the session's transaction
        is committed this purgatory fires: soon, and if its process ends, another one. If it is
        rolled back, nothing fires. Raises what `defer` raises, too.

        Raises InvalidKeyError, InvalidValueError, PurgatoryClosedError, WrongThreadError and, for
        shared signals, SignalsUnavailableError: then it may or may not have fired.
        """
        if value is not None:
            value = json_value(value)
        if owner is not None:
            check_type("owner", owner, str, "a string, such as the id of a user")
        if session is not None:
            await self._fire_in(session, key, value, owner)
            return None
        if self.shared_signals is not None:
            (shared,) = cast(list[FireResult], await self.fire_shared([(key, value)], owner=owner))
            return shared
        fired = self._parking.fire(key, value, owner)
        if fired.completed == UNTRIED:
            completed = await self._run_batch(self._operations.check_batch(key))
            fired = fired._replace(completed=completed)
        jobs = self._jobs
        if jobs is not None and jobs.may_wait_on(key):
            return await self._fire_jobs(jobs, key, value, fired)
        return fired

    async def _fire_in(self, session: object, key: str, value: Any, owner: str | None) -> None:
        jobs = self.jobs
        jobs.require_open()
        check_key(key)
        value_json = self.signals.encode(value).decode()
        await jobs.fire_in(session, key, value_json, owner)

    async def _fire_stored(self, fires: Sequence[StoredFire]) -> None:
        """Fire what was stored, without the jobs: they are decided in the store."""
        if self.shared_signals is None:
            for fire in fires:
                with self._trace_context(fire.traceparent):
                    fired = self._parking.fire(fire.key, stored_value(fire.value_json), fire.owner)
                    if fired.completed == UNTRIED:
                        _ = self._run_batch(self._operations.check_batch(fire.key))
            return
        # At the same time, to share the round trips; begun in order, and so in the log.
        await asyncio.gather(*(self._append_stored(fire) for fire in fires))

    async def _append_stored(self, fire: StoredFire) -> None:
        assert self.shared_signals is not None
        with self._trace_context(fire.traceparent):
            await self.shared_signals.append(
                [(EntryType.FIRED, fire.key, fire.value_json.encode())],
                idempotency=Idempotency(
                    owner="outbox",
                    name=f"{fire.origin}:{fire.number}",
                    fingerprint=fire.key,
                    is_of_one_key=True,
                ),
            )

    def _trace_context(self, traceparent: str | None) -> AbstractContextManager[object]:
        """Return a context in which `traceparent` is current; outside any trace if it is None."""
        # Tracing sets it on the handlers, which are not made for this.
        propagation = None if self._handlers is None else self._handlers.propagation
        return nullcontext() if propagation is None else propagation.restore(traceparent)

    async def fire_shared(
        self,
        items: Sequence[tuple[str, Any]],
        *,
        unless_after: int | None = None,
        idempotency: Idempotency | None = None,
        owner: str | None = None,
    ) -> list[FireResult] | bytes:
        """Fire keys with values, all or none, with the conditions of `RedisSignals.append`.

        Only where signals are shared. Raises what `fire` raises, and SignalsConflictError.
        """
        self._parking.require_open()
        assert self.shared_signals is not None
        for key, _ in items:
            check_key(key)
        entries: list[tuple[EntryType, str, bytes]] = []
        budget = TurnBudget()
        for key, value in items:
            if entries:
                # Not with a single one: what is fired first is appended first.
                await budget.yield_if_spent()
            entries.append((EntryType.FIRED, key, self.signals.encode(value)))
        fired = await self.shared_signals.append(
            entries, unless_after=unless_after, idempotency=idempotency, owner=owner
        )
        jobs = self._jobs
        if jobs is None or isinstance(fired, bytes):
            return fired
        asked = await jobs.indexes_waited_on([key for key, _ in items])
        # At the same time, to share the round trips to the store.
        decided = await asyncio.gather(
            *(self._fire_jobs(jobs, *items[index], fired[index]) for index in asked),
            return_exceptions=True,
        )
        for index, result in zip(asked, decided, strict=True):
            if isinstance(result, BaseException):
                raise result
            fired[index] = result
        return fired

    async def _catch_up(
        self, keys: tuple[str, ...], cursor: str | Mapping[str, str | None] | None
    ) -> None:
        shared = self.shared_signals
        assert shared is not None
        shared.require_loaded()
        if cursor is not None:
            positions = await self._known_positions(shared, keys, cursor)
            await shared.catch_up(tuple(positions), tuple(positions.values()))

    async def _known_positions(
        self,
        shared: RedisSignals,
        keys: tuple[str, ...],
        cursor: str | Mapping[str, str | None],
    ) -> dict[str, int]:
        for _ in range(3):
            try:
                return self._parking.positions(keys, cursor)
            except SignalsUnavailableError:
                # Of a time of the log that was not read here yet.
                await shared.refresh()
        return self._parking.positions(keys, cursor)

    def _wake_trim(self, key: str) -> None:
        """Age the signals of the log that has `key`; the timers of idle logs stay off."""
        self._trims[self.signals.part_number(key)].wake()

    async def _fire_jobs(self, jobs: Jobs, key: str, value: Any, fired: FireResult) -> FireResult:
        try:
            count = await jobs.fire(key, value, self.limits.max_value_bytes)
        except StoreError as exc:
            raise JobsNotFiredError(key, fired.cursor, exc.detail) from exc
        if count is None:
            return fired._replace(jobs_pending=True)
        return fired._replace(jobs=count)

    @property
    def jobs(self) -> Jobs:
        """The delayed jobs: list, change, cancel, retry and pause them.

        Raises NoJobStoreError if the purgatory has no store.
        """
        if self._jobs is None:
            raise NoJobStoreError
        return self._jobs

    @property
    def has_jobs(self) -> bool:
        """True iff the purgatory has a store of jobs."""
        return self._jobs is not None

    @property
    def handlers(self) -> JobHandlers:
        """The handlers of this process, by name."""
        if self._handlers is None:
            from purgatory.jobs.handlers.registry import JobHandlers

            self._handlers = JobHandlers()
        return self._handlers

    @overload
    def handler(  # type: ignore[overload-overlap] # the first that fits counts
        self, name: OptionalFunction[Payload, Result]
    ) -> OptionalJobFunction[Payload, Result]: ...
    @overload
    def handler(
        self, name: Callable[[JobContext, Payload], Result]
    ) -> JobFunction[Payload, Result]: ...
    @overload
    def handler(
        self, name: Callable[[JobContext], Result]
    ) -> OptionalJobFunction[None, Result]: ...
    @overload
    def handler(
        self, name: str | None = None, **options: Unpack[HandlerOptions]
    ) -> HandlerDecorator: ...
    def handler(self, name: Any = None, **options: Unpack[HandlerOptions]) -> Any:
        """Return a decorator: jobs of that name call the function, as (job, payload) or (job).

        Without a name, and as a bare `@purgatory.handler`, jobs have the name of the function. The
        options are those of `purgatory.jobs.handlers.HandlerOptions`: `http`; `max_running` and
        `max_running_per_key`; `max_attempts`, `retry`, `retried_errors` and `final_errors`; and
        `timeout`.

        The result can be called as the function can, and has a `defer` that type checkers know:
        `await cancel_order.defer(CancelOrder(order=42), delay=900)`.

        Beyond `max_running`, jobs that are due wait, the earliest due first, without costing an
        attempt. Each process applies what it declares.

        `async` functions run on the event loop, others in a thread. The payload has the type that
        the second parameter is annotated with, checked by pydantic if needed. A handler that raises
        is tried again while attempts are left: RetryJobError names the delay, FailJobError ends the
        job. It may run more than once for a job; `job.id` stays the same.

        Raises ValueError for an invalid or taken name or option, TypeError for a function that
        cannot be called so.
        """
        if not (name is None or isinstance(name, str)):
            return self._register(name, None, options)
        return lambda function: self._register(function, name, options)

    def _register(
        self,
        function: Callable[..., Any],
        name: str | None,
        options: HandlerOptions,
        grid: Grid | None = None,
        catch_up: bool = True,
    ) -> Any:
        handlers = self.handlers
        from purgatory.jobs.handlers.registry import JobFunction, handler_name, job_function

        if isinstance(function, JobFunction):
            function = function.function
        name = handler_name(function) if name is None else name
        handler = handlers.add(name, function, grid, catch_up, **options)
        return job_function(function, handler, self.defer)

    def periodic(
        self,
        name: str | None = None,
        *,
        every: Seconds | None = None,
        phase: Seconds = 0,
        cron: str | None = None,
        timezone: str | tzinfo | None = None,
        catch_up: bool = True,
        **options: Unpack[HandlerOptions],
    ) -> Callable[[Callable[[JobContext], Result]], OptionalJobFunction[None, Result]]:
        """Return a decorator: the function of (job) runs periodically, once over all processes.

            @purgatory.periodic(every=5)
            @purgatory.periodic(cron="0 6 * * mon-fri", timezone="Europe/Berlin")

        The times of `every` are those that are `phase` seconds after a multiple of it since
        1970-01-01 UTC, in every process and after every restart: one second at least. The times of
        `cron` (minute, hour, day of the month, month, day of the week; needs the extra `cron`) are
        on the clocks of `timezone`, by default UTC; `purgatory.jobs.cron.CronGrid` says what is
        when they are set. `job.deadline` is the time that a run is for.

        Each run is a job of its own: attempts and failures are as of any job, and end nothing but
        that run. It is stored as soon as the one before has begun, once the store can be reached.
        Of the times at which no process has started one, the first has a run when a process can,
        and the others have none; without `catch_up`, it is missed, too.

        `name` and `options` are as in `handler`. Raises what that raises, ValueError for times that
        make no sense, NoJobStoreError without a store, and ImportError without the extra.
        """
        if self._jobs is None:
            raise NoJobStoreError
        if (every is None) == (cron is None):
            raise ValueError("a periodic job has either every= or cron=: give one of the two")
        if "max_running_per_key" in options:
            raise ValueError("runs of a periodic job share one key: give max_running instead")
        if timezone if cron is None else phase:
            raise ValueError("timezone= is for cron=, and phase= for every=")
        grid: Grid
        if cron is None:
            assert every is not None
            from purgatory.jobs.handlers.handler import EveryGrid

            grid = EveryGrid.of(every, phase)
        else:
            from purgatory.jobs.cron import CronGrid

            grid = CronGrid(cron, timezone or "UTC")

        return lambda function: self._register(function, name, options, grid, catch_up)

    def handled_elsewhere(self, names: Iterable[str], *, http: bool = False) -> None:
        """Allow to defer jobs of these names, which another service on the same store runs.

        `http` also allows requests to `POST /jobs` to name them.
        """
        self.handlers.expect(names, http=http)

    async def defer(
        self,
        handler: str,
        payload: Any = None,
        *,
        since: str | Mapping[str, str] | None = None,
        session: object | None = None,
        **options: Unpack[JobOptions],
    ) -> JobHandle:
        """Run a handler `delay` seconds from now, or `at` a time, or when `keys` fire.

        Once this has returned, the handler runs at least once and one outcome is recorded, even if
        processes die; unless the job is cancelled, or a key fires with `on_fire="cancel"`, or it is
        missed with `misfire="skip"`.

        The options are those of `purgatory.jobs.model.spec.JobOptions`: `delay` or `at`; `keys`,
        `until` and `on_fire`; `dedupe_key` and `on_conflict`; `concurrency_key`, `max_attempts`,
        `misfire`, `ceiling` and `idempotency_key`. With the last, `handle.added.is_repeat` is True
        for a call that repeats an earlier one.

        `since` is a cursor from `Purgatory.cursor` or an outcome, or one for some of the keys: what
        fired since then counts, in any process that shares the signals. Without it, what fires once
        the job is stored counts. A job whose deadline is now may run before that is looked at.

        `session` is an AsyncSession or AsyncConnection of SQLAlchemy on the database of an
        SqlJobStore: the job is stored by its commit, and not at all if that is rolled back. Not
        together with `since`.

        After StoreUnavailableError the job may be stored or not: with an idempotency key, the same
        call again is safe. With `since`, so is it after SignalsUnavailableError, which may leave a
        job that has not counted what fired.

        Raises NoJobStoreError, PurgatoryClosedError and WrongThreadError; UnknownHandlerError,
        InvalidPayloadError, InvalidDeadlineError, InvalidKeyError, InvalidJobError,
        DuplicateJobError and StoreFullError; IdempotencyConflictError if the idempotency key was
        used with other arguments than these (`since` and `session` aside); BadCursorError and
        CursorExpiredError, after which no job waits; TypeError for an argument of the wrong type.
        """
        return await self.jobs.defer(handler, payload, since=since, session=session, **options)

    def job(self, job_id: str) -> JobHandle:
        """Return a handle of a job. No I/O: its methods raise JobNotFoundError."""
        return self.jobs.handle(job_id)

    def cursor(self, *keys: str) -> str:
        """Return the current cursor: `park` with it counts what fires on `keys` from now on.

        For reading a database, then waiting, without missing what fires in between:

            since = purgatory.cursor("order:42")
            order = await read_order(42)
            outcome = await purgatory.park("order:42", timeout=25, cursor=since)

        An opaque string, which clients may send back as `cursor=` over HTTP. Use it with these keys
        only: a cursor need not have the positions of others.

        Raises ValueError without keys or for too many, InvalidKeyError, PurgatoryClosedError and
        WrongThreadError.
        """
        self._parking.require_open()
        self._parking.positions(keys, None)
        if self.shared_signals is not None:
            self.shared_signals.require_loaded()
        return self.signals.cursor_of(keys)

    def run_threadsafe(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine of this purgatory on its event loop: from a thread or a signal handler.

            purgatory.run_threadsafe(purgatory.fire("order:42")).result()

        As `asyncio.run_coroutine_threadsafe`, without naming the loop. The future's `result()`
        blocks, so call it in a thread, such as that of a `def` endpoint, and not in a signal
        handler. A failure that is not retrieved is logged.

        Raises PurgatoryClosedError, here or through the future, and TypeError for what is no
        coroutine.
        """
        return self._thread_calls.run(coroutine)

    async def cancel(self, key: str) -> int:
        """End every operation on `key` with status "cancelled"; return how many there were.

        The key's history is dropped: cursors from before are expired for it.
        Raises InvalidKeyError, PurgatoryClosedError and WrongThreadError.
        """
        self._parking.require_open()
        check_key(key)
        if self.shared_signals is not None:
            dropped = await self.shared_signals.append([(EntryType.DROPPED, key, b"")])
            self._drops += 1
            return cast(list[FireResult], dropped)[0].completed
        self.signals.drop(key)
        self._drops += 1
        return await self._run_batch(self._operations.cancel_batch(key))

    async def drain(self) -> int:
        """Refuse new operations, and end all with status "drained"; return how many there were.

        Every outcome has a cursor that is good for another wait. Jobs that wait here are given back
        at once; handlers that run have some seconds to end (`WorkerSettings.grace_ms`). Idempotent:
        a second call waits for the first. Raises PurgatoryClosedError and WrongThreadError.
        """
        ended = await asyncio.shield(self.begin_drain())
        if self._jobs is not None:
            await asyncio.shield(self._jobs.begin_drain())
        return ended

    def begin_drain(self) -> asyncio.Future[int]:
        """Start to drain without waiting: for a signal handler, through the loop."""
        self._parking.require_open()
        if self._drained is None:
            self._parking.is_draining = True
            logger.info(
                "purgatory %r drains %d parked operations",
                self.name,
                self.parked,
                extra={"action": "purgatory-draining"},
            )
            self._drained = self._run_batch(self._operations.shutdown_batch())
            if self.shared_signals is not None:
                self.shared_signals.hurry()
            if self._jobs is not None:
                # A task that nobody needs to wait for: it is shared by all who do.
                _ = self._jobs.begin_drain()
        return self._drained

    def park_operation(
        self, operation: DelayedOperation, keys: Iterable[Hashable], *, is_bounded: bool = True
    ) -> bool:
        """Try `operation`, else park it on `keys`; return True iff it completed at once.

        For operations of your own, which are called back instead of awaited. See
        `DelayedOperationPurgatory.try_complete_else_watch`.

        A key is a string, as for `park`, or any other hashable value, such as a tuple. `check`
        reaches both, `fire` only strings; operators see and cancel only these.

        `is_bounded=False` exempts it from the bounds on what waits at once: for an operation that
        the application itself cannot do without, however many requests are parked.

        Raises LimitReachedError where no more may wait, InvalidKeyError, PurgatoryDrainingError,
        PurgatoryClosedError and WrongThreadError.
        """
        if not isinstance(keys, (list, tuple)):  # for the cost of a call
            check_keys_type(keys)
        is_completed = self._parking.park_operation(operation, tuple(keys), is_bounded)
        if noting:
            note_operation(operation)
        return is_completed

    def check(self, key: Hashable) -> asyncio.Future[int]:
        """Try every operation on `key` without a signal, for conditions of your own.

        Returns a future of how many it completed, which need not be awaited.
        """
        loop = self._parking.require_open()
        completed = self._parking.check(key)
        if not completed:
            return self._parking.none_completed
        if completed == UNTRIED:
            return self._run_batch(self._operations.check_batch(key))
        done: asyncio.Future[int] = loop.create_future()
        done.set_result(completed)
        return done

    def statistics(self) -> Statistics:
        """Return exact counts: the current ones, and those since the start."""
        counts = self._operations.statistics()
        shared = None if self.shared_signals is None else self.shared_signals.statistics()
        # Each fire and each drop is an entry, so the fast path of a fire counts nothing for this.
        appended = self.signals.head() if shared is None else shared.appended
        return Statistics(
            parked=counts.delayed,
            keys=counts.keys,
            watched=counts.watched,
            parked_bytes=counts.bytes,
            fires=appended - self._drops,
            fired=counts.fired,
            expired=counts.expired,
            cancelled=counts.cancelled,
            drained=counts.drained,
            outdated=counts.outdated,
            is_draining=self._parking.is_draining,
            signals=self.signals.statistics(),
            shared_signals=shared,
            timers=len(self._timer),
            levels=tuple(
                LevelStatistics(
                    level.tick_ms, level.interval_ms, len(buckets), sum(map(len, buckets))
                )
                for level in self._timer.wheel.levels()
                for buckets in [level.buckets()]
            ),
            wake_ups=self._reaper.wake_ups if self._reaper else 0,
            longest_turn_ms=self._reaper.longest_turn_ns / NS_PER_MS if self._reaper else 0.0,
            longest_lateness_ms=self._timer.longest_lateness_ms,
            is_compiled=compiled,
            jobs=None if self._jobs is None else self._jobs.statistics(),
            refused=self._parking.refused.copy(),
        )

    def count_refusal(self, limit: str) -> None:
        """Count in `statistics().refused` that a bound of yours was reached, called `limit`."""
        self._parking.count_refusal(limit)

    def inspection(self) -> Inspection:
        """Return read access to waits and wheel for operators, such as the dashboard."""
        return Inspection(self._operations, self._timer, self.clock)

    def watched_keys(self) -> dict[str, int]:
        """Return the keys that are watched, if strings, and how many operations wait on each."""
        keys = self._operations.keys()
        return {key: self._operations.count(key) for key in keys if isinstance(key, str)}

    def waiting(self, key: Hashable) -> int:
        """Return how many operations wait on `key`."""
        return self._operations.count(key)

    async def waiting_everywhere(self, key: str) -> int:
        """Return how many operations wait on `key` in all processes that share its signals.

        A process that does not answer within a second is left out. Raises SignalsUnavailableError.
        """
        here = self.waiting(key)
        if self.shared_signals is None:
            return here
        return here + sum(await self.shared_signals.peers.ask("waiting", key, int))

    def delay_ms(self, timeout: Seconds) -> int:
        """Return `timeout` seconds as whole milliseconds, rounded up; raise InvalidTimeoutError."""
        return self._parking.delay_ms(timeout)

    def positions(
        self, keys: Iterable[str], cursor: str | Mapping[str, str | None] | None = None
    ) -> dict[str, int]:
        """Return the position after which to wait on each key; raise for invalid ones."""
        return self._parking.positions(keys, cursor)

    def _run_batch(self, batch: ResumableBatch) -> asyncio.Future[int]:
        return SlicedRunner(batch, self._parking.require_open(), self.clock).start()
