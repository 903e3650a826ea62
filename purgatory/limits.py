"""Bounds on what a purgatory keeps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Every bound, each with its default. Reaching one is an error that names it."""

    max_parked: int = 100_000
    """Operations that wait, in all: one more raises LimitReachedError."""
    max_parked_per_key: int = 100_000
    """Operations that wait on one key: one more raises LimitReachedError."""
    max_keys_per_operation: int = 100
    """Keys that one operation waits on: one more raises ValueError."""
    max_timeout: float = 100 * 365 * 24 * 3600.0
    """Seconds: a longer timeout raises InvalidTimeoutError."""
    max_signals_per_key: int = 1_000
    """Signals kept for a key: the oldest makes way."""
    max_signals: int = 100_000
    """Signals kept for all keys: the oldest makes way."""
    max_signal_bytes: int = 64 * 1024 * 1024
    """Bytes of JSON kept for all keys: the oldest signal makes way."""
    max_value_bytes: int = 64 * 1024
    """Bytes of JSON of one value: a larger one raises InvalidValueError."""
    max_signal_age: float = 600.0
    """Seconds that a signal is kept, where the other bounds allow; up to a third more."""

    def __post_init__(self) -> None:
        """Raise ValueError for a bound that is not positive."""
        for name in self.__slots__:
            # Written so that NaN, which compares as false, is refused.
            if not 0 < getattr(self, name) < float("inf"):
                value = getattr(self, name)
                raise ValueError(f"{name} is {value!r}: a limit is a finite number above zero")
