"""How the service's log reads."""

from __future__ import annotations

from datetime import UTC, datetime
from logging import Formatter, LogRecord
from typing import Any

from uvicorn.logging import AccessFormatter, DefaultFormatter

LINE = "%(asctime)s %(levelprefix)s %(message)s"
ACCESS_LINE = '%(asctime)s %(levelprefix)s %(client_addr)s - "%(request_line)s" %(status_code)s'


class _Timed(Formatter):
    """Gives a line its time as RFC 3339 has it, in UTC, as the answers of the service do."""

    def formatTime(self, record: LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - logging calls it so
        moment = datetime.fromtimestamp(record.created, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class LineFormatter(_Timed, DefaultFormatter):
    """A line of the log."""


class AccessLineFormatter(_Timed, AccessFormatter):
    """A line for a request: who asked for what, and the status; no header and no body."""


def log_config(level: str) -> dict[str, Any]:
    """Return what `logging.config.dictConfig` takes: uvicorn's lines and ours, each with its time.

    And the warnings and errors of what they use, such as asyncio's of a task that failed. As with
    uvicorn, requests go to the standard output, all else to the standard error.
    """
    said = {"handlers": ["lines"], "level": level.upper(), "propagate": False}
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
            "purgatory": said,
            "uvicorn": said,
            "uvicorn.access": {**said, "handlers": ["access"]},
        },
        "root": {"handlers": ["lines"], "level": "WARNING"},
    }
