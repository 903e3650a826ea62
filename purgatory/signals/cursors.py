"""Cursors as text, and the errors of those that are refused or have expired.

A cursor names a time in one key's history or in a log: an epoch, which changes when the history is
lost, and an offset.
"""

from __future__ import annotations

import re
from typing import Final

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
