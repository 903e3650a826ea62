"""Servers that keep jobs, to be killed and started again."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tests.contract.postgresql_server import PostgresqlServer
from tests.valkey_server import ValkeyServer


class Machine(Protocol):
    """Keeps jobs at `url`."""

    url: str

    def kill(self) -> bool:
        """Kill the server, if there is one, without warning."""
        ...

    def start(self) -> None:
        """Start the server on what it kept; return once it answers."""
        ...

    def close(self) -> None:
        """End it for good."""
        ...


class SqliteMachine:
    """A file: its server is whoever has it open."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite+aiosqlite:///{folder / 'jobs.db'}"

    def kill(self) -> bool:
        """There is nothing to kill but the services."""
        return False

    def start(self) -> None:
        """There is nothing to start."""

    def close(self) -> None:
        """There is nothing to end."""


class ValkeyMachine:
    """A Valkey that writes every command to its file before it answers."""

    def __init__(self, folder: Path) -> None:
        self._server = ValkeyServer(folder, appendfsync="always")
        self.url = self._server.url

    def kill(self) -> bool:
        """Kill the server without warning."""
        self._server.kill()
        return True

    def start(self) -> None:
        """Start it; what it acknowledged is there."""
        self._server.start()

    def close(self) -> None:
        """End it for good."""
        self._server.close()


class PostgresMachine:
    """A PostgreSQL as it comes."""

    def __init__(self, folder: Path) -> None:
        self._server = PostgresqlServer()
        self.url = self._server.url.replace("postgresql://", "postgresql+asyncpg://")

    def kill(self) -> bool:
        """Kill the server and all its processes without warning."""
        self._server.kill()
        return True

    def start(self) -> None:
        """Start it, unless it runs; what it acknowledged is there."""
        self._server.start()

    def close(self) -> None:
        """End it for good."""
        self._server.stop()
