"""Sinks: their interface, their counts, and the thread that feeds one."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass

import pyarrow as pa

from purgatory.retry_policy import RetryPolicy
from purgatory.timer.clock import NS_PER_SECOND, Clock

logger = logging.getLogger("purgatory.journal")


@dataclass(frozen=True, slots=True)
class SinkStatistics:
    """Counts of one sink."""

    name: str
    written: int
    """Rows in a complete file, or acknowledged by the server."""
    pending: int
    """Rows that are queued, or in an incomplete file."""
    dropped: int
    """Rows that were dropped, since the sink was slow, full or unavailable."""
    files: int
    """Complete files; 0 for a sink without files."""
    bytes: int
    """Bytes of the complete files, or sent."""
    is_failing: bool
    """Whether the last attempt failed; it is being retried."""
    last_error: str | None
    """The last error, however long ago."""


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    """Counts of a journal. `rows` equals written + pending + dropped of each sink."""

    rows: int
    """Rows made of events."""
    buffered: int
    """Events that are not rows yet."""
    dropped: int
    """Events that will not be rows: the buffer was full, or their start was dropped before."""
    sampled_out: int
    """Events left out by sampling."""
    waiting: int
    """Operations that are watched and have not ended."""
    sinks: tuple[SinkStatistics, ...]


class Sink(ABC):
    """Takes batches of rows, on a thread of its own, where it may block and fail.

    The journal calls `open` first and then, on that thread, the other methods.
    """

    # Rows that are written durably, and the files and bytes that they are in.
    written = 0
    files = 0
    bytes = 0

    @property
    @abstractmethod
    def name(self) -> str:
        """The name in statistics and logs; without passwords."""

    @abstractmethod
    def open(self, writer: str, clock: Clock) -> None:
        """Prepare to write, as the uniquely named `writer`, on the journal's clock.

        Called again after `close` if the journal is opened again. Raises an error if the sink can
        never work.
        """

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Take `batch`. If this raises, the journal calls `abandon`."""

    @abstractmethod
    def roll(self) -> None:
        """Write all rows that were taken durably."""

    @abstractmethod
    def abandon(self) -> int:
        """Release what failed; return how many of the rows that were taken are lost.

        `roll` retries the others.
        """

    @property
    def due_ns(self) -> int | None:
        """When `roll` is due, on the journal's clock; None if nothing is."""
        return None

    def close(self) -> int:
        """Release everything; return how many of the rows that were taken are lost."""
        return self.abandon()


class DroppingLog:
    """Logs the start and the end of a time in which what does not fit is dropped, once each."""

    def __init__(self, began: str, ended: str) -> None:
        """Log `began` with its details; `ended` with its own and the count of what was dropped."""
        self._began = began
        self._ended = ended
        # The count before; None while nothing is dropped.
        self._before: int | None = None

    def begin(self, dropped_before: int, *details: object) -> None:
        """Note that something is dropped."""
        if self._before is None:
            self._before = dropped_before
            logger.warning(self._began, *details, extra={"action": "journal-dropping"})

    def end(self, dropped: int, *details: object) -> None:
        """Note that there is room again."""
        before, self._before = self._before, None
        if before is not None:
            logger.info(
                self._ended, *details, dropped - before, extra={"action": "journal-kept-up"}
            )


class SinkThread:
    """Feeds one sink from a bounded queue of rows, and counts those that it drops.

    `offer` never blocks. The first failure of the sink is logged, and so is its recovery; in
    between it is retried after the delays of `retry`.
    """

    # Invariant: offered == sink.written + pending + dropped, and pending >= _queued.

    def __init__(self, sink: Sink, *, max_rows: int, retry: RetryPolicy, clock: Clock) -> None:
        self.sink = sink
        self._max_rows = max_rows
        self._retry = retry
        self._clock = clock
        self._changed = threading.Condition()
        # Batches, and events that are set when all before them is written.
        self._queue: deque[pa.RecordBatch | threading.Event] = deque()
        self._queued = 0
        self._offered = 0
        self._dropped = 0
        self._last_error: str | None = None
        self._dropping = DroppingLog(
            "%s is too slow: %d rows are queued, further ones are dropped",
            "%s keeps up again; %d rows were dropped",
        )
        # An episode of failing is logged at its start and end.
        self._is_failing = False
        self._failed_attempts = 0
        self._has_to_pause = False
        # The count when it began, and rows written when the sink failed last.
        self._dropped_before_failing = 0
        self._written_before = 0
        self._is_closing = False
        self._thread: threading.Thread | None = None

    @property
    def is_alive(self) -> bool:
        """True from `start` until everything is written or dropped."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the thread; again once the last one has ended."""
        self._is_closing = self._has_to_pause = False
        # A daemon thread: a disk that hangs does not keep the process from ending.
        self._thread = threading.Thread(
            target=self._run, name=f"purgatory-journal {self.sink.name}", daemon=True
        )
        self._thread.start()

    def offer(self, batch: pa.RecordBatch) -> None:
        """Queue `batch` for the sink, or drop it if the queue is full."""
        with self._changed:
            self._offered += batch.num_rows
            # A single batch always fits, even if it is larger than the bound.
            has_room = not self._queued or self._queued + batch.num_rows <= self._max_rows
            is_kept = has_room and not self._is_closing
            if is_kept:
                self._queued += batch.num_rows
                self._queue.append(batch)
                self._changed.notify()
            else:
                self._dropped += batch.num_rows
        if not is_kept:
            if not self._is_failing:
                self._dropping.begin(self._dropped, self.sink.name, self._queued)
        elif self._queued <= self._max_rows // 2:
            self._dropping.end(self._dropped, self.sink.name)

    def flush(self) -> threading.Event:
        """Return an event that is set once everything offered so far is written or dropped."""
        done = threading.Event()
        with self._changed:
            self._queue.append(done)
            self._changed.notify()
        return done

    def begin_close(self) -> None:
        """Take no more rows; write those queued, without waiting for a failing sink."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()

    def join(self, timeout: float) -> None:
        """Wait for the thread; rows not written after `timeout` seconds are dropped."""
        assert self._thread is not None
        self._thread.join(timeout)
        if self.is_alive:
            logger.error(
                "%s did not finish within %.1f s: %d rows are dropped",
                self.sink.name,
                timeout,
                self.statistics().pending,
                extra={"action": "journal-close-timeout"},
            )

    def statistics(self) -> SinkStatistics:
        """Return the present counts."""
        with self._changed:
            written, dropped = self.sink.written, self._dropped
            return SinkStatistics(
                name=self.sink.name,
                written=written,
                pending=self._offered - written - dropped,
                dropped=dropped,
                files=self.sink.files,
                bytes=self.sink.bytes,
                is_failing=self._is_failing,
                last_error=self._last_error,
            )

    def _run(self) -> None:
        while not self._is_finished():
            try:
                self._step()
            except Exception as exc:
                # Any error of a disk or a server: the thread continues.
                self._on_failure(exc)
        self._give_up_rest()

    def _step(self) -> None:
        """Write one batch, or roll what is due, or wait for either."""
        if self._has_to_pause:
            self._pause()
            # What the sink still holds comes before new rows.
            self.sink.roll()
        item = self._next()
        if isinstance(item, threading.Event):
            try:
                self.sink.roll()
            finally:
                item.set()
        elif item is not None:
            self.sink.write(item)
        due_ns = self.sink.due_ns
        if due_ns is not None and due_ns <= self._clock.now_ns():
            self.sink.roll()
        if self._is_failing and self.sink.written > self._written_before:
            self._on_recovery()

    def _next(self) -> pa.RecordBatch | threading.Event | None:
        with self._changed:
            if not self._queue and not self._is_closing:
                self._changed.wait(self._seconds_until_due())
            if not self._queue:
                return None
            item = self._queue.popleft()
            if not isinstance(item, threading.Event):
                self._queued -= item.num_rows
            return item

    def _seconds_until_due(self) -> float | None:
        due_ns = self.sink.due_ns
        return None if due_ns is None else max(0, due_ns - self._clock.now_ns()) / NS_PER_SECOND

    def _pause(self) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closing, self._retry.delay_s(self._failed_attempts)
            )
            self._has_to_pause = False

    def _is_finished(self) -> bool:
        with self._changed:
            # A failing sink is tried once more at the end, not for each batch.
            return self._is_closing and (self._has_to_pause or not self._queue)

    def _give_up_rest(self) -> None:
        try:
            self.sink.roll()
        except Exception as exc:
            self._on_failure(exc)
        lost = self.sink.close()
        with self._changed:
            self._dropped += lost + self._queued
            self._queued = 0
            waiting = [item for item in self._queue if isinstance(item, threading.Event)]
            self._queue.clear()
        for done in waiting:
            done.set()

    def _on_failure(self, error: Exception) -> None:
        lost = self.sink.abandon()
        with self._changed:
            is_new, self._is_failing = not self._is_failing, True
            self._failed_attempts += 1
            self._has_to_pause = True
            if is_new:
                self._dropped_before_failing = self._dropped
            self._written_before = self.sink.written
            self._dropped += lost
            self._last_error = f"{type(error).__name__}: {error}"
        if is_new:
            logger.error(
                "%s failed, %d rows are lost; retrying at least every %.1f s, rows that do not fit "
                "into the queue are dropped: %s",
                self.sink.name,
                lost,
                self._retry.max_ms / 1000,
                self._last_error,
                extra={"action": "journal-failed"},
            )

    def _on_recovery(self) -> None:
        with self._changed:
            self._is_failing = False
            self._failed_attempts = 0
        logger.info(
            "%s works again; %d rows were lost or dropped",
            self.sink.name,
            self._dropped - self._dropped_before_failing,
            extra={"action": "journal-recovered"},
        )
