"""From what the purgatory said to the rows of the journal."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa

from purgatory.event_buffer import RawEvent
from purgatory.journal.columns import Columns
from purgatory.journal.job_event import JobEvent
from purgatory.status import Status
from purgatory.timer.clock import NS_PER_MS, Clock

KeyRule = Callable[[str], str]

_PENDING: Final = Status.PENDING
_NS_PER_US: Final = 1_000
_US_PER_MS: Final = 1_000
# How long one relation of the two clocks is kept. A leap of the wall clock shows after that.
_OFFSET_KEPT_NS: Final = 60_000_000_000
# An operation that is so long past its deadline ended, and its end was dropped.
_LOST_AFTER_MS: Final = 60_000


class _Waiting(NamedTuple):
    """An operation that has a row "watched"."""

    number: int
    watched_ns: int
    deadline_ms: int
    generation: int


class EventRows:
    """Turns events into rows: gives identifiers, pairs, samples, hides keys, and dates.

    Used by one thread. An operation has both of its rows or none: whether it is sampled is decided
    when it is watched, and an end whose beginning was dropped is dropped as well.

    All times of a row come from the monotonic clock by way of one offset, so that a wait is exact
    and never negative, whatever the wall clock does.
    """

    # Invariant: every operation that waits is in `_waiting`; one left out by its deadline only.

    def __init__(
        self, worker: str, *, sample: Mapping[str, float], keys: KeyRule | None, clock: Clock
    ) -> None:
        self.start = secrets.token_hex(6)
        """Stands before every identifier: no other start of any worker has it."""
        self.sampled_out = 0
        """Rows that were left out."""
        self.unpaired = 0
        """Ends whose beginning was dropped."""
        self.rows = 0
        self._sample = sample
        self._key_rule = keys
        self._clock = clock
        self._columns = Columns(worker)
        self._kinds: dict[type, str] = {}
        self._waiting: dict[int, _Waiting | int] = {}
        self._numbers = 0
        self._generation = 0
        self._offset_us = 0
        self._offset_until_ns = 0

    @property
    def waiting(self) -> int:
        """How many operations wait, as far as the journal knows."""
        return len(self._waiting)

    def batch(self, events: Iterable[RawEvent]) -> pa.RecordBatch | None:
        """Return the rows of `events`, or None where there are none."""
        self._date()
        columns = self._columns
        try:
            for event in events:
                if isinstance(event, JobEvent):
                    self._add_job(event)
                elif event[2] is _PENDING:
                    self._add_watched(event)
                else:
                    self._add_end(event)
            return columns.batch() if len(columns) else None
        finally:
            columns.clear()

    def note_gap(self) -> None:
        """Take note that events after those so far are missing: ends, maybe.

        An id is that of another operation once the first has ended. Whoever waits since before the
        gap has to be told from those by the deadline.
        """
        self._generation += 1

    def _add_watched(self, event: RawEvent) -> None:
        identity, cls, _, keys, _, deadline_ms, at_ns = event
        kind = self._kinds.get(cls) or self._kind(cls)
        if self._sample and not self._is_chosen(kind):
            self._waiting[identity] = deadline_ms
            self.sampled_out += 1
            return
        self._numbers += 1
        waiting = _Waiting(self._numbers, at_ns, deadline_ms, self._generation)
        self._waiting[identity] = waiting
        self._add(waiting, "watched", kind, keys, at_ns, deadline_ms, None)

    def _add_end(self, event: RawEvent) -> None:
        identity, cls, status, keys, key, deadline_ms, at_ns = event
        try:
            waiting = self._waiting.pop(identity)
        except KeyError:
            self.unpaired += 1
            return
        if isinstance(waiting, int):
            self.sampled_out += 1
            return
        if waiting.generation != self._generation and waiting.deadline_ms != deadline_ms:
            self.unpaired += 1
            return
        kind = self._kinds.get(cls) or self._kind(cls)
        self._add(waiting, status.value, kind, keys, at_ns, deadline_ms, key)

    def _add(
        self,
        waiting: _Waiting,
        event: str,
        kind: str,
        keys: tuple[Hashable, ...],
        at_ns: int,
        deadline_ms: int,
        key: Hashable | None,
    ) -> None:
        self.rows += 1
        offset_us = self._offset_us
        self._columns.add(
            f"{self.start}-{waiting.number}",
            event,
            self.rows,
            kind,
            self._written(keys),
            at_ns // _NS_PER_US + offset_us,
            waiting.watched_ns // _NS_PER_US + offset_us,
            deadline_ms * _US_PER_MS + offset_us,
            None if key is None else self._written((key,))[0],
        )

    def _add_job(self, job: JobEvent) -> None:
        kind = f"job:{job.handler}"
        # By its id, so that every worker decides alike, in every start.
        if self._sample and random.Random(job.job_id).random() >= self._sample.get(kind, 1.0):
            self.sampled_out += 1
            return
        self.rows += 1
        deferred_us = job.deferred_at_ms * _US_PER_MS
        # The store's clock dates a job, this one its change: that may seem to come before.
        at_us = max(deferred_us, job.at_ns // _NS_PER_US + self._offset_us)
        self._columns.add(
            f"job:{job.job_id}",
            "watched" if job.status is _PENDING else job.status.value,
            self.rows,
            kind,
            self._written(job.keys),
            at_us,
            deferred_us,
            job.deadline_ms * _US_PER_MS,
            None if job.key is None else self._written((job.key,))[0],
        )
        self._columns.note_job(job.job_id, job.handler, job.attempt, job.state, job.error)

    def _is_chosen(self, kind: str) -> bool:
        share = self._sample.get(kind, 1.0)
        return share >= 1 or random.random() < share

    def _kind(self, cls: type) -> str:
        kind: Any = getattr(cls, "kind", None)
        # A property, or a slot: what each operation has for itself is not known here.
        self._kinds[cls] = kind if isinstance(kind, str) else cls.__name__
        return self._kinds[cls]

    def _written(self, keys: tuple[Hashable, ...]) -> list[str]:
        """Return what is written for `keys`."""
        rule = self._key_rule
        return [_text(key) if rule is None else rule(_text(key)) for key in keys]

    def _date(self) -> None:
        now_ns = self._clock.now_ns()
        if now_ns < self._offset_until_ns:
            return
        self._offset_us = self._clock.wall_ms() * _US_PER_MS - now_ns // _NS_PER_US
        self._offset_until_ns = now_ns + _OFFSET_KEPT_NS
        if self._generation:
            self._forget_lost(now_ns // NS_PER_MS - _LOST_AFTER_MS)

    def _forget_lost(self, deadline_ms: int) -> None:
        """Forget who was to expire before: the end of such an operation was dropped."""
        self._waiting = {
            identity: waiting
            for identity, waiting in self._waiting.items()
            if (waiting if isinstance(waiting, int) else waiting.deadline_ms) >= deadline_ms
        }


def _text(key: Hashable) -> str:
    """Return `key` as valid text: with a core of one's own, a key may be anything."""
    text = key if isinstance(key, str) else str(key)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
