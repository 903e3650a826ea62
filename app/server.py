"""How uvicorn serves the service: in one process, or in several workers."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from tempfile import TemporaryDirectory
from typing import Any, Final

import uvicorn
from fastapi import FastAPI
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import Process

from app.json_log import json_line
from app.log_format import log_config
from app.main import create_app
from app.settings import Settings, service_url
from purgatory.jobs.handlers.threads import DaemonThreads
from purgatory.timer import Clock, SystemClock

# As uvicorn exits; older ones have no public name for it.
STARTUP_FAILURE: Final = 3

# uvicorn's healthcheck begins with the process, which answers once it has imported the application:
# on a machine busy enough that this takes 5 s, each worker would be killed, and the next one too.
START_NS: Final = 30_000_000_000


def serve(app: FastAPI, settings: Settings, sockets: list[socket.socket]) -> int:
    """Serve until stopped; return the exit status. Several workers make their own applications."""
    if settings.workers > 1:
        config = server_config("app.server:create_worker_app", settings)
        supervisor = _Supervisor(config, sockets, settings)
        with _metrics_directory(settings):
            supervisor.run()
        return supervisor.exit_status
    configure_garbage_collector()
    # Once it has shut down cleanly, uvicorn raises the signal again, which by default would end
    # the process with a status other than 0. Both signals become a KeyboardInterrupt.
    # SIGINT is else ignored in what a shell script has started in the background.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        _Server(server_config(app, settings), settings).run(sockets)
    except KeyboardInterrupt:
        _say(settings, "Purgatory has stopped.")
    return 0


def server_config(app: FastAPI | str, settings: Settings) -> uvicorn.Config:
    """Return how uvicorn serves the service: an application, or the name of a factory."""
    is_factory = isinstance(app, str)
    return uvicorn.Config(
        app,
        factory=is_factory,
        # Named: otherwise uvicorn reads WEB_CONCURRENCY.
        workers=settings.workers,
        host=settings.host,
        port=settings.port,
        # This process has configured its log before, so that earlier messages look the same.
        log_config=log_config(settings.log_level, settings.log_format) if is_factory else None,
        log_level=settings.log_level,
        access_log=settings.access_log,
        timeout_keep_alive=settings.keep_alive,
        forwarded_allow_ips=settings.trusted_proxies,
        # Parks requests without a task each; the application needs no change.
        http="purgatory.uvicorn:ParkingProtocol",
    )


def create_worker_app() -> FastAPI:
    """Return the application of one of several workers, in its process."""
    # The first process has made one as well, and logged what is to be said of the settings.
    app = create_app(warns=False)
    configure_garbage_collector()
    return app


def configure_garbage_collector() -> None:
    """Scan rarely, and never what exists now: parked requests are many long-lived objects."""
    # Scanning them repeatedly takes half of the CPU time of parking.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)


@contextmanager
def _metrics_directory(settings: Settings) -> Iterator[None]:
    """Have the workers share their metrics through a directory, which is removed at the end."""
    if not settings.metrics or settings.metrics_dir is not None:
        yield
        return
    with TemporaryDirectory(prefix="purgatory-metrics-") as directory:
        # The workers read their settings anew, from the environment that they inherit.
        os.environ["PURGATORY_METRICS_DIR"] = directory
        try:
            yield
        finally:
            del os.environ["PURGATORY_METRICS_DIR"]


class _Server(uvicorn.Server):
    """A server that prints its address once it listens: no sooner can a client reach it."""

    def __init__(self, config: uvicorn.Config, settings: Settings) -> None:
        super().__init__(config)
        self._settings = settings

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # A name server that is silent does not keep the process from ending.
        asyncio.get_running_loop().set_default_executor(DaemonThreads(32))
        await super().startup(sockets)
        assert sockets
        _print_address(self._settings, sockets[0])


class _Supervisor(Multiprocess):
    """The process that starts the workers, and prints their address once one of them listens."""

    def __init__(
        self, config: uvicorn.Config, sockets: list[socket.socket], settings: Settings
    ) -> None:
        # Older versions are given what runs in each worker.
        is_older = "target" in signature(Multiprocess.__init__).parameters
        targets: list[Any] = [uvicorn.Server(config).run] if is_older else []
        super().__init__(config, *[*targets, sockets])
        self._settings = settings
        self._is_printed = False
        self._clock: Clock = SystemClock()
        self._starts_ns: dict[Process, int] = {}

    @property
    def exit_status(self) -> int:
        """That of a worker that failed to start, for which the others were stopped, or 0."""
        codes = [worker.process.exitcode for worker in self.processes]
        return STARTUP_FAILURE if STARTUP_FAILURE in codes else 0

    def keep_subprocess_alive(self) -> None:
        # Workers share the sockets that this process has bound.
        if not self._is_printed and self.sockets[0].getsockopt(
            socket.SOL_SOCKET, socket.SO_ACCEPTCONN
        ):
            self._is_printed = True
            _print_address(self._settings, self.sockets[0])
        # Not a longer timeout of the healthcheck: for as long as a worker that hangs is asked, a
        # signal to this process waits.
        starting = [worker for worker in self.processes if self._is_starting(worker)]
        self.processes = [worker for worker in self.processes if worker not in starting]
        try:
            super().keep_subprocess_alive()
        finally:
            self.processes += starting
            self._starts_ns = {
                worker: at for worker, at in self._starts_ns.items() if worker in self.processes
            }

    def _is_starting(self, worker: Process) -> bool:
        """Return True iff a worker has not ended, and has not run for longer than START_NS."""
        now_ns = self._clock.now_ns()
        began_ns = self._starts_ns.setdefault(worker, now_ns)
        return worker.process.is_alive() and now_ns - began_ns < START_NS


def _print_address(settings: Settings, listener: socket.socket) -> None:
    # The actual port, if the setting is 0.
    address = service_url(settings.host, listener.getsockname()[1])
    workers = f", {settings.workers} workers" if settings.workers > 1 else ""
    _say(
        settings,
        f"Purgatory on {address}{workers} -- API documentation: {address}/docs, dashboard: "
        f"{address}/purgatory/dashboard (Ctrl+C stops it)",
        url=address,
        workers=settings.workers,
    )


def _say(settings: Settings, message: str, **fields: str | int) -> None:
    """Print to standard output, whatever the log level: as text, or as a line of a JSON log."""
    print(message if settings.log_format == "text" else json_line(message, **fields), flush=True)
