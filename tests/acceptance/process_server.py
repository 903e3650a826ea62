"""A real server in a process of its own, which takes real signals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from tests.acceptance.client import Address
from tests.acceptance.thread_server import KINDS, ServerKind
from tests.patience import KEEP_ALIVE_S, PATIENCE_S
from tests.valkey_server import ValkeyServer

ROOT = Path(__file__).parents[2]
KEEP_ALIVE = ("--timeout-keep-alive", str(KEEP_ALIVE_S))
_PROCESS = re.compile(r"Started server process \[(\d+)\]")
_RUNNING = re.compile(r"(?:Uvicorn running|Purgatory) on http://[\d.]+:(\d+)")


def uvicorn_command(app: str, kind: ServerKind, *options: str) -> list[str]:
    """Return the command line that serves `app` on a free port."""
    command = [sys.executable, "-m", "uvicorn", app, "--host", "127.0.0.1", "--port", "0"]
    return [
        *command,
        "--http",
        kind.http,
        "--loop",
        kind.loop,
        "--no-access-log",
        *KEEP_ALIVE,
        *options,
    ]


class ProcessServer:
    """Runs a command that says where it listens, and keeps what it says."""

    def __init__(self, command: list[str], **environment: str) -> None:
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **environment},
            stderr=subprocess.STDOUT,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # its workers are ended with it, see `kill`
        )
        self.log: list[str] = []
        self.address: Address = ("127.0.0.1", 0)
        self._has_ended = False
        self._said = threading.Condition()
        # A pipe that nobody reads would block the server once it is full.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._said:
                self.log.append(line)
                found = _RUNNING.search(line)
                if found:
                    self.address = ("127.0.0.1", int(found[1]))
                self._said.notify_all()
        with self._said:
            self._has_ended = True
            self._said.notify_all()

    def wait_started(self, workers: int = 1) -> None:
        """Return once it listens, and its workers are at work."""
        with self._said:
            self._said.wait_for(lambda: self._has_ended or self._is_started(workers), PATIENCE_S)
            assert self._is_started(workers), "".join(self.log)

    def _is_started(self, workers: int) -> bool:
        started = sum("Application startup complete" in line for line in self.log)
        # More if its supervisor has replaced one that took too long.
        return started >= workers and self.address[1] > 0

    def workers(self) -> list[int]:
        """Return the process ids of all workers that have started so far."""
        return [int(found[1]) for line in self.log if (found := _PROCESS.search(line))]

    def resident_bytes(self) -> int:
        """Return how much memory the process takes that was started."""
        command = ["ps", "-o", "rss=", "-p", str(self.process.pid)]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return int(shown) * 1024

    def terminate(self) -> None:
        """Send SIGTERM, and do not wait."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> float:
        """Wait for the process to end; return when, in monotonic seconds."""
        self.process.wait(PATIENCE_S)
        ended_at = time.monotonic()
        self._reader.join(PATIENCE_S)
        return ended_at

    def kill(self) -> None:
        """End it and its workers, whatever they are doing."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def serve_in_process(
    app: str = "tests.acceptance.application:app",
    kind: ServerKind = KINDS[0],
    *options: str,
    workers: int = 1,
) -> Iterator[ProcessServer]:
    """Serve `app` in a process of its own, which is ended at the end."""
    command = uvicorn_command(app, kind, *options, "--workers", str(workers))
    with ProcessServer(command) as server:
        server.wait_started(workers)
        yield server


@contextmanager
def serve_workers(count: int, folder: Path, **environment: str) -> Iterator[ProcessServer]:
    """Run several workers of it, which share signals through a Valkey, and jobs in a file."""
    jobs = f"sqlite+aiosqlite:///{folder / 'jobs.sqlite3'}"
    with ValkeyServer(folder) as valkey:
        variables = {"PURGATORY_SIGNALS": valkey.url, "PURGATORY_JOBS_URL": jobs, **environment}
        with serve_service(count, **variables) as server:
            yield server


@contextmanager
def serve_service(workers: int = 1, /, **environment: str) -> Iterator[ProcessServer]:
    """Run `python -m app` on a free port, and end it at the end."""
    variables = {"PORT": "0", "WORKERS": str(workers), **environment}
    with ProcessServer([sys.executable, "-m", "app"], **variables) as server:
        server.wait_started(workers)
        yield server
