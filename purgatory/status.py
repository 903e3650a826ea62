"""The status of a delayed operation: pending, or its outcome."""

from enum import StrEnum


class Status(StrEnum):
    """PENDING, or the outcome: every operation ends with exactly one of the last four."""

    PENDING = "pending"
    FIRED = "fired"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    DRAINED = "drained"
