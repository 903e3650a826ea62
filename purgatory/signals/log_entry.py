"""Entries of a log of signals, which several processes follow."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class EntryType(StrEnum):
    """What an entry says about its key."""

    FIRED = "f"
    DROPPED = "d"
    """The key's history was dropped, and its waits end as cancelled."""
    LOST = "x"
    """The server lost entries of the key: cursors from before are expired."""
    UNREADABLE = "?"
    """Malformed, without a key. It has no effect, and is never written."""


class LogEntry(NamedTuple):
    """One entry: a signal, or the end of a key's history so far."""

    offset: int
    """Offsets of a log are 1, 2, 3 ...; those of removed entries are not used again."""
    type: EntryType
    seq: int
    at_ms: int
    """UTC milliseconds since 1970, by the server's clock."""
    previous: int
    """The offset of the key's entry before this one; 0 if there is none."""
    key: str
    encoded: bytes
    """The value as JSON; empty unless it was fired."""
    owner: str | None = None
    """A short name of the owner, if it has one: owners share the history fairly."""
    traceparent: str | None = None
    """The trace context in which it was appended, if that is traced."""


class Epoch(NamedTuple):
    """A part of a log's history in which nothing was lost."""

    name: str
    start: int
    """The offset after which it began: later ones of earlier epochs are lost."""
