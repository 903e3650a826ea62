"""Snapshots of the statistics of all workers: one a second at most, for all dashboards that ask."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from functools import cached_property
from heapq import nlargest
from math import inf
from secrets import token_hex
from typing import Any, Final, Generic, TypeVar

from pydantic import TypeAdapter
from pydantic_core import to_json

from purgatory.errors import PurgatoryClosedError, PurgatoryError
from purgatory.event_loop.inspection import Inspection, LevelBuckets
from purgatory.fastapi.jobs.endpoints import paused_response
from purgatory.fastapi.router import job_states
from purgatory.operations.wait_histograms import (
    LATENESS_BOUNDS_MS,
    WAIT_BOUNDS_MS,
    KindTimes,
    WaitTimes,
)
from purgatory.purgatory import Purgatory, Statistics
from purgatory.turn_budget import TurnBudget

logger = logging.getLogger("purgatory.dashboard")

Answer = TypeVar("Answer")


class Workers:
    """The names of this worker, and questions to the others, about what only they know.

    The names are made on first use: a server may fork after the application was made.
    """

    def __init__(self, purgatory: Purgatory, prefix: str) -> None:
        """Ask those that share the signals of `purgatory`, with the endpoints under `prefix`."""
        self._prefix = prefix
        self._shared = purgatory.shared_signals

    @cached_property
    def name(self) -> str:
        """The host and the process id, for people."""
        return f"{socket.gethostname()}:{os.getpid()}"

    @cached_property
    def token(self) -> str:
        """Twelve hexadecimal digits that no other worker has."""
        return token_hex(6)

    def answer_with(self, question: str, answer: Callable[[str], Awaitable[str]]) -> None:
        """Call `answer` with the argument whenever another worker asks."""
        if self._shared is not None:
            self._shared.peers.answers[f"{question} {self._prefix}"] = answer

    async def ask(
        self,
        question: str,
        argument: str,
        adapter: TypeAdapter[Answer],
        max_bytes: float = inf,
    ) -> tuple[list[Answer], int]:
        """Return the answers of the others, and how many are malformed, which is logged.

        A worker that does not answer within a second is left out, and so is what is beyond
        `max_bytes`. Raises SignalsUnavailableError.
        """
        found: list[Answer] = []
        malformed = 0
        if self._shared is None:
            return found, malformed
        budget = TurnBudget()
        for text in await self._shared.peers.ask(f"{question} {self._prefix}", argument, str):
            max_bytes -= len(text)
            if max_bytes < 0:
                break
            try:
                found.append(adapter.validate_json(text, strict=True))
            except ValueError as exc:
                malformed += 1
                logger.warning(
                    "another process sent a malformed answer to %r, which is left out (%s)",
                    question,
                    type(exc).__name__,
                    extra={"action": "peer-malformed"},
                )
            await budget.yield_if_spent()
        return found, malformed


SHOWN_KEYS: Final = 50
# Keys in one turn of the event loop: about half a millisecond.
SLICE: Final = 1_000
# Of the time, at most this part is spent on ranking.
SHARE: Final = 0.02


@dataclass(frozen=True, slots=True)
class BusyKey:
    """A key with many waits."""

    key: str
    waiting: int
    oldest_ms: int
    """How long the oldest of them has waited."""


class KeyRanking:
    """Finds the keys with the most waits, in slices; between two searches only those are read.

    So a snapshot takes as long as what it shows, however many keys are watched.
    """

    def __init__(self, inspection: Inspection) -> None:
        """Rank the keys of a purgatory."""
        self._inspection = inspection
        self._first: list[str] = []
        self._due_s = 0.0

    async def rows(self) -> list[BusyKey]:
        """Return the keys with how many wait and since when, the fullest first."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._due_s:
            begun_s = loop.time()
            self._first = await self._ranked()
            self._due_s = begun_s + (loop.time() - begun_s) / SHARE
        inspection = self._inspection
        now_ms = inspection.now_ms()
        rows: list[BusyKey] = []
        for key in self._first:
            start_ms = inspection.oldest_start_ms(key)
            if start_ms is not None:
                oldest_ms = max(0, now_ms - start_ms)
                rows.append(BusyKey(key, inspection.count(key), oldest_ms))
        rows.sort(key=lambda row: (-row.waiting, row.key))
        return rows

    async def _ranked(self) -> list[str]:
        count = self._inspection.count
        found: list[tuple[int, str]] = []
        keys = self._inspection.watched()
        for start in range(0, len(keys), SLICE):
            counted = [(count(key), key) for key in keys[start : start + SLICE]]
            found = nlargest(SHOWN_KEYS, (*found, *counted))
            await asyncio.sleep(0)
        return [key for _, key in found]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the dashboard shows of one worker."""

    worker: str
    token: str
    at_ms: int
    loop_lag_ms: float
    statistics: Statistics
    levels: list[LevelBuckets]
    keys: list[BusyKey]
    waits: dict[str, list[int]]
    """The waits that took up to each of WAIT_BOUNDS_MS, by outcome."""
    lateness: list[int]
    """The deadlines that were late by up to each of LATENESS_BOUNDS_MS."""
    missing: list[str]


_SNAPSHOT: Final = TypeAdapter(Snapshot)


def waits_by_outcome(times: WaitTimes) -> dict[str, list[int]]:
    """Return the counts of waits of all kinds, each by bucket."""
    waits = {str(status): [0] * (len(WAIT_BOUNDS_MS) + 1) for status in KindTimes().by_outcome()}
    for kind in times.kinds.values():
        for status, histogram in kind.by_outcome().items():
            waits[status] = [*map(sum, zip(waits[status], histogram.counts, strict=True))]
    return waits


# A snapshot is not older than this.
INTERVAL_S: Final = 1.0
_TICK_S: Final = 0.1
# For so long after the last question, outcomes and the lag of the event loop are noted.
LOOKED_S: Final = 5.0
# Counting jobs may be expensive: it takes at most this part of the time.
_STORE_SHARE: Final = 0.05
# Of the snapshots of other workers, together.
_MAX_BYTES: Final = 8 * 1024 * 1024

Made = TypeVar("Made")


class _Latest(Generic[Made]):
    """What `make` returns: once a second at most, for all who ask meanwhile."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, Made]]) -> None:
        self._make = make
        self._making: asyncio.Task[Made] | None = None
        self._due_s = 0.0

    async def get(self) -> Made:
        """Return the latest; raise what `make` raises."""
        loop = asyncio.get_running_loop()
        making = self._making
        if making is None or (making.done() and loop.time() >= self._due_s):
            self._due_s = loop.time() + INTERVAL_S
            # In an empty context: that of the first who asks is none of the others'.
            making = asyncio.create_task(
                self._make(), name="purgatory-dashboard", context=Context()
            )
            self._making = making
        # Others wait for it when this one leaves.
        return await asyncio.shield(making)

    def forget(self) -> None:
        """Keep nothing, and make it anew for whoever asks next."""
        self._making = None


class Snapshots:
    """Makes snapshots of this process, and gathers those of the other workers.

    From the first question until some seconds after the last, from here or from another worker,
    WaitTimes is attached and the lag of the event loop measured; otherwise there is nothing.
    """

    def __init__(self, purgatory: Purgatory, workers: Workers) -> None:
        """Make snapshots of `purgatory`, and ask the other `workers` for theirs."""
        self._purgatory = purgatory
        self._workers = workers
        self._inspection = purgatory.inspection()
        self._ranking = KeyRanking(self._inspection)
        # None while nobody looks.
        self._times: WaitTimes | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looked_s = 0.0
        self._lag_ms = 0.0
        self._own = _Latest(self._snapshot)
        self._all = _Latest(self._gathered)
        self._jobs: dict[str, Any] = {"job_states": None, "paused": None}
        self._jobs_due_s = 0.0
        workers.answer_with("snapshot", self._answer)

    async def latest(self) -> bytes:
        """Return the last snapshot of all workers, as JSON. Raises PurgatoryClosedError."""
        if not self._purgatory.is_open:
            raise PurgatoryClosedError
        self._look()
        return await self._all.get()

    async def _answer(self, argument: str) -> str:
        """Return the last snapshot of this process, for another worker."""
        self._look()
        return _SNAPSHOT.dump_json(await self._own.get()).decode()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._looked_s = loop.time()
        if self._times is None:
            self._times = WaitTimes(self._purgatory.clock)
            self._inspection.attach(self._times)
        # Another one after a loop that has ended with what it was to call.
        if self._loop is not loop:
            self._loop, self._lag_ms = loop, 0.0
            self._tick_later(loop)

    def _tick_later(self, loop: asyncio.AbstractEventLoop) -> None:
        planned_s = loop.time() + _TICK_S
        loop.call_at(planned_s, self._tick, loop, planned_s, context=Context())

    def _tick(self, loop: asyncio.AbstractEventLoop, planned_s: float) -> None:
        self._lag_ms = max(self._lag_ms, (loop.time() - planned_s) * 1000)
        if self._purgatory.is_open and loop.time() < self._looked_s + LOOKED_S:
            self._tick_later(loop)
            return
        assert self._times is not None
        self._inspection.detach(self._times)
        self._times = self._loop = None
        self._own.forget()
        self._all.forget()

    async def _snapshot(self) -> Snapshot:
        times, purgatory = self._times, self._purgatory
        assert times is not None
        lag_ms, self._lag_ms = self._lag_ms, 0.0
        keys = await self._ranking.rows()
        return Snapshot(
            worker=self._workers.name,
            token=self._workers.token,
            at_ms=purgatory.clock.wall_ms(),
            loop_lag_ms=round(lag_ms, 1),
            statistics=purgatory.statistics(),
            levels=self._inspection.levels(),
            keys=keys,
            waits=waits_by_outcome(times),
            lateness=times.lateness.counts,
            missing=purgatory.missing,
        )

    async def _gathered(self) -> bytes:
        workers, notes = [await self._own.get()], []
        try:
            others, malformed = await self._workers.ask("snapshot", "", _SNAPSHOT, _MAX_BYTES)
        except PurgatoryError as exc:
            notes.append(f"The other workers cannot be shown: {exc}")
        else:
            workers += sorted(others, key=lambda each: each.worker)
            if malformed:
                notes.append(f"{malformed} other workers cannot be shown: see the log.")
        document = {
            "workers": workers,
            "wait_bounds_ms": WAIT_BOUNDS_MS,
            "lateness_bounds_ms": LATENESS_BOUNDS_MS,
            **await self._latest_jobs(),
            "notes": notes,
            "is_draining": self._purgatory.is_draining,
        }
        return to_json(document, inf_nan_mode="null")

    async def _latest_jobs(self) -> dict[str, Any]:
        """Return how many jobs are in each state, and what is paused; None if that is unknown."""
        loop, jobs = asyncio.get_running_loop(), self._jobs
        begun_s = loop.time()
        if self._purgatory.has_jobs and begun_s >= self._jobs_due_s:
            jobs["job_states"] = await job_states(self._purgatory)
            # If the store is away, what was paused before is shown.
            if jobs["job_states"] is not None:
                with suppress(PurgatoryError):
                    jobs["paused"] = await paused_response(self._purgatory)
            self._jobs_due_s = begun_s + (loop.time() - begun_s) / _STORE_SHARE
        return jobs
