"""The job store of the service in a SQL database."""

from __future__ import annotations

from purgatory.jobs.sql import SqlJobStore, migrate


class MigratedJobStore(SqlJobStore):
    """A SQL store that creates or migrates its tables when it is opened."""

    def __init__(self, url: str) -> None:
        """Keep jobs at `url`; raise ValueError for an unsupported database."""
        super().__init__(url)
        self._url = url

    async def open(self) -> None:
        """Migrate the tables and open the store."""
        await migrate(self._url)
        await super().open()
