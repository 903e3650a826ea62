"""Settings of waits over HTTP."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitSettings:
    """How long requests may be parked, in seconds, and how many of one client."""

    default_wait: float = 25.0
    max_wait: float = 55.0
    max_parked_per_client: int = 100_000
    """Parked requests of one client: a token, or else an address."""

    def __post_init__(self) -> None:
        """Raise ValueError unless 0 <= default_wait <= max_wait."""
        if not 0 <= self.default_wait <= self.max_wait:
            raise ValueError(
                f"default_wait is {self.default_wait!r} and max_wait {self.max_wait!r}; needed: "
                "0 <= default_wait <= max_wait"
            )
        if self.max_parked_per_client < 1:
            raise ValueError(
                f"max_parked_per_client is {self.max_parked_per_client!r}; the minimum is 1"
            )
