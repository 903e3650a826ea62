"""Limits of a purgatory."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from purgatory.errors import check_numbers
from purgatory.timer.clock import SecondsField

MAX_JSON_DEPTH: Final = 64
"""Lists and objects of a value or payload within each other: every place that decodes it can."""


# Without slots, for SecondsField.
@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a purgatory, with their defaults. Errors name the limit that was exceeded."""

    max_parked: int = 100_000
    """Waiting operations in total: one more raises LimitReachedError."""
    max_parked_bytes: int = 256 * 1024 * 1024
    """Bytes that the keys of all operations with several keys take: once reached, one more of them
    raises LimitReachedError. A key takes 128 and its text, at 4 a character unless it is ASCII.
    Operations with one key, up to 1,152 bytes each, are bounded by `max_parked`."""
    max_parked_per_key: int = 100_000
    """Waiting operations on one key: one more raises LimitReachedError."""
    max_keys_per_operation: int = 100
    """Keys of one operation: one more raises ValueError."""
    max_timeout: SecondsField = SecondsField(100 * 365 * 24 * 3600.0)
    """Seconds: a longer timeout raises InvalidTimeoutError."""
    max_signals_per_key: int = 1_000
    """Signals retained for each key: the oldest is trimmed."""
    max_signals: int = 100_000
    """Signals retained for all keys together: the oldest is trimmed, of an owner that has an equal
    part of them or more."""
    max_signal_bytes: int = 64 * 1024 * 1024
    """Bytes of JSON retained for all keys together: signals are trimmed as above. Of a value, only
    its JSON is retained; a signal takes about 120 bytes more (compiled), a key about 350."""
    max_value_bytes: int = 64 * 1024
    """Bytes of JSON of one value: a larger one raises InvalidValueError."""
    max_signal_age: SecondsField = SecondsField(600.0)
    """Seconds that a signal is retained, unless another limit trims it; up to a third more."""

    def __post_init__(self) -> None:
        """Raise ValueError for a limit that is not positive, TypeError for what is no number."""
        check_numbers(self)
        for name in (field.name for field in fields(self)):
            # Written so that NaN, which compares as false, is refused.
            if not 0 < getattr(self, name) < float("inf"):
                value = getattr(self, name)
                raise ValueError(f"{name} is {value!r}: a limit is a finite number above zero")
