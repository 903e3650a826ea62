"""The retry policy: exponential backoff with jitter."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Exponential backoff with equal jitter: from a half to all of `first_ms * 2 ** (attempt - 1)`.

    Not full jitter, which begins at zero: all attempts could be over before a failed service has
    restarted. Source: "Exponential Backoff And Jitter", M. Brooker, AWS Architecture Blog,
    2015.
    """

    first_ms: int = 1_000
    max_ms: int = 15 * 60 * 1_000

    def __post_init__(self) -> None:
        """Raise ValueError unless 0 < first_ms <= max_ms, both whole numbers."""
        are_whole = type(self.first_ms) is int and type(self.max_ms) is int
        if not are_whole or not 0 < self.first_ms <= self.max_ms:
            raise ValueError(
                f"first_ms is {self.first_ms!r} and max_ms {self.max_ms!r}: they are whole "
                "numbers, the first above zero and not above the second"
            )

    def ceiling_ms(self, attempt: int) -> int:
        """Return the longest delay after attempt number `attempt`, the first being 1."""
        # The power is bounded before it is taken: a thousand attempts are allowed.
        return min(self.max_ms, self.first_ms << min(attempt - 1, 40))

    def delay_ms(self, attempt: int) -> int:
        """Return how long to wait after attempt number `attempt` failed."""
        ceiling_ms = self.ceiling_ms(attempt)
        return random.randint(-(-ceiling_ms // 2), ceiling_ms)
