"""The format of the service's log."""

from __future__ import annotations

from datetime import UTC, datetime
from logging import Formatter, LogRecord
from typing import Any

from uvicorn.logging import AccessFormatter, DefaultFormatter

LINE = "%(asctime)s %(levelprefix)s %(message)s"
ACCESS_LINE = '%(asctime)s %(levelprefix)s %(client_addr)s - "%(request_line)s" %(status_code)s'


class _Timed(Formatter):
    """A formatter with RFC 3339 times in UTC, like the responses of the service."""

    def formatTime(self, record: LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - logging calls it so
        timestamp = datetime.fromtimestamp(record.created, UTC)
        return timestamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class LineFormatter(_Timed, DefaultFormatter):
    """The format of log lines other than access lines."""


class AccessLineFormatter(_Timed, AccessFormatter):
    """The format of access lines: client, request line and status; no headers, no body."""


def log_config(level: str) -> dict[str, Any]:
    """Return a configuration for `logging.config.dictConfig`: our loggers and uvicorn's.

    Warnings and errors of other libraries are included, such as those of asyncio about failed
    tasks. As in uvicorn, access lines go to standard output, everything else to standard error.
    """
    logger = {"handlers": ["lines"], "level": level.upper(), "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "lines": {"()": LineFormatter, "fmt": LINE},
            "access": {"()": AccessLineFormatter, "fmt": ACCESS_LINE},
        },
        "handlers": {
            "lines": {"class": "logging.StreamHandler", "formatter": "lines"},
            "access": {
                "class": "logging.StreamHandler",
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
