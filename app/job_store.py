"""The job store of the service, from its URL."""

from __future__ import annotations

from pathlib import Path

from purgatory.jobs import JobStore, MemoryJobStore
from purgatory.log_text import REDIS_SCHEMES, either, redacted

SCHEMES = ("sqlite", "postgresql", *REDIS_SCHEMES, "memory")
FILE_NAME = "jobs.sqlite3"


def make_job_store(url: str | None, data_dir: Path) -> JobStore:
    """Return the store at `url`, or in a file in `data_dir` if None; it is not opened yet.

    Raises ValueError if no store supports the URL, and OSError if `data_dir` cannot be created.
    """
    # Imported where they are needed: each store's libraries take time to import, and memory.
    if url is None:
        from app.sql_job_store import MigratedJobStore

        # Jobs contain what clients sent, also credentials: for this user only.
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        return MigratedJobStore(f"sqlite+aiosqlite:///{(data_dir / FILE_NAME).absolute()}")
    scheme = url.partition(":")[0].partition("+")[0]
    if scheme in ("sqlite", "postgresql", "postgres"):
        # The store says what is wrong with the last.
        from app.sql_job_store import MigratedJobStore

        return MigratedJobStore(url)
    if url.partition(":")[0] in REDIS_SCHEMES:
        from purgatory.jobs.redis import RedisJobStore

        return RedisJobStore(url)
    if scheme == "memory":
        return MemoryJobStore()
    raise ValueError(
        f"no job store supports the URL {redacted(url)!r}: give a URL that begins with "
        f"{either(SCHEMES)}"
    )
