"""The service's log as JSON: one object in each line."""

from __future__ import annotations

import json
from logging import INFO, Formatter, LogRecord
from typing import Any

from app.access_lines import AccessLineHandler
from app.log_format import timestamp


class JsonFormatter(Formatter):
    """The format of log lines: time, level, pid, logger, message; action and error if any.

    Everything outside ASCII is escaped: text from outside can neither forge a line nor control a
    terminal.
    """

    def format(self, record: LogRecord) -> str:  # noqa: D102 - logging calls it so
        return json.dumps(self.fields(record))

    def formatTime(self, record: LogRecord, datefmt: str | None = None) -> str:  # noqa: D102, N802 - as above
        return timestamp(record.created)

    def fields(self, record: LogRecord) -> dict[str, Any]:
        """Return what is written of a record."""
        fields = self._beginning(record) | {"message": record.getMessage()}
        action = getattr(record, "action", None)
        if action is not None:
            fields["action"] = str(action)
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = self.formatStack(record.stack_info)
        return fields

    def _beginning(self, record: LogRecord) -> dict[str, Any]:
        return {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            # Of the worker: several write to one log.
            "pid": record.process,
            "logger": record.name,
        }


def json_line(message: str, **fields: str | int) -> str:
    """Return a line of the service's log as JSON, with further fields."""
    record = LogRecord("purgatory.app", INFO, __file__, 0, message, None, None)
    return json.dumps(JsonFormatter().fields(record) | fields)


class JsonAccessFormatter(JsonFormatter):
    """The format of access lines, with the parts of the request as fields."""

    def fields(self, record: LogRecord) -> dict[str, Any]:
        """Return the parts of a record as uvicorn makes them; of another, as of any record."""
        if not isinstance(record.args, tuple) or len(record.args) != 5:
            return super().fields(record)
        client, method, target, version, status = record.args
        return self._beginning(record) | {
            "client": client,
            "method": method,
            "target": target,
            "http_version": version,
            "status": status,
        }


class JsonAccessLineHandler(AccessLineHandler):
    """Writes access lines as JSON: what goes into its templates has to be escaped for that."""

    def add_line(self, client: str, method: str, target: str, version: str, status: int) -> None:
        """Add the line of a response: it is written by `write_lines`."""
        super().add_line(_escaped(client), method, _escaped(target), version, status)


def _escaped(text: str) -> str:
    return json.dumps(text)[1:-1]
