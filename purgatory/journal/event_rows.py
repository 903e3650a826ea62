"""Rows of the journal from the events of the purgatory."""

from __future__ import annotations

import hashlib
import json
import random
import secrets
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import pyarrow as pa

from purgatory.journal.labels import LabelPairs, Labels
from purgatory.journal.schema import (
    CODES,
    EVENT_SCHEMA,
    NS_PER_US,
    SAMPLE_KEY,
    US_PER_MS,
    WATCHED,
    Row,
    batch_of,
)
from purgatory.operations.event_buffer import GAP, RawEvent
from purgatory.operations.operation_listeners import JobEvent, kind_of
from purgatory.outcome import Status
from purgatory.timer.clock import NS_PER_MS, Clock


class RecordedJob(NamedTuple):
    """One call of `Journal.job_event`."""

    job: JobEvent
    at_ms: int
    """Its time, by the clock of the job's other times if that is known: their differences count."""
    at_ns: int
    """The same time, monotonic as the times of operations are."""


# As long as a random key should be, and the longest that BLAKE2b takes.
MIN_SECRET_BYTES = 16
MAX_SECRET_BYTES = 64

_DIGEST_BYTES = 16
_CACHED = 65_536


class HashedKeys:
    """Writes a keyed hash of a watch key: BLAKE2b, 32 hexadecimal digits.

    The same key has the same hash under the same secret, so that hot keys still show. Without the
    secret, guessed keys cannot be tried out.
    """

    def __init__(self, secret: bytes) -> None:
        """Hash with `secret`, 16 to 64 bytes; raises ValueError for another length."""
        if not MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES:
            raise ValueError(
                f"the secret has {len(secret)} bytes: give {MIN_SECRET_BYTES} to "
                f"{MAX_SECRET_BYTES}, such as secrets.token_bytes(32), and keep it"
            )

        @lru_cache(_CACHED)
        def digest(key: str) -> str:
            return hashlib.blake2b(key.encode(), key=secret, digest_size=_DIGEST_BYTES).hexdigest()

        self._digest = digest

    def __call__(self, key: str) -> str:
        """Return the written form of `key`."""
        return self._digest(key)


class KeyPrefixes:
    """Writes the first segments of a watch key: "order" for "order:42:paid"."""

    def __init__(self, segments: int = 1, *, separator: str = ":") -> None:
        """Keep so many `segments`; raises ValueError for none, or without a separator."""
        if segments < 1:
            raise ValueError(f"segments is {segments}: at least one is kept")
        if not separator:
            raise ValueError("the separator is empty: name what stands between segments")
        self.segments = segments
        self.separator = separator

    def __call__(self, key: str) -> str:
        """Return the written form of `key`."""
        return self.separator.join(key.split(self.separator, self.segments)[: self.segments])


KeyRule = Callable[[str], str]
"""A function that returns how a key is written."""

_PENDING: Final = Status.PENDING
# How long one offset between the two clocks is used. A step of the wall clock shows after that.
_OFFSET_KEPT_NS: Final = 60_000_000_000
# An operation so long past its deadline has ended, and its end was dropped.
_LOST_AFTER_MS: Final = 60_000


# A waiting operation that has a row "watched": its number, its start on the monotonic clock (ns),
# its deadline (ms), its keys, the number of gaps before it, the offset from the monotonic clock to
# UTC (us), and its labels.
_Waiting = tuple[int, int, int, tuple[Hashable, ...], int, int, LabelPairs]


class EventRows:
    """Turns events into rows: identifies, pairs, samples and dates them, and applies the key rule.

    Used by one thread. An operation has both of its rows or none: whether it is sampled is decided
    when it is watched, and an end whose start was dropped is dropped as well.

    All times of an operation, in both rows, are monotonic times plus one offset: a wait is exact
    and never negative, and its start is the same in both rows, whatever the wall clock does. The
    clock of a job's store only says how long it waited.
    """

    # Invariant: every waiting operation is in `_waiting`; one that is sampled out as its deadline.

    def __init__(
        self, *, sample: Mapping[str, float], keys: KeyRule | None, labels: Labels, clock: Clock
    ) -> None:
        self.sampled_out = 0
        """Events left out by sampling."""
        self.unpaired = 0
        """Ends whose start was dropped."""
        self._worker = ""
        self._start = ""
        self._sample = sample
        # Of each batch, and of each file made of them; None for that of EVENT_SCHEMA.
        self._metadata = (
            {**(EVENT_SCHEMA.metadata or {}), SAMPLE_KEY: json.dumps(dict(sample)).encode()}
            if sample
            else None
        )
        self._key_rule = keys
        self._labels = labels
        self._clock = clock
        self._kinds: dict[type, str] = {}
        self._waiting: dict[int, _Waiting | int] = {}
        self._numbers = 0
        self._seq = 0
        self._gaps = 0
        self._offset_us = 0
        self._offset_until_ns = 0
        # The current batch: its rows, and by index the events of rows of jobs.
        self._rows: list[Row] = []
        self._jobs: dict[int, JobEvent] = {}

    def begin(self, worker: str) -> str:
        """Start as `worker`; return the prefix of every identifier from now on.

        It is unique to this start of this worker. Nothing may wait since an earlier start.
        """
        self._worker = worker
        self._waiting.clear()
        self._numbers = self._seq = 0
        self._start = secrets.token_hex(6)
        # Arrow's first value imports pandas, where that is installed: not beside the first events.
        pa.scalar(0)
        return self._start

    @property
    def waiting(self) -> int:
        """The number of waiting operations that the journal knows."""
        return len(self._waiting)

    def batch(self, events: Iterable[RawEvent]) -> pa.RecordBatch | None:
        """Return the rows of `events`, or None if there are none."""
        self._date()
        self._rows, self._jobs = [], {}
        for event in events:
            if event is GAP:
                self.note_gap()
            elif isinstance(event, RecordedJob):
                self._add_job(event)
            elif event[2] is _PENDING:
                self._add_watched(event)
            else:
                self._add_end(event)
        if not self._rows:
            return None
        first_seq = self._seq + 1
        self._seq += len(self._rows)
        try:
            return self._batch_of(self._rows, first_seq)
        except (pa.ArrowException, UnicodeError):
            # Keys that are not valid text: too rare to check every row for.
            return self._batch_of([_as_text(row) for row in self._rows], first_seq)

    def _batch_of(self, rows: Sequence[Row], first_seq: int) -> pa.RecordBatch:
        batch = batch_of(
            rows,
            self._jobs,
            start=self._start,
            first_seq=first_seq,
            worker=self._worker,
            offset_us=self._offset_us,
        )
        return batch if self._metadata is None else batch.replace_schema_metadata(self._metadata)

    def note_gap(self) -> None:
        """Record that events are missing from here on, possibly ends.

        An operation's id is reused once it has ended. An operation that waits since before the gap
        is distinguished from a later one of the same id by its deadline and keys.
        """
        self._gaps += 1

    def _add_watched(self, event: RawEvent) -> None:
        identity, cls, _, keys, _, deadline_ms, at_ns, *read = event
        kind = self._kinds.get(cls) or self._kind(cls)
        if self._sample and not self._is_chosen(kind):
            self._waiting[identity] = deadline_ms
            self.sampled_out += 1
            return
        self._numbers = number = self._numbers + 1
        labels = self._labels.pairs(read[0]) if read else self._labels.texts
        self._waiting[identity] = (
            *(number, at_ns, deadline_ms, keys, self._gaps, self._offset_us),
            labels,
        )
        deadline_us = deadline_ms * US_PER_MS
        written = self._written(keys)
        self._rows.append((number, WATCHED, kind, written, at_ns, at_ns, deadline_us, None, labels))

    def _add_end(self, event: RawEvent) -> None:
        identity, cls, status, keys, key, deadline_ms, at_ns = event
        waiting = self._waiting.pop(identity, None)
        if isinstance(waiting, int):
            self.sampled_out += 1
            return
        if waiting is None or (waiting[4] != self._gaps and waiting[2:4] != (deadline_ms, keys)):
            self.unpaired += 1
            return
        number, watched_ns, *_, offset_us, labels = waiting
        kind = self._kinds.get(cls) or self._kind(cls)
        deadline_us = deadline_ms * US_PER_MS
        if offset_us != self._offset_us:
            # The batch has one offset for all rows.
            shift_us = offset_us - self._offset_us
            at_ns += shift_us * NS_PER_US
            watched_ns += shift_us * NS_PER_US
            deadline_us += shift_us
        written = self._written(keys)
        by = None if key is None else self._written((key,))[0]
        self._rows.append(
            (number, CODES[status], kind, written, at_ns, watched_ns, deadline_us, by, labels)
        )

    def _add_job(self, recorded: RecordedJob) -> None:
        job, at_ms, at_ns = recorded
        kind = f"job:{job.handler}"
        # By its id, so that every worker decides alike, after every restart.
        if self._sample and random.Random(job.job_id).random() >= self._sample.get(kind, 1.0):  # noqa: S311 - a sample, the same in every process
            self.sampled_out += 1
            return
        # Another clock dates the job: it says how long the job waited, and this process since when.
        deferred_ns = at_ns - max(0, at_ms - job.deferred_at_ms) * NS_PER_MS
        deadline_ns = at_ns + (job.deadline_ms - at_ms) * NS_PER_MS
        self._jobs[len(self._rows)] = job
        self._rows.append(
            (
                0,
                WATCHED if job.status is _PENDING else CODES[job.status],
                kind,
                self._written(job.keys),
                at_ns,
                deferred_ns,
                deadline_ns // NS_PER_US,
                None if job.key is None else self._written((job.key,))[0],
                self._labels.texts,
            )
        )

    def _is_chosen(self, kind: str) -> bool:
        share = self._sample.get(kind, 1.0)
        return share >= 1 or random.random() < share  # noqa: S311 - a sample

    def _kind(self, cls: type) -> str:
        self._kinds[cls] = kind = kind_of(cls)
        return kind

    def _written(self, keys: tuple[Hashable, ...]) -> Sequence[str]:
        """Return `keys` as they are written."""
        rule = self._key_rule
        if rule is None:
            return keys  # type: ignore[return-value] # strings; `batch` handles others
        return [rule(_text(key)) for key in keys]

    def _date(self) -> None:
        now_ns = self._clock.now_ns()
        if now_ns < self._offset_until_ns:
            return
        self._offset_us = self._clock.wall_ms() * US_PER_MS - now_ns // NS_PER_US
        self._offset_until_ns = now_ns + _OFFSET_KEPT_NS
        if self._gaps:
            self._forget_lost(now_ns // NS_PER_MS - _LOST_AFTER_MS)

    def _forget_lost(self, deadline_ms: int) -> None:
        """Remove operations with an earlier deadline: their ends were dropped."""
        self._waiting = {
            identity: waiting
            for identity, waiting in self._waiting.items()
            if (waiting if isinstance(waiting, int) else waiting[2]) >= deadline_ms
        }


def _as_text(row: Row) -> Row:
    """Return `row` with keys that are valid text."""
    number, event, kind, keys, at_ns, watched_ns, deadline_us, by, labels = row
    texts = [_text(key) for key in keys]
    by = None if by is None else _text(by)
    return (number, event, kind, texts, at_ns, watched_ns, deadline_us, by, labels)


def _text(key: Hashable) -> str:
    """Return `key` as valid text: in a `DelayedOperationPurgatory` it may be any object."""
    text = key if isinstance(key, str) else str(key)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
