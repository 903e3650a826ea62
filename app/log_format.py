"""The format of the service's log."""

from __future__ import annotations

from copy import copy
from datetime import UTC, datetime
from logging import Formatter, LogRecord
from typing import Any, Literal

from uvicorn.logging import AccessFormatter, DefaultFormatter

from purgatory.log_text import escaped

LINE = "%(asctime)s %(levelprefix)s %(message)s"
ACCESS_LINE = '%(asctime)s %(levelprefix)s %(client_addr)s - "%(request_line)s" %(status_code)s'


def timestamp(seconds: float) -> str:
    """Return a time, given in seconds since 1970, as in the responses: RFC 3339 in UTC."""
    created = datetime.fromtimestamp(seconds, UTC)
    return created.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _OneLine(Formatter):
    """A formatter of one line for each record, with RFC 3339 times in UTC as in the responses.

    Control characters are escaped, and the lines of a traceback indented: text from outside can
    neither forge a line nor control a terminal.
    """

    def formatTime(self, record: LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - logging calls it so
        return timestamp(record.created)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - as above
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"    {escaped(line)}" for line in lines)


class LineFormatter(_OneLine, DefaultFormatter):
    """The format of log lines other than access lines."""

    def formatMessage(self, record: LogRecord) -> str:  # noqa: N802, D102 - as above
        record.message = escaped(record.message)
        return super().formatMessage(record)


class AccessLineFormatter(_OneLine, AccessFormatter):
    """The format of access lines: client, request line and status; no headers, no body."""

    def formatMessage(self, record: LogRecord) -> str:  # noqa: N802, D102 - as above
        args = record.args
        if isinstance(args, tuple):
            record = copy(record)
            record.args = tuple(escaped(arg) if isinstance(arg, str) else arg for arg in args)
        return super().formatMessage(record)


def log_config(level: str, line_format: Literal["text", "json"] = "text") -> dict[str, Any]:
    """Return a configuration for `logging.config.dictConfig`: our loggers and uvicorn's.

    Each line is text or, if `line_format` says so, an object of JSON. Warnings and errors of other
    libraries are included, such as those of asyncio about failed tasks. As in uvicorn, access lines
    go to standard output, everything else to standard error.
    """
    logger = {"handlers": ["lines"], "level": level.upper(), "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "lines": {"()": LineFormatter, "fmt": LINE},
            "access": {"()": AccessLineFormatter, "fmt": ACCESS_LINE},
        }
        if line_format == "text"
        else {
            "lines": {"()": "app.json_log.JsonFormatter"},
            "access": {"()": "app.json_log.JsonAccessFormatter"},
        },
        "handlers": {
            "lines": {"class": "logging.StreamHandler", "formatter": "lines"},
            "access": {
                "class": "app.access_lines.AccessLineHandler"
                if line_format == "text"
                else "app.json_log.JsonAccessLineHandler",
                "formatter": "access",
                "stream": "ext://sys.stdout",
            },
        },
        "loggers": {
            "purgatory": logger,
            "uvicorn": logger,
            "uvicorn.access": {**logger, "handlers": ["access"]},
        },
        "root": {"handlers": ["lines"], "level": "WARNING"},
    }
