"""`python -m tests.benchmarks.http.serve KIND`: one of the servers, on a free port."""

from __future__ import annotations

import logging.config
import os
import resource
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

import uvicorn
import uvloop
from fastapi import FastAPI

from app.log_format import log_config
from app.main import create_app as create_service
from app.server import configure_garbage_collector, server_config
from app.settings import Settings
from tests.benchmarks.http import bare_protocol, handler_app, purgatory_app
from tests.benchmarks.http.probe import probe
from tests.benchmarks.http.raw_asgi import RawAsgi
from tests.benchmarks.http.servers import (
    BARE,
    HANDLER,
    RAW,
    SERVERS,
    SERVICE,
    UVICORN_HANDLER,
    ServerKind,
)

PARKING = "purgatory.uvicorn:ParkingProtocol"


def main() -> None:
    """Serve until killed."""
    kind = next(kind for kind in SERVERS if kind.name == sys.argv[1])
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if kind is BARE:
        configure_garbage_collector()
        uvloop.run(bare_protocol.serve(listening, announce))
        return
    if kind is SERVICE:
        with TemporaryDirectory() as data_dir:
            settings = Settings(data_dir=Path(data_dir))
            logging.config.dictConfig(log_config(settings.log_level))
            # Each round would repeat that a service on loopback is open to anyone.
            logging.getLogger("purgatory").setLevel(logging.ERROR)
            config = server_config(_with_probe(create_service(settings)), settings)
            configure_garbage_collector()
            _run(config, listening)
        return
    if kind is UVICORN_HANDLER:
        # The clients of the benchmark are idle for longer than uvicorn's 5 s.
        _run(uvicorn.Config(handler_app.create_app(), timeout_keep_alive=75), listening)
        return
    apps: dict[ServerKind, Callable[[], Any]] = {HANDLER: handler_app.create_app, RAW: RawAsgi}
    config = uvicorn.Config(
        apps.get(kind, purgatory_app.create_app)(),
        http=PARKING if kind.uses_protocol else "httptools",
        loop="uvloop",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=75,
    )
    config.load()
    configure_garbage_collector()
    _run(config, listening)


def _with_probe(app: FastAPI) -> FastAPI:
    @app.get("/bench")
    async def bench() -> dict[str, int]:
        return probe(app.state.purgatory.parked)

    return app


def _run(config: uvicorn.Config, listening: socket.socket) -> None:
    announce(listening)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    # The access log goes to a file, not to the pipe, which nobody reads any more.
    with TemporaryFile() as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        uvicorn.Server(config).run([listening])


def announce(listening: socket.socket) -> None:
    """Tell whoever started this process where it listens."""
    sys.stdout.write(f"listening on {listening.getsockname()[1]}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
