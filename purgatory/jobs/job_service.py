"""The jobs of a purgatory: its store, its worker, and the waits for jobs."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from purgatory.job_errors import (
    JobError,
    JobNotFoundError,
    StoreError,
    StoreUnavailableError,
)
from purgatory.jobs.bounded_wait import BoundedWait
from purgatory.jobs.end_listeners import on_job_end
from purgatory.jobs.handlers.registry import JobHandlers
from purgatory.jobs.job_watchers import JobWatchers, ParkOperation
from purgatory.jobs.key_jobs import KeyJobs
from purgatory.jobs.missed_fires import AddResult, MissedFires, SignalHistory
from purgatory.jobs.model.job import Job
from purgatory.jobs.model.queries import HandlerState
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import Add, Added, AddStatus, Cancel, CancelForKey, Fire, accepted
from purgatory.jobs.other_workers import OtherWorkers, overlap_ms
from purgatory.jobs.outbox_relay import FireAll, OutboxRelay
from purgatory.jobs.pending_fires import PendingFires, PendingRecords
from purgatory.jobs.store_opener import StoreOpener
from purgatory.jobs.stores.memory import MemoryJobStore
from purgatory.jobs.stores.outbox import Outbox
from purgatory.jobs.stores.protocol import CanHurry, CountsHandlers, JobStore, ListsWorkers
from purgatory.jobs.worker.scheduler import JobScheduler
from purgatory.jobs.worker.settings import WorkerSettings
from purgatory.jobs.worker.statistics import JobStatistics, WorkerCounters
from purgatory.jobs.worker.store_retry import OUTAGES
from purgatory.json_value import VALUE, encode_json
from purgatory.operations.operation_listeners import Listener, Recorder
from purgatory.timer import SystemTimer
from purgatory.trace_context import current_traceparent
from purgatory.turn_budget import TurnBudget

logger = logging.getLogger("purgatory.jobs")

# A fire does not wait longer for the store: it is then pending, and its jobs are decided later.
ACKNOWLEDGE_S: Final = 1.0
_LOOKED_UP_TOGETHER: Final = 16


class JobService:
    """The store of one purgatory, and a worker on it from each opening to its closing.

    On the purgatory's event loop. A purgatory without a store has none.
    """

    def __init__(
        self,
        store: JobStore,
        handlers: JobHandlers,
        *,
        timer: SystemTimer,
        history: SignalHistory,
        park: ParkOperation,
        require_open: Callable[[], object],
        delay_ms: Callable[[float], int],
        fire_all: FireAll,
        records: PendingRecords | None,
        settings: WorkerSettings | None = None,
        listeners: Iterable[Listener | Recorder] = (),
    ) -> None:
        """Prepare. `history`, `park`, `require_open` and `delay_ms` are those of the purgatory.

        `fire_all` fires what transactions have stored. `records` are the signals that are shared
        with other processes, if they are: they also keep the fires whose jobs are not decided yet.

        Those `listeners` that record jobs are called with each job that ended by this process, once
        the store has recorded it.
        """
        self.store = store
        if isinstance(store, MemoryJobStore):
            # Other stores have the clock of their server, which all workers share.
            store.use_clock(timer.clock)
        self.handlers = handlers
        self.limits = store.limits
        self.settings = WorkerSettings() if settings is None else settings
        self.require_open = require_open
        self.delay_ms = delay_ms
        self.clock = timer.clock
        self.watchers = JobWatchers(store, self.get, park=park, timer=timer)
        self._on_end = on_end = on_job_end(listeners)
        self._key_jobs = KeyJobs(store, on_end)
        self.history = history
        self._missed_fires = MissedFires(store, history, on_end)
        self._timer = timer
        self._fire_all = fire_all
        self._records = records
        self.allows_separate_workers = False
        """True once others may run jobs of the store although signals are in memory."""
        # By the store's clock: the newest job that was acknowledged here.
        self._acked_ms = 0
        self._counters = WorkerCounters()
        self._unsubscribe: Callable[[], object] = lambda: None
        self._prepare()

    def set_listeners(self, listeners: Iterable[Listener | Recorder]) -> None:
        """Replace the listeners; while closed."""
        self._on_end = self._key_jobs.on_end = self._missed_fires.on_end = on_job_end(listeners)

    def _prepare(self) -> None:
        """Make what is used from one opening to its closing, on one event loop."""
        worker = _worker_name()
        self._scheduler = JobScheduler(
            self.store,
            self.handlers,
            timer=self._timer,
            worker=worker,
            settings=self.settings,
            on_end=self._on_end,
            counters=self._counters,
            history=self._missed_fires,
        )
        self._other_workers: OtherWorkers | None = None
        is_looking = self._records is None and not self.allows_separate_workers
        if is_looking and isinstance(self.store, ListsWorkers):
            lease_ms, grace_ms = self.settings.lease_ms, self.settings.grace_ms
            self._other_workers = OtherWorkers(
                self.store, worker, overlap_ms=overlap_ms(lease_ms=lease_ms, grace_ms=grace_ms)
            )
        self._relay: OutboxRelay | None = None
        if isinstance(self.store, Outbox):
            self._relay = OutboxRelay(
                self.store,
                origin=_worker_name(),
                fire_all=self._fire_all,
                is_shared=self._records is not None,
                on_cancelled=self._key_jobs.notify_ends,
                clock=self.clock,
            )
        self._opener = StoreOpener(self.store, self._start)
        self._pending_fires = PendingFires(
            self.store,
            self._records,
            is_open=lambda: self._opener.is_open,
            on_end=self._on_end,
            clock=self.clock,
        )
        self._draining: asyncio.Task[None] | None = None
        self._fire_wait = BoundedWait(ACKNOWLEDGE_S)

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
            self._fire_wait.close()
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

    async def handler_counts(self) -> Mapping[HandlerState, int] | None:
        """Return how many jobs of each handler wait and run, and what blocks them.

        None if the store cannot count them. It may read all of them: ask seldom.
        """
        store = self.ready()
        return await store.handler_counts() if isinstance(store, CountsHandlers) else None

    async def add(self, specs: Sequence[JobSpec]) -> Sequence[AddResult]:
        """Store jobs; return for each what was done, or why it was refused.

        What fired since the positions of a spec counts; raises what `MissedFires.count` raises.
        """
        specs = self._traced(specs)
        results = await self.ready().run([Add(spec) for spec in specs])
        for result in results:
            if isinstance(result, Added):
                self._acked_ms = max(self._acked_ms, result.job.created_ms)
        self._note_deferred(results)
        if not any(spec.since for spec in specs):
            return results
        return await self._missed_fires.count(specs, results)

    async def add_in(self, session: object, specs: Sequence[JobSpec]) -> list[Added | JobError]:
        """Store jobs in the transaction of `session`."""
        outbox, _ = self._outbox()
        results = await outbox.add_in(session, self._traced(specs))
        # A rollback takes the job back, and its id is that of no other.
        self._note_deferred(results)
        return results

    def _traced(self, specs: Sequence[JobSpec]) -> Sequence[JobSpec]:
        """Return the specs with the current trace context, if there is one."""
        traceparent = current_traceparent(self.handlers.propagation)
        if traceparent is None:
            return specs
        return [replace(spec, traceparent=traceparent) for spec in specs]

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
        await outbox.fire_in(
            session,
            key=key,
            value_json=value_json,
            owner=owner,
            origin=relay.origin,
            on_commit=relay.wake,
            traceparent=current_traceparent(self.handlers.propagation),
        )

    def _outbox(self) -> tuple[Outbox, OutboxRelay]:
        store = self.ready()
        if self._relay is None or not isinstance(store, Outbox):
            raise TypeError(
                f"session needs jobs in a database, and they are in a {type(store).__name__}: make "
                "the purgatory with an SqlJobStore on the database of the session"
            )
        return store, self._relay

    async def get(self, job_id: str) -> Job:
        """Return a job; raise JobNotFoundError."""
        [job] = await self.ready().get([job_id])
        if job is None:
            raise JobNotFoundError(job_id)
        return job

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
        fired_ns, acked_ms = self.clock.now_ns(), self._acked_ms
        error: StoreError | None = None
        if not self._pending_fires.must_wait(key):
            deciding = self._key_jobs.begin(Fire(key, value_json))
            # Whatever comes of it if that takes too long: what is decided twice is decided once.
            if await self._fire_wait.wait(deciding):
                try:
                    return deciding.result()
                except OUTAGES as exc:
                    error = exc
        if await self._pending_fires.add(key, value_json, fired_ns=fired_ns, acked_ms=acked_ms):
            return None
        raise error or StoreUnavailableError(
            "the job store is away, and this process can keep no more fires for it"
        )

    async def cancel(self, job_id: str, *, if_version: int | None = None) -> Job:
        """Cancel a job and return it; raise the error of `Cancel`."""
        [result] = await self.ready().run([Cancel(job_id, if_version=if_version)])
        job = accepted(result)
        if self._on_end is not None:
            self._on_end(job)
        return job

    async def cancel_for_key(self, key: str) -> int:
        """Cancel every job on `key`; return how many. It continues if the caller is cancelled."""
        self.ready()
        return await self._key_jobs.decide(CancelForKey(key))

    async def _start(self) -> None:
        self._pending_fires.start()
        self._unsubscribe = self.store.subscribe(self.watchers)
        await self._log_warnings()
        await self._scheduler.start()
        if self._relay is not None:
            self._relay.start()
        if self._other_workers is not None:
            self._other_workers.start()

    async def _log_warnings(self) -> None:
        try:
            for warning in await self.store.check():
                logger.warning("%s", warning, extra={"action": "store-warning"})
        except StoreError as exc:
            # An outage right after opening: the worker waits for its end.
            logger.warning(
                "could not check the job store (%s)", exc, extra={"action": "store-warning"}
            )

    async def _drain(self) -> None:
        await self._opener.stop()
        if self._other_workers is not None:
            await self._other_workers.stop()
        hurry = self.store.hurry if isinstance(self.store, CanHurry) else lambda: None
        stopping = [
            self._pending_fires.stop(),
            self._scheduler.drain(self.settings.grace_ms, hurry),
        ]
        if self._relay is not None:
            stopping.append(self._relay.stop())
        # Together: each may wait for a server that hangs.
        await asyncio.gather(*stopping)


def _worker_name() -> str:
    return f"{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(4)}"
