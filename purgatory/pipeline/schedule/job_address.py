"""Where jobs are: an address that can be sent to another process, and opened there."""

from __future__ import annotations

from dataclasses import dataclass

from purgatory.jobs import JobLimits, JobStore


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAddress:
    """A database or a Redis server with jobs.

    `url` is one of sqlite:///FILE, postgresql://..., redis://... and its relatives. Raises
    ValueError for another.
    """

    url: str
    prefix: str = "purgatory"
    """Redis only: as the service has it."""
    shards: int = 1
    """Redis only: likewise."""
    max_waiting: int = 10_000_000
    """Jobs that may wait in all: the service's own limit."""

    def __post_init__(self) -> None:
        if not (self.is_redis or self.is_sqlite or self.url.startswith("postgresql")):
            scheme = self.url.partition(":")[0]
            raise ValueError(
                f"{scheme!r} is no job store: give sqlite:///FILE, postgresql://... or redis://..."
            )

    @property
    def is_redis(self) -> bool:
        """Whether it is a Redis server."""
        return self.url.startswith(("redis://", "rediss://", "unix://"))

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a file, to which one at a time writes."""
        return self.url.startswith("sqlite")

    def store(self) -> JobStore:
        """Return a store, which is to be opened."""
        limits = JobLimits(max_waiting=self.max_waiting)
        # Only the one that is asked for: the other's packages may not be installed.
        if self.is_redis:
            from purgatory.jobs.redis import RedisJobStore

            return RedisJobStore(self.url, self.prefix, self.shards, limits=limits)
        from purgatory.jobs.sql import SqlJobStore

        return SqlJobStore(self.url, limits=limits)
