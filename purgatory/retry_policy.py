"""Retries: exponential backoff with jitter."""

from __future__ import annotations

import random as _random
from collections.abc import Callable
from dataclasses import dataclass, field

MAX_RETRY_DELAY_MS = 10 * 365 * 24 * 3_600 * 1_000
_MAX_FACTOR = 1_000
# A thousand attempts are allowed: the power is bounded before it is computed.
_MAX_EXPONENT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long to wait after each failed attempt.

    The delay is `first_ms * factor ** (attempt - 1)`, at most `max_ms`, minus a random share of up
    to `jitter`. The default, half of it ("equal jitter"), spreads clients that failed together.
    With full jitter, 1.0, all attempts could be over before a server has restarted.
    Source: "Exponential Backoff And Jitter", M. Brooker, AWS Architecture Blog, 2015.
    """

    first_ms: int = 1_000
    max_ms: int = 15 * 60 * 1_000
    factor: float = 2.0
    jitter: float = 0.5
    random: Callable[[], float] = field(default=_random.random, repr=False, compare=False)
    """Returns a number from 0 up to, not including, 1. For tests."""

    def __post_init__(self) -> None:
        """Raise ValueError if a delay, the factor or the jitter is out of range."""
        are_whole = type(self.first_ms) is int and type(self.max_ms) is int
        if not are_whole or not 0 < self.first_ms <= self.max_ms <= MAX_RETRY_DELAY_MS:
            raise ValueError(
                f"first_ms is {self.first_ms!r} and max_ms is {self.max_ms!r}: give whole numbers, "
                f"the first above zero, the second from the first to {MAX_RETRY_DELAY_MS}"
            )
        # Written so that NaN, which compares as false, is refused.
        if not 1 <= self.factor <= _MAX_FACTOR:
            raise ValueError(f"factor is {self.factor!r}: give a number from 1 to {_MAX_FACTOR}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter is {self.jitter!r}: give a number from 0 to 1")

    def ceiling_ms(self, attempt: int) -> int:
        """Return the maximum delay after attempt number `attempt`, counted from 1."""
        return int(min(self.max_ms, self.first_ms * self.factor ** min(attempt - 1, _MAX_EXPONENT)))

    def delay_ms(self, attempt: int) -> int:
        """Return the delay after attempt number `attempt` failed, counted from 1."""
        ceiling_ms = self.ceiling_ms(attempt)
        return ceiling_ms - int(self.random() * (int(ceiling_ms * self.jitter) + 1))

    def delay_s(self, attempt: int) -> float:
        """Return `delay_ms` in seconds, for `asyncio.sleep`."""
        return self.delay_ms(attempt) / 1000
