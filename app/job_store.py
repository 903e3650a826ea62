"""Where the service keeps its jobs."""

from __future__ import annotations

from pathlib import Path

from purgatory.jobs import JobStore, MemoryJobStore
from purgatory.jobs.sql import SqlJobStore, migrate
from purgatory.redacted_url import without_password

SCHEMES = ("sqlite", "postgresql", "redis", "rediss", "unix", "memory")
FILE_NAME = "jobs.sqlite3"


class MigratedJobStore(SqlJobStore):
    """Makes or changes its tables when it is opened, and its folder too."""

    def __init__(self, url: str) -> None:
        """Keep jobs at `url`; raise ValueError for a database that cannot."""
        super().__init__(url)
        self._url = url

    async def open(self) -> None:
        """Migrate, and open."""
        await migrate(self._url)
        await super().open()


def make_job_store(url: str | None, data_dir: Path) -> JobStore:
    """Return the store at `url`, or in a file of `data_dir` for None; nothing is opened yet.

    Raises ValueError for a URL of none of our stores, and OSError where the folder cannot be made.
    """
    if url is None:
        data_dir.mkdir(parents=True, exist_ok=True)
        return MigratedJobStore(f"sqlite+aiosqlite:///{(data_dir / FILE_NAME).absolute()}")
    scheme = url.partition(":")[0].partition("+")[0]
    if scheme in ("sqlite", "postgresql"):
        return MigratedJobStore(url)
    if scheme in ("redis", "rediss", "unix"):
        # Here, because the service runs without redis-py where nobody asks for Redis.
        from purgatory.jobs.redis import RedisJobStore

        return RedisJobStore(url)
    if scheme == "memory":
        return MemoryJobStore()
    raise ValueError(
        f"{without_password(url)!r} has none of the schemes that there are stores for: give a URL "
        f"that begins with {', '.join(f'{known}:' for known in SCHEMES[:-1])} or {SCHEMES[-1]}:"
    )
