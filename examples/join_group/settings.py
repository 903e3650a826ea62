"""What an operator of the coordinator may set (Kafka: group.* of the broker)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """Times are in seconds. The defaults are Kafka's, but for the bounds that Kafka leaves open."""

    initial_rebalance_delay: float = 3.0
    """How long an empty group waits for others after its first join, and after each late one."""
    min_session_timeout: float = 6.0
    max_session_timeout: float = 1800.0
    max_rebalance_timeout: float = 1800.0
    max_group_size: int = 500
    """Members of one group."""
    max_groups: int = 200
    empty_group_retention: float = 600.0
    """How long a group without members keeps its generation."""

    def __post_init__(self) -> None:
        """Raise ValueError for bounds that contradict one another."""
        if not 0 < self.min_session_timeout <= self.max_session_timeout:
            raise ValueError(
                f"min_session_timeout is {self.min_session_timeout!r}: it is above zero and at "
                f"most max_session_timeout, {self.max_session_timeout!r}"
            )
        for name in ("max_rebalance_timeout", "max_group_size", "max_groups"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}: it is above zero")

    @property
    def max_operations(self) -> int:
        """How many operations wait at the most.

        One a member (a parked request, or its session), one more while a repeated request takes
        another's place, and two a group (a join with a sync that has just ended, or its oblivion).
        """
        return self.max_groups * (2 * self.max_group_size + 2)
