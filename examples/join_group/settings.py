"""The settings of the coordinator (Kafka: group.* of the broker)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """Times are in seconds. The defaults are Kafka's, except limits that Kafka does not have."""

    initial_rebalance_delay: float = 3.0
    """The wait of an empty group for others after its first join, and after each late one."""
    min_session_timeout: float = 6.0
    max_session_timeout: float = 1800.0
    max_rebalance_timeout: float = 1800.0
    max_group_size: int = 500
    """The maximum number of members of a group."""
    max_groups: int = 200
    empty_group_retention: float = 600.0
    """The time for which a group without members keeps its generation."""

    def __post_init__(self) -> None:
        """Raise ValueError for contradictory limits."""
        if not 0 < self.min_session_timeout <= self.max_session_timeout:
            raise ValueError(
                f"min_session_timeout is {self.min_session_timeout!r}: give a value above zero "
                f"and at most max_session_timeout, {self.max_session_timeout!r}"
            )
        for name in ("max_rebalance_timeout", "max_group_size", "max_groups"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}: give a value above zero")

    @property
    def max_operations(self) -> int:
        """The maximum number of waiting operations.

        One per member (a parked request or its session), one more while a repeated request
        replaces another, and two per group (a join and a sync that is just ending, or its
        expiration).
        """
        return self.max_groups * (2 * self.max_group_size + 2)
