"""Following keys, without I/O: a stream, and the next one where it ends."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from purgatory.client.flows import Flows, signal_of
from purgatory.client.requests import (
    UNAVAILABLE,
    Command,
    Emit,
    Failure,
    Read,
    Reply,
    Request,
    Result,
    Sleep,
)
from purgatory.client.values import error_of_problem
from purgatory.errors import PurgatoryError
from purgatory.json_value import decode_document

# An event of the largest value, in JSON that escapes each character.
MAX_BUFFER: Final = 16 * 1024 * 1024
_LINE_END: Final = re.compile(rb"\r\n|\n|\r(?!$)")


@dataclass(frozen=True, slots=True)
class Event:
    """One event with data."""

    type: str
    data: str
    id: str | None
    retry_ms: int | None


class EventReader:
    """Reads the events of one stream; what is incomplete at its end does not count."""

    def __init__(self) -> None:
        """Begin at the start of a stream."""
        self._buffer = b""
        self._fields: dict[str, str] = {}
        self._data: list[str] = []

    def feed(self, data: bytes) -> Iterator[Event]:
        """Yield the events that `data` completes; raise PurgatoryError if one is too large."""
        self._buffer += data
        if len(self._buffer) > MAX_BUFFER:
            raise PurgatoryError(f"a line of the stream has more than {MAX_BUFFER} bytes")
        *lines, self._buffer = _LINE_END.split(self._buffer)
        for line in lines:
            if line:
                self._read_line(line.decode("utf-8", "replace"))
                continue
            if self._data:
                yield self._event()
            self._fields, self._data = {}, []

    def _read_line(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name:
            self._fields[name] = value

    def _event(self) -> Event:
        retry = self._fields.get("retry", "")
        return Event(
            self._fields.get("event", "message"),
            "\n".join(self._data),
            self._fields.get("id"),
            int(retry) if retry.isascii() and retry.isdigit() else None,
        )


# Seconds without a byte, of which there is one every 15 s by default: the connection is dead.
SILENCE_S: Final = 60.0

Following = Generator[Command, Result, None]


class FollowFlow:
    """Follows keys from a cursor, over any number of streams.

    The cursor is that of the last event, of which each signal has one, so that no signal is missed
    and none comes twice: what a stream has sent only in part does not count.
    """

    def __init__(self, flows: Flows, keys: Sequence[str], cursor: str | None) -> None:
        """Follow `keys` from `cursor`, or from now."""
        self._flows = flows
        self._keys = tuple(keys)
        self._cursor = cursor
        # Failures since the last event.
        self._failures = 0
        self._retry_s: float | None = None
        self._has_ended = False

    def run(self) -> Following:
        """Yield commands until the stream has ended for good.

        Raises CursorExpiredError with the cursors to go on from, and what refuses the request.
        """
        while not self._has_ended:
            reply = yield self._request()
            if isinstance(reply, Reply) and reply.status == 200:
                yield from self._read()
            elif isinstance(reply, Reply) and reply.status == 204:
                return
            elif isinstance(reply, Reply) and reply.status not in UNAVAILABLE:
                raise error_of_problem(reply.status, reply.problem)
            else:
                self._failures += 1
            if not self._has_ended:
                yield Sleep(self._pause(reply))

    def _request(self) -> Request:
        # Pieces of the stream are read as they are.
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity"}
        if self._cursor is not None:
            headers["Last-Event-ID"] = self._cursor
        return Request(
            method="GET",
            path="/watch",
            query=[("key", key) for key in self._keys],
            headers=headers,
            read_timeout=SILENCE_S,
            is_stream=True,
        )

    def _read(self) -> Following:
        reader = EventReader()
        while True:
            data = yield Read()
            if not isinstance(data, bytes) or not data:
                if isinstance(data, Failure):
                    self._failures += 1
                return
            for event in reader.feed(data):
                yield from self._take(event)
                if self._has_ended:
                    return

    def _take(self, event: Event) -> Following:
        document = decode_document(event.data.encode())
        if event.retry_ms is not None:
            self._retry_s = event.retry_ms / 1000
        if event.type == "cancelled":
            self._has_ended = True
            return
        if "status" in document and event.type != "signal":
            self._raise_unless_passing(document)
            self._failures += 1
            return
        self._failures = 0
        if event.id is not None:
            # Before it is given to the caller, who may stop there and go on from its cursor.
            self._cursor = event.id
        if event.type == "signal":
            self._retry_s = None
            yield Emit(signal_of(document["key"], document, event.id))

    def _raise_unless_passing(self, problem: Mapping[str, Any]) -> None:
        status = int(problem["status"])
        if status not in UNAVAILABLE:
            raise error_of_problem(status, problem)

    def _pause(self, reply: Result) -> float:
        """Return the seconds until the next stream: as the server says, or after failures more."""
        asked, self._retry_s = self._retry_s, None
        if self._failures:
            return max(asked or 0.0, self._flows.pause(self._failures, reply))
        # An end without a reason, as of a proxy, is not followed by a rush.
        return self._flows.backoff.delay_s(1) if asked is None else asked


def check_keys(keys: Sequence[str]) -> None:
    """Raise ValueError for no keys, TypeError for a key that is not a string."""
    if not keys:
        raise ValueError("no keys: give at least one, as in follow('order:42')")
    for key in keys:
        if not isinstance(key, str):
            raise TypeError(f"key is {key!r}: give each key as a string of its own")
