"""The journal: a buffer, a thread that makes rows, and a thread for each sink."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Final, Self

from purgatory.journal.event_rows import EventRows, KeyRule, RecordedJob
from purgatory.journal.labels import Label, Labels
from purgatory.journal.sink import DroppingLog, JournalStatistics, Sink, SinkThread
from purgatory.operations.event_buffer import GAP, EventBuffer, RawEvent
from purgatory.operations.operation_listeners import JobEvent, Record
from purgatory.outcome import Status
from purgatory.retry_policy import RetryPolicy
from purgatory.timer.clock import NS_PER_SECOND, Clock, Seconds, SystemClock, seconds_of

if TYPE_CHECKING:
    from purgatory.operations.delayed_operation import DelayedOperation

logger = logging.getLogger("purgatory.journal")

# How often the buffer is emptied. The purgatory wakes no thread: it would cost more than an event.
_INTERVAL_S: Final = 0.1
# Events converted at a time, and the pause after them in which the event loop can run.
_SLICE: Final = 500
_BREATH_S: Final = 0.000_1

RETRY_POLICY: Final = RetryPolicy(first_ms=1_000, max_ms=10_000)


class Journal:
    """Records the start and the end of every operation: `Purgatory(listeners=[journal])`.

    The purgatory's thread only puts events into a buffer. A thread makes rows of them, and one
    thread for each sink writes these. Every buffer is bounded; what does not fit is dropped,
    counted and logged, and affects neither the purgatory nor another sink.

    Open it before the purgatory and close it after, with `async with` or `with`, so that drained
    operations are recorded. Once closed it can be opened again, which is another start in its rows.
    """

    def __init__(
        self,
        *sinks: Sink,
        worker: str | None = None,
        sample: Mapping[str, float] | None = None,
        keys: KeyRule | None = None,
        labels: Mapping[str, Label] | None = None,
        max_buffered: int = 100_000,
        retry: RetryPolicy = RETRY_POLICY,
        close_timeout: Seconds = 10.0,
        clock: Clock | None = None,
    ) -> None:
        """Write to `sinks`, as `worker` (default: host name and process id).

        `sample` maps a kind of operations to the share of them that is written, 0 to 1; a kind that
        is not in it is written completely. `keys` maps a key to its written form: HashedKeys,
        KeyPrefixes or a function; by default keys are written as they are. `labels` maps up to 8
        names to texts, or to functions that are called without arguments when an operation begins,
        in the context (`contextvars`) of the one that parks, and return a text, of which 128
        characters are kept, or None; rows of jobs have the texts only. `max_buffered` bounds
        the events before they are rows and, for each sink, the rows before they are written. A
        failed sink is retried after the delays of `retry`; closing takes up to `close_timeout`
        seconds. `clock` is the purgatory's.

        Raises ValueError without a sink and for arguments out of range.
        """
        if not sinks:
            raise ValueError("a journal needs a sink, such as ParquetFiles(...)")
        close_timeout = seconds_of(close_timeout)
        self._check(sample or {}, max_buffered, close_timeout)
        self._worker = worker
        self._clock = SystemClock() if clock is None else clock
        self._buffer = EventBuffer(max_buffered, self._clock)
        self._labels = Labels(labels or {})
        self._rows = EventRows(
            sample=dict(sample or {}), keys=keys, labels=self._labels, clock=self._clock
        )
        self._sinks = [
            SinkThread(sink, max_rows=max_buffered, retry=retry, clock=self._clock)
            for sink in sinks
        ]
        self._max_buffered = max_buffered
        self._close_timeout = close_timeout
        self._wake = threading.Event()
        self._is_closing = False
        self._rows_made = 0
        # Events of slices that could not be converted.
        self._unwritable = 0
        # The buffer's count of dropped events when it was emptied last.
        self._dropped_seen = 0
        self._dropping = DroppingLog(
            "the journal is too slow: %d events are buffered, further ones are dropped",
            "the journal keeps up again; %d events were dropped",
        )
        # Callers of `flush`.
        self._flushes: deque[tuple[threading.Event, list[threading.Event]]] = deque()
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        """Return the sinks' names."""
        return f"<Journal to {', '.join(sink.sink.name for sink in self._sinks)}>"

    def __enter__(self) -> Self:
        """Open the journal."""
        self.open()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the journal."""
        self.close()

    async def __aenter__(self) -> Self:
        """Open the journal, off the event loop."""
        await asyncio.to_thread(self.open)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Close the journal, off the event loop."""
        await asyncio.to_thread(self.close)

    @property
    def record(self) -> Record:
        """The listener that the purgatory calls for each event; takes 0.5 us and never blocks."""
        # Without functions nothing of labels is paid for on the purgatory's thread.
        return self._record_labelled if self._labels.has_functions else self._buffer.record

    def open(self) -> None:
        """Start the threads. Raises the error of a sink that can never work, such as OSError.

        Raises RuntimeError while the journal is open, or a sink is still busy since the last close.
        """
        if self._thread is not None and not self._is_closing:
            raise RuntimeError(f"{self!r} is open already: close it first")
        if any(sink.is_alive for sink in self._sinks):
            raise RuntimeError(f"{self!r} still writes what was recorded before: create a new one")
        self._is_closing = False
        self._wake.clear()
        # Only now: a server may create the journal before it forks its workers.
        worker = self._worker or f"{socket.gethostname()}:{os.getpid()}"
        start = self._rows.begin(worker)
        for sink in self._sinks:
            sink.sink.open(f"{worker}-{start}", self._clock)
        # A daemon thread never keeps the process from ending.
        self._thread = threading.Thread(target=self._run, name="purgatory-journal", daemon=True)
        self._thread.start()
        for sink in self._sinks:
            sink.start()
        logger.info("%r is open", self, extra={"action": "journal-opened"})

    def close(self) -> None:
        """Write what is buffered and stop; after `close_timeout` seconds the rest is dropped.

        Blocks: do not call it on the event loop. Idempotent.
        """
        thread = self._thread
        if thread is None or self._is_closing:
            return
        self._is_closing = True
        self._wake.set()
        until_ns = self._clock.now_ns() + int(self._close_timeout * NS_PER_SECOND)
        thread.join(self._close_timeout)
        for sink in self._sinks:
            sink.join(max(0.0, (until_ns - self._clock.now_ns()) / NS_PER_SECOND))
        logger.info("%r is closed", self, extra={"action": "journal-closed"})

    def flush(self, timeout: Seconds = 10.0) -> bool:
        """Write everything recorded so far; return True iff that finished within `timeout` seconds.

        Completes files early. Blocks: do not call it on the event loop.
        """
        if self._thread is None or self._is_closing:
            return False
        is_handed_on, done = threading.Event(), list[threading.Event]()
        timeout = seconds_of(timeout)
        until_ns = self._clock.now_ns() + int(timeout * NS_PER_SECOND)
        self._flushes.append((is_handed_on, done))
        self._wake.set()
        if not is_handed_on.wait(timeout):
            return False
        return all(
            event.wait(max(0.0, (until_ns - self._clock.now_ns()) / NS_PER_SECOND))
            for event in done
        )

    def job_event(self, event: JobEvent) -> None:
        """Record that a job was deferred (status "pending") or ended, as kind job:HANDLER.

        `Purgatory(listeners=[journal], jobs=...)` calls it for each job that ends in this process.
        `at_ms` is taken from this process by default, and `lateness_ms` of an expired job is by
        default how late this call is. A job that waits again has an event for each round, an
        operation of its own. Call it on the purgatory's thread. Never blocks.
        """
        at_ms = self._clock.wall_ms() if event.at_ms is None else event.at_ms
        self._buffer.put(RecordedJob(event, at_ms, self._clock.now_ns()))

    def statistics(self) -> JournalStatistics:
        """Return the present counts."""
        return JournalStatistics(
            rows=self._rows_made,
            buffered=len(self._buffer),
            dropped=self._buffer.dropped + self._rows.unpaired + self._unwritable,
            sampled_out=self._rows.sampled_out,
            waiting=self._rows.waiting,
            sinks=tuple(sink.statistics() for sink in self._sinks),
        )

    def _record_labelled(
        self,
        operation: DelayedOperation,
        status: Status,
        keys: tuple[Hashable, ...],
        key: Hashable | None,
        deadline_ms: int,
    ) -> None:
        if status is not Status.PENDING:
            self._buffer.record(operation, status, keys, key, deadline_ms)
            return
        event = (id(operation), operation.__class__, status, keys, key, deadline_ms)
        self._buffer.put((*event, self._clock.now_ns(), self._labels.read(operation)))

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._wake.wait(_INTERVAL_S)
            self._wake.clear()
            # Read before the buffer is emptied: everything recorded by then is written.
            is_last = self._is_closing
            flushes = [self._flushes.popleft() for _ in range(len(self._flushes))]
            self._empty_buffer()
            for is_handed_on, done in flushes:
                done.extend(sink.flush() for sink in self._sinks)
                is_handed_on.set()
        for sink in self._sinks:
            sink.begin_close()

    def _empty_buffer(self) -> None:
        """Make rows of the present contents of the buffer."""
        # One more, for the mark in place of missing events.
        events = self._buffer.take(self._max_buffered + 1)
        for begin in range(0, len(events), _SLICE):
            self._write(events[begin : begin + _SLICE])
            self._wake.wait(_BREATH_S)
        self._note_dropped(self._buffer.dropped)

    def _write(self, events: list[RawEvent]) -> None:
        try:
            batch = self._rows.batch(events)
        except Exception:
            # For example the user's key rule failed. The thread continues.
            self._unwritable += len(events) - events.count(GAP)
            self._rows.note_gap()
            logger.exception(
                "%d events cannot be written", len(events), extra={"action": "journal-unwritable"}
            )
            return
        if batch is not None:
            self._rows_made += batch.num_rows
            for sink in self._sinks:
                sink.offer(batch)

    def _note_dropped(self, dropped: int) -> None:
        """Log the start and the end of an episode in which the buffer is full."""
        if dropped != self._dropped_seen:
            self._dropping.begin(self._dropped_seen, self._max_buffered)
        else:
            self._dropping.end(dropped)
        self._dropped_seen = dropped

    @staticmethod
    def _check(sample: Mapping[str, float], max_buffered: int, close_timeout: float) -> None:
        for kind, share in sample.items():
            if not 0 <= share <= 1:
                raise ValueError(f"sample of {kind!r} is {share!r}: give a share from 0 to 1")
        if max_buffered < 1:
            raise ValueError(f"max_buffered is {max_buffered}: give 1 or more")
        # Written so that NaN, which compares as false, is refused.
        if not 0 < close_timeout <= threading.TIMEOUT_MAX:
            raise ValueError(
                f"close_timeout is {close_timeout!r}: give a number of seconds above zero"
            )
