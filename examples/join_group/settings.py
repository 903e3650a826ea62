"""The settings of the coordinator (Kafka: group.* of the broker)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from examples.kafka_broker.groups.coordinator import GroupSettings

# 1 MiB for members with 16 protocols each, their names as long as they may be.
MAX_OWNED_GROUP_SIZE = 700


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """Times are in seconds. The defaults are Kafka's, except limits that Kafka does not have."""

    initial_rebalance_delay: float = 3.0
    """The wait of an empty group for others after its first join, and after each late one."""
    min_session_timeout: float = 6.0
    max_session_timeout: float = 1800.0
    max_group_size: int = 500
    """The maximum number of members of a group."""
    empty_group_retention: float = 600.0
    """The time for which a group without members keeps its generation."""
    redis_url: str = ""
    """Where several workers keep who owns which group; empty for a single worker."""
    address: str = ""
    """Of this worker, as the members reach it, such as http://10.0.0.7:8000. Each has its own."""
    lease: float = 2.0
    """A dead or suspended worker is replaced after this."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Return the settings of the variables JOIN_GROUP_NAME, such as JOIN_GROUP_REDIS_URL."""
        defaults = cls()
        given = {
            field.name: type(getattr(defaults, field.name))(environment[variable])
            for field in fields(cls)
            if (variable := f"JOIN_GROUP_{field.name.upper()}") in environment
        }
        return cls(**given)

    def group_settings(self) -> GroupSettings:
        """Return the settings of the coordinator, in milliseconds."""
        return GroupSettings(
            initial_rebalance_delay_ms=round(self.initial_rebalance_delay * 1000),
            min_session_timeout_ms=round(self.min_session_timeout * 1000),
            max_session_timeout_ms=round(self.max_session_timeout * 1000),
            max_group_size=self.max_group_size,
            empty_group_retention_ms=round(self.empty_group_retention * 1000),
        )

    def __post_init__(self) -> None:
        """Raise ValueError for contradictory limits."""
        if not 0 < self.min_session_timeout <= self.max_session_timeout:
            raise ValueError(
                f"min_session_timeout is {self.min_session_timeout!r}: give a value above zero "
                f"and at most max_session_timeout, {self.max_session_timeout!r}"
            )
        if self.max_group_size < 1:
            raise ValueError(f"max_group_size is {self.max_group_size!r}: give at least 1")
        if self.redis_url:
            self._check_ownership()

    def _check_ownership(self) -> None:
        if not self.address:
            raise ValueError(
                "redis_url is set and address is not: give the address of this worker, as the "
                "members reach it, such as http://10.0.0.7:8000"
            )
        if self.address.endswith("/"):
            raise ValueError(f"address is {self.address!r}: leave out the slash at the end")
        # Members have to find the next owner, and join again, before their sessions would end.
        if not 0 < self.lease <= self.min_session_timeout / 2:
            raise ValueError(
                f"lease is {self.lease!r}: give a value above zero and at most half of "
                f"min_session_timeout, {self.min_session_timeout / 2:g}"
            )
        if self.max_group_size > MAX_OWNED_GROUP_SIZE:
            raise ValueError(
                f"max_group_size is {self.max_group_size}: with redis_url, give at most "
                f"{MAX_OWNED_GROUP_SIZE}, whose members fit into one commit"
            )
