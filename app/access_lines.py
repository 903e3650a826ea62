"""The handler of the access log: lines from templates, written once per turn of the event loop."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from threading import RLock
from typing import Final

from app.log_format import timestamp
from purgatory.log_text import escaped
from purgatory.timer import SystemClock

# In the place of what differs from line to line, where a template is made.
_CLIENT: Final = "<client of a template>"
_TARGET: Final = "<target of a template>"
# Characters, of two bytes at most, that are written at once: a pipe takes 4096 bytes whole, and
# several workers write to the same one.
_MAX_WRITE: Final = 2048
# One for each method, HTTP version and status that occurs.
_MAX_TEMPLATES: Final = 1000


class AccessLineHandler(logging.StreamHandler):  # type: ignore[type-arg] # dictConfig gives the stream
    """Writes what its formatter makes of an access record, without record and formatter.

    `purgatory.uvicorn.ParkingProtocol` calls `add_line` for each response and `write_lines` before
    it sends the responses of a turn: a response that has arrived has its line, even if the process
    is killed. Records of other protocols are handled as in any StreamHandler.
    """

    def __init__(self, stream: object = None) -> None:
        """Write to `stream`."""
        super().__init__(stream)
        # Not the handler's own, of which the types say that it may be None.
        self._lines_lock = RLock()
        self._lines: list[str] = []
        # {(method, HTTP version, status): the texts between time, client and target}
        self._templates: dict[tuple[str, str, int], list[str]] = {}
        self._clock = SystemClock()
        # The time of the lines that are added in this turn; empty before the first one.
        self._time = ""

    def add_line(self, client: str, method: str, target: str, version: str, status: int) -> None:
        """Add the line of a response: it is written by `write_lines`."""
        template = self._templates.get((method, version, status))
        before, after_time, after_client, after_target = template or self._add_template(
            method, version, status
        )
        if not (client.isprintable() and target.isprintable()):
            client, target = escaped(client), escaped(target)
        # Without the lock: `write_lines` keeps the list, and removes what it has copied.
        self._lines.append(
            f"{before}{self._time or self._now()}{after_time}{client}{after_client}{target}"
            f"{after_target}"
        )

    def write_lines(self) -> None:
        """Write the lines that were added."""
        self._time = ""
        with self._lines_lock:
            lines = self._lines.copy()
            del self._lines[: len(lines)]
            try:
                for batch in _batches(lines):
                    self.stream.write(batch)
                    self.stream.flush()
            except Exception:
                # As logging does where a stream fails: it must not end a request.
                self.handleError(_record("", "", "", 0))

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line of a record behind those that were added."""
        self.write_lines()
        super().emit(record)

    def flush(self) -> None:
        """Write the lines that were added: logging calls this at exit."""
        self.write_lines()
        super().flush()

    def _now(self) -> str:
        self._time = timestamp(self._clock.wall_ms() / 1000)
        return self._time

    def _add_template(self, method: str, version: str, status: int) -> list[str]:
        record = _record(method, _TARGET, version, status)
        record.created = 0.0
        rest = self.format(record)
        formatter = self.formatter
        assert formatter is not None
        template = []
        for marker in (formatter.formatTime(record), _CLIENT, _TARGET):
            text, _, rest = rest.partition(marker)
            template.append(text)
        template.append(rest + self.terminator)
        if len(self._templates) >= _MAX_TEMPLATES:
            self._templates.clear()
        self._templates[method, version, status] = template
        return template


def _batches(lines: list[str]) -> Iterator[str]:
    """Yield the lines, as many at once as may be written together."""
    start = size = 0
    for index, line in enumerate(lines):
        size += len(line)
        if size > _MAX_WRITE and index > start:
            yield "".join(lines[start:index])
            start, size = index, len(line)
    if lines:
        yield "".join(lines[start:])


def _record(method: str, target: str, version: str, status: int) -> logging.LogRecord:
    """Return a record as uvicorn makes them."""
    arguments = (_CLIENT, method, target, version, status)
    return logging.LogRecord(
        "uvicorn.access", logging.INFO, __file__, 0, '%s - "%s %s HTTP/%s" %d', arguments, None
    )
