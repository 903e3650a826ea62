"""How uvicorn serves the service: in one process, or in several workers."""

from __future__ import annotations

import gc
import socket
from typing import Final

import uvicorn
from fastapi import FastAPI
from uvicorn.supervisors import Multiprocess

from app.log_format import log_config
from app.main import create_app
from app.settings import Settings, service_url

# As uvicorn exits; older ones have no public name for it.
STARTUP_FAILURE: Final = 3


def serve(app: FastAPI, settings: Settings, sockets: list[socket.socket]) -> int:
    """Serve until stopped; return the exit status. Several workers make their own applications."""
    if settings.workers > 1:
        supervisor = _Supervisor(server_config("app.server:create_worker_app", settings), sockets)
        supervisor.run()
        return supervisor.exit_status
    configure_garbage_collector()
    try:
        _Server(server_config(app, settings)).run(sockets)
    except KeyboardInterrupt:
        # uvicorn has shut down cleanly and raises the interrupt again.
        print("Purgatory has stopped.", flush=True)
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
        log_config=log_config(settings.log_level) if is_factory else None,
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


class _Server(uvicorn.Server):
    """A server that prints its address once it listens: no sooner can a client reach it."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        assert sockets
        _print_address(self.config, sockets[0])


class _Supervisor(Multiprocess):
    """The process that starts the workers, and prints their address once one of them listens."""

    _is_printed = False

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
            _print_address(self.config, self.sockets[0])
        super().keep_subprocess_alive()


def _print_address(config: uvicorn.Config, listener: socket.socket) -> None:
    # The actual port, if the setting is 0.
    address = service_url(config.host, listener.getsockname()[1])
    workers = f", {config.workers} workers" if config.workers > 1 else ""
    print(
        f"Purgatory on {address}{workers} -- API documentation: {address}/docs (Ctrl+C stops it)",
        flush=True,
    )
