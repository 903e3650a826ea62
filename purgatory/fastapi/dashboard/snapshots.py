"""Snapshots of the statistics: one a second at most, for all dashboards that ask."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import asdict, dataclass
from heapq import nlargest
from secrets import token_hex
from typing import Any, Final, Generic, TypeVar

from pydantic import TypeAdapter

from purgatory.errors import PurgatoryClosedError, PurgatoryError
from purgatory.event_loop.inspection import Inspection, LevelBuckets
from purgatory.fastapi.service_routes import job_states
from purgatory.json_value import decode_json
from purgatory.operations.wait_histograms import (
    LATENESS_BOUNDS_MS,
    WAIT_BOUNDS_MS,
    KindTimes,
    WaitTimes,
)
from purgatory.purgatory import Purgatory, Statistics
from purgatory.turn_budget import TurnBudget

logger = logging.getLogger("purgatory.dashboard")


class WorkerName:
    """The worker of one router: its name for people, and a token that no other worker has."""

    __slots__ = ("_pid", "_token")

    def __init__(self) -> None:
        """Take the name on first use: a server may fork after the application was made."""
        self._pid = 0
        self._token = ""

    @property
    def token(self) -> str:
        """Twelve hexadecimal digits."""
        pid = os.getpid()
        if pid != self._pid:
            self._pid, self._token = pid, token_hex(6)
        return self._token

    @property
    def name(self) -> str:
        """The host and the process id."""
        return f"{socket.gethostname()}:{os.getpid()}"


SHOWN_KEYS: Final = 50
# Keys in one turn of the event loop: about half a millisecond.
SLICE: Final = 1_000
# Of the time, at most this part is spent on ranking.
SHARE: Final = 0.02


class KeyRanking:
    """Finds the keys with the most waits, in slices; between two searches only those are read.

    So a snapshot takes as long as what it shows, however many keys are watched.
    """

    def __init__(self, inspection: Inspection) -> None:
        """Rank the keys of a purgatory."""
        self._inspection = inspection
        self._first: list[str] = []
        self._due_s = 0.0

    async def rows(self) -> list[dict[str, Any]]:
        """Return the keys with how many wait and since when, the fullest first."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._due_s:
            begun_s = loop.time()
            self._first = await self._ranked()
            took_s = loop.time() - begun_s
            self._due_s = begun_s + took_s / SHARE
        inspection = self._inspection
        now_ms = inspection.now_ms()
        rows: list[dict[str, Any]] = []
        for key in self._first:
            start_ms = inspection.oldest_start_ms(key)
            if start_ms is not None:
                age_ms = max(0, now_ms - start_ms)
                rows.append({"key": key, "waiting": inspection.count(key), "oldest_ms": age_ms})
        rows.sort(key=lambda row: (-row["waiting"], row["key"]))
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


def _summary(times: WaitTimes) -> dict[str, object]:
    """Return the counts of waits by outcome and of lateness, each by bucket."""
    waits = {str(status): [0] * (len(WAIT_BOUNDS_MS) + 1) for status in KindTimes().by_outcome()}
    for kind in times.kinds.values():
        for status, histogram in kind.by_outcome().items():
            waits[status] = [*map(sum, zip(waits[status], histogram.counts, strict=True))]
    return {
        "wait_bounds_ms": WAIT_BOUNDS_MS,
        "waits": waits,
        "lateness_bounds_ms": LATENESS_BOUNDS_MS,
        "lateness": times.lateness.counts,
    }


# A snapshot is not older than this.
INTERVAL_S: Final = 1.0
_TICK_S: Final = 0.1
# For so long after the last question, outcomes and the lag of the event loop are noted.
LOOKED_S: Final = 5.0
# Counting jobs may be expensive: it takes at most this part of the time.
_STORE_SHARE: Final = 0.05
# Bytes of the texts of other workers, together.
_MAX_TEXTS: Final = 8 * 1024 * 1024

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

    def __init__(self, purgatory: Purgatory, worker: WorkerName, prefix: str) -> None:
        """Make snapshots of `purgatory`, whose endpoints are under `prefix`."""
        self._purgatory = purgatory
        self._worker = worker
        self._question = f"snapshot {prefix}"
        self._inspection = purgatory.inspection()
        self._ranking = KeyRanking(self._inspection)
        # None while nobody looks.
        self._times: WaitTimes | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looked_s = 0.0
        self._planned_s = 0.0
        self._lag_ms = 0.0
        self._own = _Latest(self._snapshot)
        self._all = _Latest(self._gathered)
        self._job_states: dict[str, int] | None = None
        self._jobs_due_s = 0.0
        self._shared = purgatory.shared_signals
        if self._shared is not None:
            self._shared.peers.text_answers[self._question] = self._answer

    async def latest(self) -> bytes:
        """Return the last snapshot of all workers, as JSON. Raises PurgatoryClosedError."""
        if not self._purgatory.is_open:
            raise PurgatoryClosedError
        self._look()
        return await self._all.get()

    async def _answer(self, argument: str) -> str:
        """Return the last snapshot of this process, for another worker."""
        self._look()
        return json.dumps(await self._own.get())

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._looked_s = loop.time()
        if self._times is None:
            self._times = WaitTimes(self._purgatory.clock)
            self._inspection.attach(self._times)
        # Another one after a loop that has ended with what it was to call.
        if self._loop is not loop:
            self._lag_ms = 0.0
            self._tick_later(loop)

    def _tick_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._planned_s = loop.time() + _TICK_S
        loop.call_at(self._planned_s, self._tick, loop, context=Context())

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._lag_ms = max(self._lag_ms, (loop.time() - self._planned_s) * 1000)
        if self._purgatory.is_open and loop.time() < self._looked_s + LOOKED_S:
            self._tick_later(loop)
            return
        assert self._times is not None
        self._inspection.detach(self._times)
        self._times = self._loop = None
        self._own.forget()
        self._all.forget()

    async def _snapshot(self) -> dict[str, Any]:
        times, purgatory = self._times, self._purgatory
        assert times is not None
        lag_ms, self._lag_ms = self._lag_ms, 0.0
        keys = await self._ranking.rows()
        return {
            "worker": self._worker.name,
            "token": self._worker.token,
            "at_ms": purgatory.clock.wall_ms(),
            "loop_lag_ms": round(lag_ms, 1),
            "statistics": asdict(purgatory.statistics()),
            "levels": [asdict(level) for level in self._inspection.levels()],
            "keys": keys,
            "times": _summary(times),
            "missing": purgatory.missing,
        }

    async def _gathered(self) -> bytes:
        workers, notes = [await self._own.get()], []
        if self._shared is not None:
            try:
                texts = await self._shared.peers.ask_texts(self._question, "")
            except PurgatoryError as exc:
                notes.append(f"The other workers cannot be shown: {exc}")
            else:
                others, malformed = await _parsed(texts)
                workers += others
                if malformed:
                    notes.append(f"{malformed} other workers cannot be shown: see the log.")
        document = {
            "workers": workers,
            "job_states": await self._counted_jobs(),
            "notes": notes,
            "is_draining": self._purgatory.is_draining,
        }
        return json.dumps(document, separators=(",", ":")).encode("ascii")

    async def _counted_jobs(self) -> dict[str, int] | None:
        """Return how many jobs are in each state; None without a store that responds."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        if not self._purgatory.has_jobs or begun_s < self._jobs_due_s:
            return self._job_states
        self._job_states = await job_states(self._purgatory)
        took_s = loop.time() - begun_s
        self._jobs_due_s = begun_s + took_s / _STORE_SHARE
        return self._job_states


@dataclass(frozen=True, slots=True)
class _BusyKey:
    key: str
    waiting: int
    oldest_ms: int


@dataclass(frozen=True, slots=True)
class _Times:
    wait_bounds_ms: list[int]
    waits: dict[str, list[int]]
    lateness_bounds_ms: list[int]
    lateness: list[int]


@dataclass(frozen=True, slots=True)
class _PeerSnapshot:
    """What `Snapshots` makes, as it arrives from another worker."""

    worker: str
    token: str
    at_ms: int
    loop_lag_ms: float
    statistics: Statistics
    levels: list[LevelBuckets]
    keys: list[_BusyKey]
    times: _Times
    missing: list[str]


_PEER: Final = TypeAdapter(_PeerSnapshot)


def log_malformed(kind: str, error: ValueError) -> None:
    """Log what another process sent, which is left out."""
    logger.warning(
        "another process sent a malformed %s, which is left out (%s)",
        kind,
        type(error).__name__,
        extra={"action": "peer-malformed"},
    )


async def _parsed(texts: list[str]) -> tuple[list[dict[str, Any]], int]:
    """Return the snapshots of other workers, and how many are malformed, which is logged.

    Without those beyond _MAX_TEXTS.
    """
    found: list[dict[str, Any]] = []
    malformed = 0
    room = _MAX_TEXTS
    budget = TurnBudget()
    for text in texts:
        room -= len(text)
        if room < 0:
            break
        try:
            snapshot = decode_json(text.encode())
            _PEER.validate_json(text, strict=True)
        except ValueError as exc:
            malformed += 1
            log_malformed("snapshot", exc)
        else:
            found.append(snapshot)
        await budget.yield_if_spent()
    return sorted(found, key=lambda each: str(each["worker"])), malformed
