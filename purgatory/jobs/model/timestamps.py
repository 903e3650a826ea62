"""Timestamps, as they are stored and as they are written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def utc(wall_ms: int) -> datetime:
    """Return wall milliseconds as a datetime in UTC; raise OverflowError beyond the calendar."""
    return _EPOCH + timedelta(milliseconds=wall_ms)


def rfc3339(moment: datetime) -> str:
    """Return a time in UTC as responses, callbacks and errors have it: to the millisecond."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
