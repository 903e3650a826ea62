"""Events in the format of `text/event-stream` (HTML standard, 9.2)."""

from __future__ import annotations

from json.encoder import encode_basestring_ascii as _json_string
from typing import Final

from purgatory.fastapi.http.problems import Problem
from purgatory.fastapi.http.raw_response import CLOSE, RawResponse
from purgatory.fastapi.http.retry_after import poll_after_drain_ms
from purgatory.fastapi.watch.responses import WatchResponses
from purgatory.signals import Signal
from purgatory.status import Status

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
