"""Addresses of job stores, which can be sent to other processes and opened there."""

from __future__ import annotations

from dataclasses import dataclass

from purgatory.jobs import JobLimits, JobStore
from purgatory.log_text import REDIS_SCHEMES


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAddress:
    """A database or a Redis server with jobs.

    `url` is sqlite:///FILE, postgresql://..., or what RedisJobStore takes. Raises ValueError for
    others.
    """

    url: str
    prefix: str = "purgatory"
    """Redis only: the same as in the service."""
    shards: int = 1
    """Redis only: the same as in the service."""
    max_waiting: int = 10_000_000
    """The limit of waiting jobs, the same as in the service."""

    def __post_init__(self) -> None:
        if not (self.is_redis or self.is_sqlite or self.url.startswith("postgresql")):
            scheme = self.url.partition(":")[0]
            raise ValueError(
                f"{scheme!r} is no job store: give sqlite:///FILE, postgresql://... or redis://..."
            )

    @property
    def is_redis(self) -> bool:
        """Whether it is a Redis server."""
        return self.url.partition("://")[0] in REDIS_SCHEMES

    @property
    def is_sqlite(self) -> bool:
        """Whether it is an SQLite file, which has one writer at a time."""
        return self.url.startswith("sqlite")

    def store(self) -> JobStore:
        """Return a store that is not open yet."""
        limits = JobLimits(max_waiting=self.max_waiting)
        # Imported here: the packages of the other store may not be installed.
        if self.is_redis:
            from purgatory.jobs.redis import RedisJobStore

            return RedisJobStore(self.url, self.prefix, self.shards, limits=limits)
        from purgatory.jobs.sql import SqlJobStore

        return SqlJobStore(self.url, limits=limits)
