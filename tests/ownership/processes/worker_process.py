"""One worker as a process, with a port and a way to Valkey of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.free_port import free_port
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[3]


class WorkerProcess:
    """A uvicorn with the coordinator; it comes back on the same address after each kill."""

    def __init__(self, folder: Path, redis_port: int, settings: dict[str, str]) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        variables = {
            "REDIS_URL": f"redis://127.0.0.1:{redis_port}",
            "ADDRESS": self.url,
            **settings,
        }
        self._environment = {
            **os.environ,
            **{f"JOIN_GROUP_{name}": value for name, value in variables.items()},
        }
        self.log = folder / f"worker-{self.port}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, without waiting for it."""
        app = "examples.join_group.app:create_app"
        command = [sys.executable, "-m", "uvicorn", "--factory", app, "--no-access-log"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(self.port)],
                cwd=ROOT,
                env=self._environment,
                stdout=log,
                stderr=log,
            )

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> None:
        """Wait until it has ended."""
        assert self._process is not None
        self._process.wait(PATIENCE_S)
        self._process = None

    def close(self) -> None:
        """End it for good."""
        if self._process is not None:
            self._process.kill()
            self.wait()
