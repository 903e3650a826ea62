"""What a journal says of itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SinkStatistics:
    """One place that the journal is written to."""

    name: str
    written: int
    """Rows that are safe: in a complete file, or taken by the server."""
    pending: int
    """Rows on their way: they wait, or are in a file that is not complete."""
    dropped: int
    """Rows that were given up, since it was slow, full or away."""
    files: int
    """Complete files; 0 where it has none."""
    bytes: int
    """Of the complete files, or sent."""
    is_failing: bool
    """The last try failed; another one comes."""
    last_error: str | None
    """What went wrong last, though it may be long ago."""


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    """A journal at one moment. `rows` equals written + pending + dropped of each sink."""

    rows: int
    """Rows that were made."""
    buffered: int
    """Events of which no row was made yet."""
    dropped: int
    """Events of which none will be: the buffer was full, or the beginning was dropped before."""
    sampled_out: int
    """Events that were left out on purpose."""
    waiting: int
    """Operations that were watched and have not ended."""
    sinks: tuple[SinkStatistics, ...]
