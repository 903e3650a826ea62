"""How a delayed operation ended, or that it has not."""

from enum import StrEnum


class Status(StrEnum):
    """Exactly one of the last four is the outcome of every operation."""

    PENDING = "pending"
    FIRED = "fired"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    DRAINED = "drained"
