"""The wait of a stream: parked once, on its keys until it ends."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from purgatory.fastapi.http.bounds import Deadlines
from purgatory.fastapi.http.problem_mapping import problem_of_exception
from purgatory.fastapi.http.problems import Problem
from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.sse.events import (
    EventEncoder,
    Positions,
    Reading,
    StreamRequest,
    begin_event,
    cursor_of_positions,
    end_event,
    lost_signals,
    problem_event,
    problem_stream,
    unread_signals,
)
from purgatory.fastapi.watch.parked_requests import ParkedRequest, WaitRegistry
from purgatory.operations import DelayedOperation
from purgatory.outcome import Status

# Bytes that are sent at once: what is behind them is read from the history, once they are sent.
PIECE = 64 * 1024


class ParkedStream(ParkedRequest):
    """A stream of events: a key that fires makes it send, and does not complete it.

    It holds the positions up to which it has sent, and reads what follows from the history when the
    client reads: a slow one costs no more memory than a piece, and loses nothing until the history
    is trimmed, which is its last event then.

    Subclasses send, for a server interface, in `wake` and `end`. Call `abandon` when the client
    leaves.
    """

    kind: ClassVar[str] = "stream"

    __slots__ = ("_is_begun", "_reached", "streams")

    def __init__(self, request: StreamRequest, streams: EventStreams) -> None:
        """Prepare to stream as `request` says; nothing is sent before it is parked."""
        ParkedRequest.__init__(self, request.watch, streams.registry)
        self.streams = streams
        self._reached: Positions = request.watch.positions
        self._is_begun = False

    @property
    def cursor(self) -> str:
        """The cursor after what was sent."""
        return cursor_of_positions(self.signals, self.watched_keys, self._reached)

    def wake(self) -> None:
        """Send the unread events, unless the client has not read the last ones."""
        raise NotImplementedError(f"{type(self).__name__} does not define wake()")

    def beat(self) -> None:
        """Send a comment, unless the client has not read the last one."""
        raise NotImplementedError(f"{type(self).__name__} does not define beat()")

    def end(self, last: bytes) -> None:
        """Send `last`, and complete the response. Called once, unless the client has left."""
        raise NotImplementedError(f"{type(self).__name__} does not define end()")

    def try_complete(self) -> bool:
        """Send the unread events; return False, as the stream continues."""
        # Before that, it is being parked: what fires meanwhile is found when it begins.
        if self._is_begun:
            self.wake()
        return False

    def on_complete(self) -> None:
        """End the stream with an event that says why, unless the client has left."""
        self.streams.discard(self)
        registration = self._registration
        registry = registration.registry
        if registration is not registry.unnamed:
            registry.forget(self, registration)
        if self.is_abandoned:
            return
        try:
            self.end(self._last_events())
        except Exception as exc:
            # A fault of ours: the response ends all the same.
            self.end(self._problem_event(exc))

    def _last_events(self) -> bytes:
        if self.status is Status.OUTDATED:
            lost = self._lost()
            assert lost is not None
            return self._problem_event(lost)
        if self.status is not Status.CANCELLED:
            # A stream that only asks, with `wait=0`, gets as much as a wait; others a little more.
            room = PIECE if self.delay_ms else self.streams.registry.settings.max_response_bytes
            last = self._next_events(room)
            return last + end_event(self.status, self.cursor)
        if self._lost() is not None:
            # The history was dropped, which is why the stream ends.
            self._reached = tuple(map(self.signals.head_of, self.watched_keys))
        return end_event(self.status, self.cursor)

    def refuse(self, response: RawResponse) -> bool:
        """End the stream, superseded by another one; return True iff it was pending."""
        return self._fail(problem_event("superseded", response.body))

    def begin_bytes(self, is_from_now: bool) -> bytes:
        """Return the first event, for a stream that has no cursor yet; nothing for others."""
        self._is_begun = True
        return begin_event(self.cursor) if is_from_now else b""

    def next_piece(self) -> bytes:
        """Return the next events, which count as sent; empty if there are none.

        Up to PIECE bytes but for the last event. The stream ends here if it has lost signals.
        """
        if self._lost() is not None:
            self._cancel(Status.OUTDATED)
            return b""
        try:
            return self._next_events(PIECE)
        except Exception as exc:
            self._fail(self._problem_event(exc))
            return b""

    def _settle(self, status: Status) -> bool:
        # By what was sent, not by where the stream began.
        if status is not Status.CANCELLED and self._lost() is not None:
            status = Status.OUTDATED
        return DelayedOperation._settle(self, status)

    def _lost(self) -> Problem | None:
        return lost_signals(self.signals, self.watched_keys, self._reached)

    def _next_events(self, room: int) -> bytes:
        signals, keys, reached = self.signals, self.watched_keys, self._reached
        encoder, size = self.streams.encoder, 0
        events: list[bytes] = []
        unread = unread_signals(signals, keys, reached)
        if not unread:
            return b""
        reading = Reading(signals, keys, reached)
        for signal in unread:
            event = encoder.event(signal, reading.read(signal))
            events.append(event)
            size += len(event)
            if size >= room:
                break
        self._reached = reading.positions
        return b"".join(events)

    @property
    def has_more(self) -> bool:
        """True iff there are signals that were not sent."""
        pairs = zip(self.watched_keys, self._reached, strict=True)
        return any(self.signals.last(key) > position for key, position in pairs)

    def _problem_event(self, error: Exception) -> bytes:
        registry = self.streams.registry
        path = registry.path_of(self.watched_keys)
        problem = problem_of_exception(error, "GET", path)
        response = problem.response(registry.context.prefix, path)
        return problem_event(problem.kind.slug, response.body)

    def _fail(self, last: bytes) -> bool:
        if self._parked_in is not None:
            return bool(self._in_own_context(self._fail, last))
        if not self.abandon():
            return False
        self.end(last)
        return True


class EventStreams:
    """What the streams of one router share."""

    def __init__(self, registry: WaitRegistry) -> None:
        """Park streams in `registry`."""
        self.registry = registry
        self.encoder = EventEncoder(registry.responses)
        # Comments: all streams have the same interval, each since its own begin.
        self._beats: Deadlines[ParkedStream] | None = None

    def add(self, stream: ParkedStream) -> None:
        """Have `stream` send a comment in each interval from now on, until it ends."""
        loop = asyncio.get_running_loop()
        if self._beats is None or self._beats.loop is not loop:
            self._beats = Deadlines(loop, self.registry.settings.heartbeat, self._beat)
        self._beats.add(stream)

    def discard(self, stream: ParkedStream) -> None:
        """Forget a stream that has ended. Idempotent."""
        if self._beats is not None:
            self._beats.discard(stream)

    def refusal(self, raw: RawRequest, error: Exception) -> RawResponse:
        """Return the response to a stream that could not be parked."""
        problem = problem_of_exception(error, "GET", raw.path)
        prefix = self.registry.context.prefix
        found = problem_stream(problem, prefix, raw.path)
        return problem.response(prefix, raw.path) if found is None else found

    def _beat(self, stream: ParkedStream) -> None:
        stream.beat()
        if not stream.is_completed:
            self.add(stream)
