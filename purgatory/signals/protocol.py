"""The protocol of signals; cursors as text, and the errors of those that are refused."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Protocol

from purgatory.errors import BadCursorError, CursorExpiredError
from purgatory.signals.signal import Signal

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
    bytes: int
    keys: int


@dataclass(frozen=True, slots=True)
class ShardStatistics:
    """How this process follows one log of shared signals."""

    applied: int
    lag: int
    gaps: int
    reconnects: int


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
    shards: tuple[ShardStatistics, ...] = ()
    """The same for each log, in the order of their numbers."""


class Signals(Protocol):
    """A bounded history of signals for each key.

    A position is the offset up to which a reader has read. A cursor is an opaque string of the
    same, for clients outside this process.
    """

    def encode(self, value: Any) -> bytes:
        """Return `value` as JSON; raise InvalidValueError if it is not JSON or too large."""
        ...

    def append(self, key: str, value: Any, owner: str | None = None) -> Signal:
        """Append `value` as a signal of `key`; raise InvalidValueError unless it is JSON.

        One owner's signals do not cost another the part of the memory that is its own.
        """
        ...

    def head(self) -> int:
        """Return the position of a reader that has read everything."""
        ...

    def head_of(self, key: str) -> int:
        """Return the position of a reader of `key` that has read everything."""
        ...

    def position(self, key: str, cursor: str) -> int:
        """Return the position of `cursor`; "0" is the earliest retained.

        Raises BadCursorError, or CursorExpiredError if a signal of `key` since then was trimmed.
        """
        ...

    def cursor(self, position: int) -> str:
        """Return the cursor of a position."""
        ...

    def has_after(self, key: str, position: int, count: int) -> bool:
        """Return True iff `key` has `count` signals after `position`, or one that was trimmed.

        `count` is at least 1.
        """
        ...

    def read(self, key: str, position: int, limit: int) -> list[Signal]:
        """Return up to `limit` signals of `key` after `position`, the oldest first."""
        ...

    def first_after(self, key: str, position: int) -> Signal | None:
        """Return the oldest retained signal of `key` after `position`, or None."""
        ...

    def earliest(self, key: str) -> int:
        """Return the position just before the earliest retained signal of `key`."""
        ...

    def last(self, key: str) -> int:
        """Return the offset of the last signal or drop of `key`; 0 if there is neither."""
        ...

    def drop(self, key: str) -> None:
        """Drop the history of `key`; earlier cursors are expired for it."""
        ...

    def statistics(self) -> SignalStatistics:
        """Return the number and size of the retained signals."""
        ...
