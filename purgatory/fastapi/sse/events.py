"""The events of a stream as bytes (HTML standard, 9.2), and its positions as one cursor."""

from __future__ import annotations

from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as _json_string
from typing import Final, NamedTuple

from purgatory.errors import CursorExpiredError
from purgatory.fastapi.http.problem_mapping import problem_of_error
from purgatory.fastapi.http.problems import Problem
from purgatory.fastapi.http.raw_response import CLOSE, RawResponse, poll_after_drain_ms
from purgatory.fastapi.watch.request_parser import WatchRequest
from purgatory.fastapi.watch.responses import WatchResponses
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


Keys = tuple[str, ...]
Positions = tuple[int, ...]

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
