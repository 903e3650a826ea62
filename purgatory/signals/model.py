"""The values of signals: cursors as text, entries of a shared log, statistics."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Final, NamedTuple

from purgatory.errors import BadCursorError, CursorExpiredError

# 15 digits: numbers in Redis scripts are exact up to 2**53.
CURSOR: Final = re.compile(r"([0-9a-f]{12})-([0-9]{1,15})")
"""The epoch, and the offset."""

BEFORE_RESTART: Final = "it is from before a restart, which emptied the history"
LOG_REPLACED: Final = "the log of signals was emptied, or another has taken its place"
SIGNALS_LOST: Final = "the server has lost the signals of that time"
NO_LONGER_KEPT: Final = "signals since then are no longer kept"
LOST_OR_NOT_KEPT: Final = "signals since then were lost or are no longer kept"


def foreign_cursor(cursor: str) -> BadCursorError:
    """Return the error of a text that is not a cursor of a purgatory."""
    return BadCursorError(
        f"cursor {cursor[:64]!r} is not one of ours: use the cursor of an earlier answer, "
        "0 for the earliest signal that is kept, or none for from now on"
    )


def cursor_ahead(cursor: str) -> BadCursorError:
    """Return the error of a cursor that no signal has reached yet."""
    return BadCursorError(
        f"cursor {cursor!r} is ahead of every signal: use the cursor of an earlier answer"
    )


def expired_cursor(key: str, reason: str, *, earliest: str, head: str) -> CursorExpiredError:
    """Return the error of a cursor that is no longer valid, with those that are."""
    kept = "" if earliest == head else f", or from {earliest!r} for what is still kept"
    return CursorExpiredError(
        f"the cursor for key {key!r} has expired, {reason}: read the state again, then "
        f"continue from {head!r}{kept}",
        key=key,
        earliest=earliest,
        head=head,
    )


@dataclass(frozen=True, slots=True)
class SignalStatistics:
    """The number and size of the retained signals."""

    signals: int
    """Signals that are kept, of all keys."""
    bytes: int
    """Bytes of their values, as JSON."""
    keys: int
    """Keys with kept signals."""


@dataclass(frozen=True, slots=True)
class ShardStatistics:
    """How this process follows one log of shared signals."""

    applied: int
    """Entries of this log that were applied here."""
    lag: int
    """Entries that were not applied here when the log was last read."""
    gaps: int
    """How often entries were lost before they were applied here."""
    reconnects: int
    """How often the server of this log was out of reach."""


@dataclass(frozen=True, slots=True)
class SharedSignalStatistics:
    """How this process follows the log of signals that several processes share."""

    appended: int
    """Entries that this process has appended."""
    applied: int
    """Entries that were applied here, since the start."""
    lag: int
    """Entries of the log that were not applied here when it was last read."""
    gaps: int
    """How often entries were lost before they were applied here."""
    reconnects: int
    """How often the server was out of reach."""
    shards: tuple[ShardStatistics, ...] = ()
    """The same for each log, in the order of their numbers."""


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


REPEAT_S: Final = 600
"""Seconds for which a repeat is recognized: by one process, and by the log of several."""
REPEAT_PART: Final = 0.25
"""The part of `Limits.max_signal_bytes` that names and responses may take in addition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idempotency:
    """The name of a request, so that its repeat appends nothing."""

    owner: str
    """The owner of the name; the names of different owners are different.

    Owners share the memory fairly: once it is full, the one with most forgets its oldest names.
    """
    name: str
    fingerprint: str
    """Identifies the content: a repeat with another one is refused."""
    is_of_one_key: bool = False
    """Nobody uses the name for another key: only the log of that has to know it."""

    @property
    def hash(self) -> str:
        """Hexadecimal digits for this owner and name, and no others."""
        text = f"{len(self.owner)} {self.owner}{self.name}".encode("utf-8", "surrogatepass")
        return blake2b(text, digest_size=16).hexdigest()
