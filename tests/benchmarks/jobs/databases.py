"""The servers and files that jobs are kept in while they are measured."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from purgatory.jobs import JobStore
from purgatory.jobs.redis import RedisJobStore
from purgatory.jobs.sql import SqlJobStore, migrate
from tests.contract.postgresql_server import PostgresqlServer
from tests.valkey_server import ValkeyServer


class Database(StrEnum):
    """Where jobs are kept; the value is its title."""

    SQLITE = "SQLite"
    POSTGRESQL = "PostgreSQL"
    REDIS = "Redis"

    @contextmanager
    def served(self) -> Iterator[str]:
        """Serve an empty one; yield its address."""
        with tempfile.TemporaryDirectory() as folder:
            if self is Database.SQLITE:
                yield f"sqlite:///{Path(folder) / 'jobs.db'}"
            elif self is Database.POSTGRESQL:
                postgresql = PostgresqlServer()
                try:
                    yield postgresql.url
                finally:
                    postgresql.close()
            else:
                # A port, which is what the peer understands.
                with ValkeyServer(Path(folder), is_on_port=True, appendfsync="everysec") as valkey:
                    yield valkey.url

    async def store(self, url: str) -> JobStore:
        """Return a store on it that is ready to be opened."""
        if self is Database.REDIS:
            return RedisJobStore(url)
        await migrate(url)
        return SqlJobStore(url)
