"""Servers that keep jobs, to be killed and started again."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Protocol

from sqlalchemy.engine import make_url

from tests.contract.postgresql_server import PostgresqlServer
from tests.valkey_server import ValkeyServer


class Machine(Protocol):
    """Keeps jobs at `url`."""

    url: str
    socket: str | None
    """Where a proxy can reach the server; None if there is none."""

    def url_at(self, port: int) -> str:
        """Return the URL of the server behind a proxy on `port`."""
        ...

    def stall(self, seconds: float) -> None:
        """Let nobody write for a while; only if there is no server."""
        ...

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
        self._path = folder / "jobs.db"
        self.url = f"sqlite+aiosqlite:///{self._path}"
        self.socket: str | None = None

    def url_at(self, port: int) -> str:
        """There is no server."""
        raise NotImplementedError

    def stall(self, seconds: float) -> None:
        """Keep the file locked, as a program that stops within a transaction does."""
        connection = sqlite3.connect(self._path, timeout=seconds, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            time.sleep(seconds)
            connection.execute("ROLLBACK")
        finally:
            connection.close()

    def kill(self) -> bool:
        """There is nothing to kill but the services."""
        return False

    def start(self) -> None:
        """There is nothing to start."""

    def close(self) -> None:
        """There is nothing to end."""


class _ServerMachine:
    """A server of its own, with proxies in front of it."""

    _server: ValkeyServer | PostgresqlServer

    def stall(self, seconds: float) -> None:
        """Its proxies do that."""
        raise NotImplementedError

    def kill(self) -> bool:
        """Kill the server and all its processes without warning."""
        self._server.kill()
        return True

    def start(self) -> None:
        """Start it, unless it runs; what it acknowledged is there."""
        self._server.start()

    def close(self) -> None:
        """End it for good."""
        self._server.close()


class ValkeyMachine(_ServerMachine):
    """A Valkey that writes every command to its file before it answers."""

    def __init__(self, folder: Path) -> None:
        self._server = ValkeyServer(folder, appendfsync="always")
        self.url = self._server.url
        self.socket: str | None = self.url.removeprefix("unix://")

    def url_at(self, port: int) -> str:
        """Return the URL of the server behind a proxy."""
        return f"redis://127.0.0.1:{port}"


class PostgresMachine(_ServerMachine):
    """A PostgreSQL as it comes."""

    def __init__(self, folder: Path) -> None:
        self._server = PostgresqlServer()
        self.url = self._server.url.replace("postgresql://", "postgresql+asyncpg://")
        self.socket: str | None = str(self._server.folder / ".s.PGSQL.5432")

    def url_at(self, port: int) -> str:
        """Return the URL of the server behind a proxy."""
        url = make_url(self.url).set(host="127.0.0.1", port=port, query={})
        return url.render_as_string(hide_password=False)
