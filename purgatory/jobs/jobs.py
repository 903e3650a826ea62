"""The jobs of a purgatory: what an application does with them, and its worker on their store."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Unpack

from purgatory.errors import PurgatoryDrainingError
from purgatory.job_errors import InvalidJobError, JobError, StoreError, StoreUnavailableError
from purgatory.job_statistics import JobStatistics
from purgatory.jobs.commands import JobCommands
from purgatory.jobs.handlers.registry import JobHandlers
from purgatory.jobs.job_watchers import JobWatchers, ParkOperation
from purgatory.jobs.model.job import Job
from purgatory.jobs.model.spec import JobOptions, JobSpec
from purgatory.jobs.model.steps import Add, Added, AddStatus, Fire
from purgatory.jobs.owed_fires import FireAll, OutboxRelay, PendingFire, PendingFires
from purgatory.jobs.periodic import PeriodicRegistrar
from purgatory.jobs.stores.memory import MemoryJobStore
from purgatory.jobs.stores.protocol import CanHurry, JobStore, NewFire, Outbox
from purgatory.jobs.worker.result_reporter import on_job_end
from purgatory.jobs.worker.scheduler import JobScheduler
from purgatory.jobs.worker.settings import WorkerCounters, WorkerSettings
from purgatory.jobs.worker.signals_since import AddResult, MissedFires
from purgatory.jobs.worker.worker_store import OUTAGES, StoreClock, StoreOpener, WorkerStore
from purgatory.json_value import VALUE, encode_json
from purgatory.operations.operation_listeners import Listener, Recorder
from purgatory.outcome import Status
from purgatory.signals.memory import MemorySignals
from purgatory.timer import SystemTimer
from purgatory.timer.clock import Seconds, seconds_of
from purgatory.trace_context import current_traceparent
from purgatory.turn_budget import TurnBudget

if TYPE_CHECKING:
    from purgatory.signals.redis import RedisSignals

logger = logging.getLogger("purgatory.jobs")

# A fire does not wait longer for the store: it is then pending, and its jobs are decided later.
ACKNOWLEDGE_MS: Final = 1_000
_LOOKED_UP_TOGETHER: Final = 16


class Jobs(JobCommands):
    """The jobs of one purgatory, as `Purgatory.jobs`: defer, read and change them; and its worker.

    On the purgatory's event loop; the worker runs from each opening to its closing. Every coroutine
    here raises PurgatoryClosedError, WrongThreadError, and StoreUnavailableError: then the request
    may or may not be done, and repeating it is safe, except for `defer` without an idempotency key,
    `retry` and `reschedule`, which say how.
    """

    def __init__(
        self,
        store: JobStore,
        handlers: JobHandlers,
        *,
        timer: SystemTimer,
        signals: MemorySignals,
        park: ParkOperation,
        require_open: Callable[[], object],
        delay_ms: Callable[[float], int],
        fire_all: FireAll,
        shared_signals: RedisSignals | None,
        settings: WorkerSettings | None = None,
        listeners: Iterable[Listener | Recorder] = (),
    ) -> None:
        """Prepare. `signals`, `park`, `require_open` and `delay_ms` are those of the purgatory.

        `fire_all` fires what transactions have stored. `shared_signals` are those that are shared
        with other processes, if they are: they also keep the fires whose jobs are not decided yet.

        Those `listeners` that record jobs are called with each job that ended by this process, once
        the store has recorded it.
        """
        super().__init__(store)
        if isinstance(store, MemoryJobStore):
            # Other stores have the clock of their server, which all workers share.
            store.use_clock(timer.clock)
        self.handlers = handlers
        self.settings = WorkerSettings() if settings is None else settings
        self.require_open = require_open
        self.delay_ms = delay_ms
        self.clock = timer.clock
        self._store_clock = StoreClock(timer.clock)
        self.watchers = JobWatchers(
            store, self.get, park=park, timer=timer, store_clock=self._store_clock
        )
        self._on_end = on_job_end(listeners)
        self._missed_fires = MissedFires(store, signals, shared_signals, self._on_end)
        self._timer = timer
        self._fire_all = fire_all
        self._shared_signals = shared_signals
        # By the store's clock: the newest job that was acknowledged here.
        self._acked_ms = 0
        self._counters = WorkerCounters()
        self._unsubscribe: Callable[[], object] = lambda: None
        self._prepare()

    def set_listeners(self, listeners: Iterable[Listener | Recorder]) -> None:
        """Replace the listeners; while closed."""
        self._on_end = self._missed_fires.on_end = on_job_end(listeners)

    def _prepare(self) -> None:
        """Make what is used from one opening to its closing, on one event loop."""
        worker_store = WorkerStore(
            self.store,
            worker=_worker_name(),
            settings=self.settings,
            clock=self._store_clock,
            counters=self._counters,
        )
        self._scheduler = JobScheduler(
            worker_store,
            self.handlers if self.settings.runs_handlers else JobHandlers(),
            timer=self._timer,
            on_end=self._on_end,
            missed_fires=self._missed_fires,
        )
        self._relay: OutboxRelay | None = None
        if isinstance(self.store, Outbox):
            self._relay = OutboxRelay(
                self.store,
                origin=_worker_name(),
                fire_all=self._fire_all,
                is_shared=self._shared_signals is not None,
                on_cancelled=self._notify_ends,
                clock=self.clock,
            )
        self._periodic = PeriodicRegistrar(
            self.store, self.handlers, self._store_clock, self._on_end
        )
        self._opener = StoreOpener(self.store, self._start)
        self._pending_fires = PendingFires(
            self.store,
            self._shared_signals,
            is_open=lambda: self._opener.is_open,
            on_end=self._on_end,
        )
        self._draining: asyncio.Task[None] | None = None

    # Lifetime

    def begin(self) -> None:
        """Begin to open the store, on the running event loop; again after `close`."""
        self._prepare()
        self._opener.begin()

    async def opened(self) -> None:
        """Return once the store is open, or is out of reach and will be tried again.

        Raises what `StoreOpener.wait` raises.
        """
        await self._opener.wait()

    def begin_drain(self) -> asyncio.Task[None]:
        """Begin to drain: run no more jobs, release those held. A second call is the same drain."""
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain())
        return self._draining

    async def close(self) -> None:
        """Drain, and close the handlers and the store. Call it once for each `begin`."""
        try:
            await asyncio.shield(self.begin_drain())
        finally:
            self._unsubscribe()
            self._opener.note_closed()
            try:
                await self.handlers.close()
            finally:
                await self.store.close()

    @property
    def missing(self) -> list[str]:
        """Why this process does not run jobs now, for /readyz."""
        if not self._opener.is_open:
            return ["the job store is not open: the log and the statistics have the reason"]
        return self._scheduler.missing

    def statistics(self) -> JobStatistics:
        """Return the statistics of this process."""
        found = self._scheduler.statistics()
        return found if self._opener.is_open else replace(found, store_error=self._opener.error)

    # Requests to the store

    def ready(self) -> JobStore:
        """Return the store; raise StoreUnavailableError if it is not open yet."""
        self.require_open()
        if not self._opener.is_open:
            raise StoreUnavailableError(
                f"the job store is not open: {self._opener.error}; nothing was done: try again"
            )
        return self.store

    async def defer(
        self,
        handler: str,
        payload: Any = None,
        *,
        since: str | Mapping[str, str] | None = None,
        session: object | None = None,
        **options: Unpack[JobOptions],
    ) -> JobHandle:
        """Add a job and return its handle; see `Purgatory.defer`."""
        spec = self.spec(handler, payload, since=since, **options)
        [added] = await self.add([spec], session=session)
        if not isinstance(added, Added):
            raise added
        return JobHandle(self, added.job.id, added)

    def spec(
        self,
        handler: str,
        payload: Any = None,
        *,
        since: str | Mapping[str, str] | None = None,
        **options: Unpack[JobOptions],
    ) -> JobSpec:
        """Return the checked job that `defer` would add; raises what `defer` raises. No I/O."""
        self.require_open()

        def encode(payload: Any, max_bytes: int) -> str:
            return self.handlers.payload_of(handler).encode(payload, max_bytes)

        known = self.handlers.get(handler)
        if known is not None and options.get("max_attempts") is None:
            options["max_attempts"] = known.max_attempts
        wall_ms = self.clock.wall_ms()
        spec = JobSpec.of(
            handler, payload, wall_ms=wall_ms, limits=self.limits, encode=encode, **options
        )
        if since is None:
            return spec
        return replace(spec, since=self._missed_fires.positions(spec.keys, since))

    async def add(
        self, specs: Sequence[JobSpec], *, session: object | None = None
    ) -> Sequence[AddResult]:
        """Add jobs made by `spec`; return for each what was done, or why it was refused.

        With `session` in its transaction; without, at once, and then what fired since the positions
        of a spec counts. Raises what `MissedFires.count` raises.
        """
        has_since = any(spec.since for spec in specs)
        traceparent = current_traceparent(self.handlers.propagation)
        if traceparent is not None:
            specs = [replace(spec, traceparent=traceparent) for spec in specs]
        results: Sequence[Added | JobError]
        if session is None:
            results = await self.ready().run([Add(spec) for spec in specs])
            for result in results:
                if isinstance(result, Added):
                    self._acked_ms = max(self._acked_ms, result.job.created_ms)
        elif has_since:
            raise InvalidJobError(
                "since is given with a session: what fires until its commit would not count; "
                "leave one of them out",
                param="since",
            )
        else:
            outbox, _ = self._outbox()
            results = await outbox.add_in(session, specs)
        # If a transaction is rolled back, that takes the job back, and its id is that of no other.
        self._note_deferred(results)
        return await self._missed_fires.count(specs, results) if has_since else results

    def _note_deferred(self, results: Sequence[Added | JobError]) -> None:
        note = self.handlers.on_deferred
        if note is None:
            return
        for result in results:
            # One that is kept, or of a repeat, was deferred by another call.
            if not isinstance(result, Added) or result.is_repeat:
                continue
            if result.status is not AddStatus.KEPT:
                note(result.job.id)

    async def fire_in(self, session: object, key: str, value_json: str, owner: str | None) -> None:
        """Store a fire in the transaction of `session`: it is fired once that is committed."""
        outbox, relay = self._outbox()
        traceparent = current_traceparent(self.handlers.propagation)
        fire = NewFire(
            key=key,
            value_json=value_json,
            owner=owner,
            origin=relay.origin,
            traceparent=traceparent,
        )
        await outbox.fire_in(session, fire, relay.wake)

    def _outbox(self) -> tuple[Outbox, OutboxRelay]:
        store = self.ready()
        if self._relay is None or not isinstance(store, Outbox):
            raise TypeError(
                f"session needs jobs in a database, and they are in a {type(store).__name__}: make "
                "the purgatory with an SqlJobStore on the database of the session"
            )
        return store, self._relay

    def handle(self, job_id: str) -> JobHandle:
        """Return a handle of a job; see `Purgatory.job`."""
        self.require_open()
        return JobHandle(self, job_id)

    def may_wait_on(self, key: str) -> bool:
        """Return False only if certainly no job waits on `key`. Immediate."""
        return not self._opener.is_open or self.store.may_wait_on(key)

    async def indexes_waited_on(self, keys: Sequence[str]) -> list[int]:
        """Return the indexes of the keys for which `may_wait_on` returns True, in slices."""
        budget, found = TurnBudget(), []
        for index, key in enumerate(keys):
            if self.may_wait_on(key):
                found.append(index)
            if index % _LOOKED_UP_TOGETHER == _LOOKED_UP_TOGETHER - 1:
                await budget.yield_if_spent()
        return found

    async def fire(self, key: str, value: Any, max_value_bytes: int) -> int | None:
        """Decide every job on `key`; return how many. It continues if the caller is cancelled.

        None if the store cannot do it now: the fire is then pending. Raises the store's error if
        too many are pending, and for what it has against this fire.
        """
        self.require_open()
        value_json = encode_json(value, VALUE, max_value_bytes).decode()
        # A job that was acknowledged here before has not been stored later, whatever clocks say.
        earliest_ms, latest_ms = (max(self._acked_ms, ms) for ms in self._store_clock.bounds_ms())
        error: StoreError | None = None
        if not self._pending_fires.must_wait(key):
            deciding = self._begin_to_decide(Fire(key, value_json))
            # Whatever comes of it if that takes too long: what is decided twice is decided once.
            if await self._is_done_soon(deciding):
                try:
                    return deciding.result()
                except OUTAGES as exc:
                    error = exc
        if await self._pending_fires.add(PendingFire(key, value_json, earliest_ms, latest_ms)):
            return None
        raise error or StoreUnavailableError(
            "the job store is away, and this process can keep no more fires for it"
        )

    async def _is_done_soon(self, task: asyncio.Task[Any]) -> bool:
        """Return True once a task is done; False if it takes too long, and goes on.

        It goes on, too, if the caller is cancelled. Its exception is then nobody's, and not logged.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def end(task: asyncio.Task[Any] | None = None) -> None:
            if not waiter.done():
                waiter.set_result(None)
            elif task is not None and not task.cancelled():
                task.exception()

        task.add_done_callback(end)
        # A timer of the event loop for each fire would be most of what one costs that asks its
        # store.
        timer = self._timer.call_later(ACKNOWLEDGE_MS, end)
        try:
            await waiter
        finally:
            timer.cancel()
        return task.done()

    async def _start(self) -> None:
        self._pending_fires.start()
        self._unsubscribe = self.store.subscribe(self.watchers)
        await self._look_at_store()
        await self._scheduler.start()
        self._periodic.start()
        if self._relay is not None:
            self._relay.start()

    async def _look_at_store(self) -> None:
        """Learn the store's clock, and log its warnings."""
        try:
            await self._store_clock.ask(self.store)
            for warning in await self.store.check():
                logger.warning("%s", warning, extra={"action": "store-warning"})
        except StoreError as exc:
            # An outage right after opening: the worker waits for its end.
            logger.warning(
                "could not check the job store (%s)", exc, extra={"action": "store-warning"}
            )

    async def _drain(self) -> None:
        await self._opener.stop()
        hurry = self.store.hurry if isinstance(self.store, CanHurry) else lambda: None
        stopping = [
            self._pending_fires.stop(),
            self._periodic.stop(),
            self._scheduler.drain(self.settings.grace_ms, hurry),
        ]
        if self._relay is not None:
            stopping.append(self._relay.stop())
        # Together: each may wait for a server that hangs.
        await asyncio.gather(*stopping)


class JobHandle:
    """A job by its id. No I/O until a method is called, and the job need not exist.

    Every method raises JobNotFoundError if it does not, and StoreUnavailableError.
    """

    __slots__ = ("_jobs", "added", "id")

    def __init__(self, jobs: Jobs, job_id: str, added: Added | None = None) -> None:
        """Name a job. Called by `Jobs.defer` and `Jobs.handle`."""
        self._jobs = jobs
        self.id = job_id
        self.added = added
        """The store's response to `defer`: the job as stored, and whether it is new."""

    def __repr__(self) -> str:
        """Show the id."""
        return f"<JobHandle {self.id}>"

    async def get(self) -> Job:
        """Return the job as it is now."""
        return await self._jobs.get(self.id)

    async def cancel(self) -> Job:
        """Cancel the job and return it; see `Jobs.cancel`."""
        return await self._jobs.cancel(self.id)

    async def wait(self, timeout: Seconds | None = None) -> Job:
        """Return the job once it is done, failed or cancelled.

        Raises TimeoutError after `timeout` seconds (None: no limit), PurgatoryDrainingError when
        the purgatory drains, LimitReachedError if too many wait already, and TypeError or
        InvalidTimeoutError for an invalid timeout.
        """
        return await self._wait_until(lambda job: job.state.is_final, timeout)

    async def wait_changed(self, version: int, timeout: Seconds | None = None) -> Job:
        """Return the job once its version is not `version`; raises what `wait` raises."""
        return await self._wait_until(lambda job: job.version != version, timeout)

    async def _wait_until(self, is_met: Callable[[Job], bool], timeout: Seconds | None) -> Job:
        timeout = seconds_of(timeout)
        timeout_ms = None if timeout is None else self._jobs.delay_ms(timeout)
        woken = asyncio.Event()

        async def sleep() -> bool:
            woken.clear()
            return await woken.wait()

        job, status = await self._jobs.watchers.wait_until(
            self.id, is_met, timeout_ms=timeout_ms, sleep=sleep, wake=woken.set
        )
        if status is Status.EXPIRED:
            assert timeout is not None
            raise TimeoutError(f"job {self.id} is still {job.state} after {timeout:g} seconds")
        if status is Status.DRAINED:
            raise PurgatoryDrainingError(
                f"the purgatory drains while job {self.id} is {job.state}: ask another process"
            )
        return job


def _worker_name() -> str:
    return f"{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(4)}"
