"""Counts of a journal and its sinks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SinkStatistics:
    """Counts of one sink."""

    name: str
    written: int
    """Rows in a complete file, or acknowledged by the server."""
    pending: int
    """Rows that are queued, or in an incomplete file."""
    dropped: int
    """Rows that were dropped, since the sink was slow, full or unavailable."""
    files: int
    """Complete files; 0 for a sink without files."""
    bytes: int
    """Bytes of the complete files, or sent."""
    is_failing: bool
    """Whether the last attempt failed; it is being retried."""
    last_error: str | None
    """The last error, however long ago."""


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    """Counts of a journal. `rows` equals written + pending + dropped of each sink."""

    rows: int
    """Rows made of events."""
    buffered: int
    """Events that are not rows yet."""
    dropped: int
    """Events that will not be rows: the buffer was full, or their start was dropped before."""
    sampled_out: int
    """Events left out by sampling."""
    waiting: int
    """Operations that are watched and have not ended."""
    sinks: tuple[SinkStatistics, ...]
