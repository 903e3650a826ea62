"""Signals from before a job was stored that count for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from purgatory.errors import CursorExpiredError
from purgatory.job_errors import InvalidJobError, JobError, StoreError
from purgatory.jobs.model.job import Job
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import Added, AddStatus, Cancel, FireJob, RunNow
from purgatory.jobs.stores.protocol import JobStore
from purgatory.jobs.worker.result_reporter import OnJobEnd
from purgatory.signals.memory import MemorySignals, Signal

if TYPE_CHECKING:
    from purgatory.signals.redis import RedisSignals

AddResult = Added | JobError | CursorExpiredError
"""The result of adding a job, or why it was refused."""


class MissedFires:
    """Closes the gap between a cursor and the moment when a job is stored on its keys.

    A fire appends its signal first and asks the store for jobs then; here, the job is stored first
    and the history is read then. Whichever comes first, one of the two sees the other, in one
    process and across processes. Both decide in the store, where each key counts once.
    """

    def __init__(
        self,
        store: JobStore,
        signals: MemorySignals,
        shared: RedisSignals | None,
        on_end: OnJobEnd | None,
    ) -> None:
        """Read `signals`, which are a copy of `shared`, if there are any.

        Each job that ends by what fired is passed to `on_end`.
        """
        self._store = store
        self._signals = signals
        self._shared = shared
        self.on_end = on_end

    async def count(
        self, specs: Sequence[JobSpec], results: Sequence[Added | JobError]
    ) -> list[AddResult]:
        """Return `results` with what fired since each job's positions counted.

        A position that expired meanwhile is its error, and a new job is cancelled again. Raises
        SignalsUnavailableError and StoreError: then jobs are stored, and fires may not be counted;
        adding the same specs again counts them.
        """
        counted: list[AddResult] = list(results)
        since = {
            index: (result, spec.since)
            for index, (spec, result) in enumerate(zip(specs, results, strict=True))
            if spec.since and isinstance(result, Added) and result.job.is_undecided
        }
        if not since:
            return counted
        await self.read_to_end({key for _, positions in since.values() for key, _ in positions})
        steps: dict[int, FireJob] = {}
        for index, (added, positions) in since.items():
            try:
                fired = self.fired_since(positions)
            except CursorExpiredError as exc:
                counted[index] = exc
                if added.status is AddStatus.ADDED and not added.is_repeat:
                    await self._cancel(added.job)
                continue
            if fired:
                steps[index] = FireJob(added.job.id, tuple(fired), added.job.round)
        jobs = await self._store.run(list(steps.values())) if steps else []
        for index, job in zip(steps, jobs, strict=True):
            if job is not None:
                counted[index] = since[index][0]._replace(job=job)
                self._note_end(job)
        return counted

    def positions(
        self, keys: Sequence[str], since: str | Mapping[str, str]
    ) -> tuple[tuple[str, int], ...]:
        """Return the positions of a cursor for all `keys`, or of one for some of them.

        Raises InvalidJobError, TypeError, BadCursorError and CursorExpiredError.
        """
        position = self._signals.position
        if not isinstance(since, str | Mapping):
            raise TypeError(f"since is {since!r}: give a cursor, or a mapping of keys to cursors")
        if not keys:
            raise InvalidJobError(
                "since is given, and there are no keys: give the keys whose fires count",
                param="since",
            )
        if isinstance(since, str):
            return tuple((key, position(key, since)) for key in keys)
        unknown = [key for key in since if key not in keys]
        if unknown:
            raise InvalidJobError(
                f"since has a cursor for {str(unknown[0])[:64]!r}, which is not one of the job's "
                "keys",
                param="since",
            )
        return tuple((key, position(key, cursor)) for key, cursor in since.items())

    async def count_again(self, job: Job, since: tuple[tuple[str, int], ...]) -> None:
        """Count what fired after `since` for a job that waits again; safe to repeat.

        If that is unknown, the job is made due now: its handler decides anew. Raises
        SignalsUnavailableError and StoreError.
        """
        await self.read_to_end([key for key, _ in since])
        try:
            fired = self.fired_since(since)
        except CursorExpiredError:
            await self._store.run([RunNow(job.id, if_version=job.version)])
            return
        if fired:
            [after] = await self._store.run([FireJob(job.id, tuple(fired), job.round)])
            if after is not None:
                self._note_end(after)

    async def read_to_end(self, keys: Iterable[str]) -> None:
        """Return once every signal of `keys` that fired before the call is here.

        Raises SignalsUnavailableError.
        """
        if self._shared is not None:
            await self._shared.read_to_end(tuple(keys))

    def fired_since(self, since: Iterable[tuple[str, int]]) -> list[tuple[str, str]]:
        """Return the keys that fired after their positions, with the first value of each.

        In the order in which they fired, the values as compact JSON. Raises CursorExpiredError if a
        signal may have been lost.
        """
        signals = self._signals
        found: list[Signal] = []
        for key, position in since:
            if position < signals.earliest(key):
                # Raises the error of a cursor.
                signals.position(key, signals.cursor(position))
            signal = signals.first_after(key, position)
            if signal is not None:
                found.append(signal)
        # Of several logs, offsets do not compare.
        found.sort(key=_order)
        return [(signal.key, signal.encoded.decode()) for signal in found]

    async def _cancel(self, job: Job) -> None:
        # If the store is away, the job waits for its deadline: the caller has an error in any case.
        with contextlib.suppress(StoreError):
            await self._store.run([Cancel(job.id)])

    def _note_end(self, job: Job) -> None:
        if self.on_end is not None and job.state.is_final:
            self.on_end(job)


def _order(signal: Signal) -> tuple[int, int]:
    return signal.at_ms, signal.offset
