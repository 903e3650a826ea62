"""The answers to those who watched."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime

from purgatory.fastapi.answer import Answer
from purgatory.fastapi.watch_request import WatchRequest
from purgatory.signals import Signal, Signals
from purgatory.status import Status

# After a drain: long enough for another process to be ready, spread so that not all come at once.
DRAINED_POLL_AFTER_MS = (100, 2000)


def timestamp(at_ms: int) -> str:
    """Return UTC milliseconds as RFC 3339."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"


class WatchAnswers:
    """Writes the answers of one purgatory.

    Values are JSON already, so that a body is put together from bytes; and the last body of signals
    is kept, because the waiters that one signal wakes are nearly always told the same.
    """

    def __init__(self, signals: Signals) -> None:
        """Answer with what `signals` keeps."""
        self._signals = signals
        self._last_range: tuple[str, int, int] | None = None
        self._last_encoded = b""

    def answer(self, request: WatchRequest, status: Status) -> Answer:
        """Return the answer to a wait that ended with `status`."""
        headers = {"Preference-Applied": ", ".join(request.applied)} if request.applied else {}
        poll_after_ms = 0
        if status is Status.DRAINED:
            poll_after_ms = random.randint(*DRAINED_POLL_AFTER_MS)
            headers["Connection"] = "close"
        if request.is_single:
            return self._single(request, status, poll_after_ms, headers)
        return self._several(request, status, poll_after_ms, headers)

    def _single(
        self, request: WatchRequest, status: Status, poll_after_ms: int, headers: dict[str, str]
    ) -> Answer:
        [(key, position)] = request.positions.items()
        signals, more, cursor = self._read(key, position, request.limit, status)
        headers["ETag"] = f'"{cursor}"'
        if not signals and request.is_conditional and status is Status.EXPIRED:
            return Answer.empty(304, headers)
        if not signals and request.is_minimal:
            return Answer.empty(204, {**headers, "Purgatory-Cursor": cursor})
        body = (
            b'{"key":%b,"signals":%b,"cursor":"%b","reason":"%b","more":%b,"poll_after_ms":%d}'
            % (
                json.dumps(key).encode(),
                self._encoded(key, signals),
                cursor.encode(),
                status.encode(),
                b"true" if more else b"false",
                poll_after_ms,
            )
        )
        return Answer.of_json(200, body, headers)

    def _several(
        self, request: WatchRequest, status: Status, poll_after_ms: int, headers: dict[str, str]
    ) -> Answer:
        entries: list[bytes] = []
        cursors: dict[str, str] = {}
        for key, position in request.positions.items():
            signals, more, cursors[key] = self._read(key, position, request.limit, status)
            if signals:
                entries.append(
                    b'%b:{"signals":%b,"cursor":"%b","more":%b}'
                    % (
                        json.dumps(key).encode(),
                        self._encoded(key, signals),
                        cursors[key].encode(),
                        b"true" if more else b"false",
                    )
                )
        if not entries and request.is_minimal:
            return Answer.empty(
                204, {**headers, "Purgatory-Cursor": max(cursors.values(), key=len)}
            )
        body = b'{"keys":{%b},"cursors":%b,"reason":"%b","poll_after_ms":%d}' % (
            b",".join(entries),
            json.dumps(cursors).encode(),
            status.encode(),
            poll_after_ms,
        )
        return Answer.of_json(200, body, headers)

    def _read(
        self, key: str, position: int, limit: int, status: Status
    ) -> tuple[list[Signal], bool, str]:
        """Return what to tell of a key, whether there is more, and the next cursor."""
        found = self._signals.read(key, position, limit + 1)
        signals = found[:limit]
        more = len(found) > limit
        after = signals[-1].offset if more else self._signals.head()
        return signals, more, self._signals.cursor(after)

    def _encoded(self, key: str, signals: list[Signal]) -> bytes:
        if not signals:
            return b"[]"
        signal_range = (key, signals[0].offset, signals[-1].offset)
        if signal_range != self._last_range:
            self._last_range = signal_range
            self._last_encoded = b"[%b]" % b",".join(map(self._encode, signals))
        return self._last_encoded

    def _encode(self, signal: Signal) -> bytes:
        return b'{"seq":%d,"cursor":"%b","at":"%b","value":%b}' % (
            signal.seq,
            self._signals.cursor(signal.offset).encode(),
            timestamp(signal.at_ms).encode(),
            signal.encoded,
        )
