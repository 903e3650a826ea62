"""Events read from the bytes of `text/event-stream` (HTML standard, 9.2.6)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from purgatory.errors import PurgatoryError

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
