"""The status of a delayed operation: pending, or its outcome."""

from enum import StrEnum


class Status(StrEnum):
    """PENDING, or the outcome: every operation ends with exactly one of the others."""

    PENDING = "pending"
    FIRED = "fired"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    DRAINED = "drained"
    OUTDATED = "outdated"
    """Signals after its positions were lost or are no longer kept, so that nobody knows whether it
    would have fired: `park` raises CursorExpiredError, and an HTTP request gets 410."""
