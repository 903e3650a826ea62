"""Streams: the bytes and ids of their events, and the operation that parks until the next ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as _json_string
from typing import ClassVar, Final, NamedTuple

from purgatory.errors import CursorExpiredError
from purgatory.fastapi.http.bounds import Deadlines
from purgatory.fastapi.http.errors import problem_of_error, problem_of_exception
from purgatory.fastapi.http.requests import RawRequest
from purgatory.fastapi.http.responses import CLOSE, Problem, RawResponse, poll_after_drain_ms
from purgatory.fastapi.routing.endpoints import Connection
from purgatory.fastapi.watch.parked_requests import (
    Keys,
    ParkedRequest,
    Positions,
    WaitRegistry,
    WatchResponses,
)
from purgatory.fastapi.watch.request_parser import WatchRequest
from purgatory.operations import DelayedOperation
from purgatory.outcome import Status
from purgatory.signals import MemorySignals, Signal


class StreamRequest(NamedTuple):
    """A stream on one key or several, checked."""

    watch: WatchRequest
    """Its wait is how long the stream may last."""
    is_from_now: bool
    """No cursor was given: the stream begins with one."""


END_ID: Final = "end"
"""The id of the last event of a stream that must not be resumed: a reconnect with it gets 204."""
COMMENT: Final = b":\n\n"
"""What keeps a quiet stream open, and finds clients that are gone."""

_TYPE: Final = (b"content-type", b"text/event-stream")
# nginx buffers what it proxies, unless the response forbids it; other proxies compress it.
_HEADERS: Final = (
    _TYPE,
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),
)
HEAD: Final = RawResponse(200, _HEADERS, b"")
"""The head of a stream, for ASGI or with the end of the connection as its end."""
CHUNKED_HEAD: Final = RawResponse(200, (*_HEADERS, (b"transfer-encoding", b"chunked")), b"")
"""The head of a stream in chunks (RFC 9112, 7.1)."""
# They end no line of an event, but many clients use `str.splitlines`, for which they do. In JSON
# they occur in strings only, so an escape is the same value.
_SEPARATORS: Final = tuple(
    (char.encode(), b"\\u%04x" % ord(char)) for char in ("\x85", "\u2028", "\u2029")
)
# Their client cannot do better by asking again.
_FINAL_PROBLEMS: Final = frozenset({"cursor-expired", "superseded"})


class EventEncoder:
    """Encodes the events of signals; the last one is cached, for all streams that it goes to."""

    def __init__(self, responses: WatchResponses) -> None:
        """Encode signals as `responses` does."""
        self._responses = responses
        self._signal: Signal | None = None
        self._body = b""

    def event(self, signal: Signal, cursor: str) -> bytes:
        """Return the event of `signal`; its id is the stream's `cursor` after it."""
        if signal is not self._signal:
            key, value = _json_string(signal.key).encode(), self._responses.signal_json(signal)
            for separator, escaped in _SEPARATORS:
                value = value.replace(separator, escaped)
            self._body = b'event: signal\ndata: {"key":%b,%b\n\n' % (key, value[1:])
            self._signal = signal
        return b"id: %b\n%b" % (cursor.encode(), self._body)


def begin_event(cursor: str) -> bytes:
    """Return the first event of a stream without a cursor: where to resume before any signal."""
    return b'event: begin\nid: %b\ndata: {"cursor":"%b"}\n\n' % (cursor.encode(), cursor.encode())


def end_event(status: Status, cursor: str) -> bytes:
    """Return the last event of a stream that ended with `status`; it says when to reconnect."""
    reason, encoded = str(status).encode(), cursor.encode()
    if status is Status.CANCELLED:
        data = b'{"reason":"%b","cursor":"%b"}' % (reason, encoded)
        return b"event: %b\nid: %b\ndata: %b\n\n" % (reason, END_ID.encode(), data)
    retry = poll_after_drain_ms()
    data = b'{"reason":"%b","cursor":"%b","poll_after_ms":%d}' % (reason, encoded, retry)
    return b"event: %b\nid: %b\nretry: %d\ndata: %b\n\n" % (reason, encoded, retry, data)


def problem_event(slug: str, document: bytes, retry_s: str | None = None) -> bytes:
    """Return the last event of a stream that ended with a problem; `document` is its JSON."""
    lines = b"event: %b\n" % slug.encode()
    if slug in _FINAL_PROBLEMS:
        lines += b"id: %b\n" % END_ID.encode()
    elif retry_s is not None:
        lines += b"retry: %d\n" % (1000 * int(retry_s))
    return b"%bdata: %b\n\n" % (lines, document)


def problem_stream(problem: Problem, prefix: str, instance: str) -> RawResponse | None:
    """Return a stream of one event that reports `problem`; None if its own status is right.

    A browser's EventSource never reconnects after another status than 200, and does not show its
    page the body. So that a deploy does not end it for good, and the page learns the cursors,
    what passes by itself and expired cursors are events.
    """
    headers = problem.headers or {}
    retry_s = headers.get("Retry-After")
    slug = problem.kind.slug
    if retry_s is None and slug not in _FINAL_PROBLEMS:
        return None
    body = problem_event(slug, problem.response(prefix, instance).body, retry_s)
    response = RawResponse(200, (*_HEADERS, (b"content-length", b"%d" % len(body))), body)
    if "Connection" in headers:
        response.add_lines(CLOSE)
    return response


# Signals of a key that are read at once.
MAX_READ = 100


def cursor_of_positions(signals: MemorySignals, keys: Keys, positions: Sequence[int]) -> str:
    """Return the cursor of a reader of `keys` at `positions`."""
    if not signals.is_shared or len(keys) == 1:
        return signals.cursor(positions[0])
    logs = {
        id(signals.part((key,))): position for key, position in zip(keys, positions, strict=True)
    }
    return ".".join(map(signals.cursor, logs.values()))


def earliest_positions(signals: MemorySignals, keys: Keys) -> Positions:
    """Return the earliest positions after which every signal of each key is retained."""
    earliest: dict[int, int] = {}
    logs = [id(signals.part((key,))) for key in keys]
    for key, log in zip(keys, logs, strict=True):
        earliest[log] = max(earliest.get(log, 0), signals.earliest(key))
    return tuple(earliest[log] for log in logs)


def positions_of_cursor(signals: MemorySignals, keys: Keys, cursor: str | None) -> Positions:
    """Return the positions of `cursor`; "0" is the earliest with all signals of all keys.

    Raises BadCursorError and, if a signal of any key was trimmed since, Problem.
    """
    if cursor is None:
        return tuple(signals.head_of(key) for key in keys)
    if cursor == "0":
        return earliest_positions(signals, keys)
    try:
        return tuple(signals.position(key, cursor) for key in keys)
    except CursorExpiredError as error:
        raise expired_problem(signals, keys, error) from error


def lost_signals(signals: MemorySignals, keys: Keys, positions: Positions) -> Problem | None:
    """Return the problem of a reader at `positions` if a signal after them was trimmed."""
    for key, position in zip(keys, positions, strict=True):
        if position < signals.earliest(key):
            try:
                # Not `loss`: while a loss settles, this refuses, as a cursor given out now could
                # expire with it.
                signals.position(key, signals.cursor(position))
            except CursorExpiredError as error:
                return expired_problem(signals, keys, error)
    return None


def expired_problem(signals: MemorySignals, keys: Keys, error: CursorExpiredError) -> Problem:
    """Return the problem of an expired cursor, with cursors that are good for all of `keys`."""
    problem = problem_of_error(error)
    problem.members["head"] = signals.cursor_of(keys)
    earliest = earliest_positions(signals, keys)
    problem.members["earliest"] = cursor_of_positions(signals, keys, earliest)
    return problem


def unread_signals(signals: MemorySignals, keys: Keys, positions: Positions) -> list[Signal]:
    """Return some of the signals after `positions`, in the order in which they are to be read.

    Each log is in the order of its offsets, and none is left out in between.
    """
    if len(keys) == 1:
        return signals.read(keys[0], positions[0], MAX_READ)
    found: list[Signal] = []
    horizon = None
    for key, position in zip(keys, positions, strict=True):
        unread = signals.read(key, position, MAX_READ)
        found += unread
        if len(unread) == MAX_READ and (horizon is None or unread[-1].offset < horizon):
            # Later signals of this key were not read, so none of the others may pass them.
            horizon = unread[-1].offset
    found.sort(key=lambda signal: signal.offset)
    if horizon is not None:
        return [signal for signal in found if signal.offset <= horizon]
    return found


class Reading:
    """A reader of `keys` that reads on; a step takes as long however many keys there are."""

    __slots__ = ("_by_log", "_log_of", "_logs", "_signals")

    def __init__(self, signals: MemorySignals, keys: Keys, positions: Positions) -> None:
        """Begin at `positions`."""
        has_logs = signals.is_shared and len(keys) > 1
        self._signals = signals
        self._logs = [id(signals.part((key,))) if has_logs else 0 for key in keys]
        self._log_of = dict(zip(keys, self._logs, strict=True))
        # In the order of `cursor_of_positions`.
        self._by_log = dict(zip(self._logs, positions, strict=True))

    def read(self, signal: Signal) -> str:
        """Go on to after `signal`, the next one of `unread_signals`; return the cursor there."""
        self._by_log[self._log_of[signal.key]] = signal.offset
        return ".".join(map(self._signals.cursor, self._by_log.values()))

    @property
    def positions(self) -> Positions:
        """The positions after what was read."""
        return tuple(self._by_log[log] for log in self._logs)


# Bytes that are sent at once: what is behind them is read from the history, once they are sent.
PIECE = 64 * 1024


class ParkedStream(ParkedRequest):
    """A stream of events: a key that fires makes it send, and does not complete it.

    It holds the positions up to which it has sent, and reads what follows from the history when the
    client reads: a slow one costs no more memory than a piece, and loses nothing until the history
    is trimmed, which is its last event then.

    Call `abandon` when the client leaves.
    """

    kind: ClassVar[str] = "stream"

    __slots__ = ("_is_begun", "_reached", "streams")

    def __init__(
        self, request: StreamRequest, streams: EventStreams, connection: Connection
    ) -> None:
        """Prepare to stream as `request` says; nothing is sent before it is parked."""
        ParkedRequest.__init__(self, request.watch, streams.registry, connection)
        self.streams = streams
        self._reached: Positions = request.watch.positions
        self._is_begun = False

    @property
    def cursor(self) -> str:
        """The cursor after what was sent."""
        return cursor_of_positions(self.signals, self.watched_keys, self._reached)

    def begin(self, is_from_now: bool) -> None:
        """Send the head, and the signals after the cursor; call it once it is parked."""
        self._begin(is_from_now)
        self.streams.add(self)
        self.wake()

    def _begin(self, is_from_now: bool) -> None:
        self._is_begun = True
        self._connection.begin_stream(HEAD, CHUNKED_HEAD, self)
        if is_from_now:
            self._connection.send_piece(begin_event(self.cursor))

    def wake(self) -> None:
        """Send the unread events, unless the client has not read the last ones."""
        if self._parked_in is not None:
            self._in_own_context(self.wake)
            return
        if self.is_completed or self._connection.is_write_paused:
            return
        piece = self._next_piece()
        if piece:
            self._connection.send_piece(piece)
            if self._has_more:
                # By then it is known if the client reads.
                asyncio.get_running_loop().call_soon(self.wake)

    def beat(self) -> None:
        """Send a comment, unless the client has not read the last one."""
        if not self._connection.is_write_paused:
            self._connection.send_piece(COMMENT)

    def end(self, last: bytes) -> None:
        """Send `last`, and complete the response. Called once, unless the client has left."""
        if not self._is_begun:
            self._begin(is_from_now=False)
        self._connection.end_stream(last)

    def try_complete(self) -> bool:
        """Send the unread events; return False, as the stream continues."""
        # Before that, it is being parked: what fires meanwhile is found when it begins.
        if self._is_begun:
            self.wake()
        return False

    def on_complete(self) -> None:
        """End the stream with an event that says why, unless the client has left."""
        self.streams.discard(self)
        ParkedRequest.on_complete(self)

    def _respond(self) -> None:
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
        return self._end_with(self.end, problem_event("superseded", response.body))

    def _next_piece(self) -> bytes:
        """Return the next events, which count as sent; empty if there are none.

        Up to PIECE bytes but for the last event. The stream ends here if it has lost signals.
        """
        if self._lost() is not None:
            self._cancel(Status.OUTDATED)
            return b""
        try:
            return self._next_events(PIECE)
        except Exception as exc:
            self._end_with(self.end, self._problem_event(exc))
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
    def _has_more(self) -> bool:
        """True iff there are signals that were not sent."""
        pairs = zip(self.watched_keys, self._reached, strict=True)
        return any(self.signals.last(key) > position for key, position in pairs)

    def _problem_event(self, error: Exception) -> bytes:
        registry = self.streams.registry
        path = registry.path_of(self.watched_keys)
        problem = problem_of_exception(error, "GET", path)
        response = problem.response(registry.context.prefix, path)
        return problem_event(problem.kind.slug, response.body)


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
