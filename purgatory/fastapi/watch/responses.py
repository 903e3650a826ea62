"""The responses to waits: signals and cursors as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

# As `json.dumps` encodes a string, five times as fast.
from json.encoder import encode_basestring_ascii as _json_string
from typing import Final

from purgatory.fastapi.http.raw_response import CLOSE, RawResponse, poll_after_drain_ms
from purgatory.fastapi.watch.request_parser import WatchTerms
from purgatory.outcome import Status
from purgatory.signals import MemorySignals, Signal

Keys = tuple[str, ...]
Positions = tuple[int, ...]

# Bytes of a signal besides its value, about: numbers, cursor and time.
_SIGNAL_BYTES: Final = 120
_SINGLE: Final = b'{"key":%b,"signals":%b,"cursor":"%b","reason":"%b","more":%b,"poll_after_ms":%d}'
_IS_MORE: Final = (b"false", b"true")
_REASONS: Final = {status: status.encode() for status in Status}


class WatchResponses:
    """Encodes the responses of one purgatory.

    Values are encoded already, so that a body is joined from bytes; and the last response is
    cached, because the waiters that one signal wakes nearly always get the same one.

    A response has as many signals as fit into `max_bytes`, and at least one if there is any: a
    small request cannot take the memory of a whole history. The next one continues after them.
    """

    def __init__(self, signals: MemorySignals, max_bytes: int) -> None:
        """Respond with the signals in `signals`, up to `max_bytes` of them."""
        self._signals = signals
        self._max_bytes = max_bytes
        self._last_question: tuple[object, ...] = ()
        self._last_response = RawResponse.empty(204)
        # The signals and the position that were encoded last.
        self._last_signals: list[Signal] = []
        self._last_encoded = b"[]"
        self._last_position = -1
        self._last_cursor = b""
        # The second that was encoded last, and its text.
        self._second = 0
        self._second_text = b"1970-01-01T00:00:00"

    def response(
        self, keys: Keys, positions: Positions, terms: WatchTerms, status: Status
    ) -> RawResponse:
        """Return the response to a wait that ended with `status`; each key has a position.

        Raises CursorExpiredError if signals after a position were lost, or are no longer kept.
        """
        if terms.is_plain and status is not Status.DRAINED:
            # Plain waits differ at most in these.
            question = (keys, positions, terms.limit, status, self._signals.head())
            if question != self._last_question:
                self._require_kept(keys, positions, status)
                self._last_response = self._single(keys[0], positions[0], terms, status, 0, b"")
                self._last_question = question
            return self._last_response
        self._require_kept(keys, positions, status)
        lines = b""
        if terms.applied:
            lines = b"preference-applied: %b\r\n" % ", ".join(terms.applied).encode()
        poll_after_ms = 0
        if status is Status.DRAINED:
            poll_after_ms = poll_after_drain_ms()
            lines += CLOSE
        if terms.is_single:
            return self._single(keys[0], positions[0], terms, status, poll_after_ms, lines)
        where = zip(keys, positions, strict=True)
        return self._several(where, terms, status, poll_after_ms, lines)

    def _require_kept(self, keys: Keys, positions: Positions, status: Status) -> None:
        if status is Status.OUTDATED:
            for key, position in zip(keys, positions, strict=True):
                self._signals.position(key, self._signals.cursor(position))

    def _single(
        self,
        key: str,
        position: int,
        terms: WatchTerms,
        status: Status,
        poll_after_ms: int,
        lines: bytes,
    ) -> RawResponse:
        signals, more, cursor = self._read(key, position, terms.limit, status)
        if len(signals) > 1 and self._fit(signals, self._max_bytes, 1) < 0:
            more, cursor = True, self._cursor(signals[-1].offset)
        lines += b'etag: "%b"\r\n' % cursor
        if not signals and terms.is_conditional and status is Status.EXPIRED:
            return RawResponse.empty(304, lines)
        if not signals and terms.is_minimal:
            return RawResponse.empty(204, b"%bpurgatory-cursor: %b\r\n" % (lines, cursor))
        body = _SINGLE % (
            _json_string(key).encode(),
            self._encoded(signals),
            cursor,
            _REASONS[status],
            _IS_MORE[more],
            poll_after_ms,
        )
        return RawResponse.from_json(200, body, lines)

    def _several(
        self,
        where: Iterable[tuple[str, int]],
        terms: WatchTerms,
        status: Status,
        poll_after_ms: int,
        lines: bytes,
    ) -> RawResponse:
        entries: list[bytes] = []
        cursors: dict[str, bytes] = {}
        room = self._max_bytes
        for key, position in where:
            signals, more, cursors[key] = self._read(key, position, terms.limit, status)
            if signals:
                room = self._fit(signals, room, 0 if entries else 1)
                if room < 0:
                    more = True
                    cursors[key] = self._cursor(signals[-1].offset if signals else position)
                entries.append(
                    b'%b:{"signals":%b,"cursor":"%b","more":%b}'
                    % (
                        _json_string(key).encode(),
                        self._encoded(signals),
                        cursors[key],
                        _IS_MORE[more],
                    )
                )
        if not entries and terms.is_minimal:
            cursor = max(cursors.values(), key=len)
            return RawResponse.empty(204, b"%bpurgatory-cursor: %b\r\n" % (lines, cursor))
        body = b'{"keys":{%b},"cursors":{%b},"reason":"%b","poll_after_ms":%d}' % (
            b",".join(entries),
            b",".join(
                b'%b:"%b"' % (_json_string(key).encode(), cursor) for key, cursor in cursors.items()
            ),
            _REASONS[status],
            poll_after_ms,
        )
        return RawResponse.from_json(200, body, lines)

    def _read(
        self, key: str, position: int, limit: int, status: Status
    ) -> tuple[list[Signal], bool, bytes]:
        """Return the signals of a key, whether there are more, and the next cursor."""
        if status is Status.DRAINED and position < self._signals.earliest(key):
            # The next wait, in whichever process, responds 410.
            return [], False, self._cursor(position)
        signals = self._signals.read(key, position, limit + 1)
        if len(signals) > limit:
            signals.pop()
            return signals, True, self._cursor(signals[-1].offset)
        # A wait may be ahead of the head, where another process was faster.
        return signals, False, self._cursor(max(position, self._signals.head_of(key)))

    def _fit(self, signals: list[Signal], room: int, least: int) -> int:
        """Remove the signals that are beyond `room` bytes, except the first `least` ones.

        Returns the bytes that are left; negative iff any signal was removed.
        """
        for index, signal in enumerate(signals):
            room -= len(signal.encoded) + _SIGNAL_BYTES
            if room < 0 and index >= least:
                del signals[index:]
                return -1
        return max(room, 0)

    def _encoded(self, signals: list[Signal]) -> bytes:
        # Lists compare identity first, so that the same signals compare quickly.
        if signals != self._last_signals:
            self._last_signals = signals
            self._last_encoded = b"[%b]" % b",".join(
                [self.signal_json(signal) for signal in signals]
            )
        return self._last_encoded

    def signal_json(self, signal: Signal) -> bytes:
        """Return one signal as JSON."""
        return b'{"seq":%d,"cursor":"%b","at":"%b","value":%b}' % (
            signal.seq,
            self._cursor(signal.offset),
            self._timestamp(signal.at_ms),
            signal.encoded,
        )

    def _cursor(self, position: int) -> bytes:
        # That of a new signal is also that of every client that has just got it.
        if position != self._last_position:
            self._last_position = position
            self._last_cursor = self._signals.cursor(position).encode()
        return self._last_cursor

    def _timestamp(self, at_ms: int) -> bytes:
        """Return UTC milliseconds as RFC 3339."""
        second, ms = divmod(at_ms, 1000)
        if second != self._second:
            self._second = second
            self._second_text = f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}".encode()
        return b"%b.%03dZ" % (self._second_text, ms)
