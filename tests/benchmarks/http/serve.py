"""`python -m tests.benchmarks.http.serve KIND`: one of the servers, on a free port."""

from __future__ import annotations

import gc
import resource
import socket
import sys

import uvicorn
import uvloop

from tests.benchmarks.http import bare_protocol, handler_app, purgatory_app
from tests.benchmarks.http.servers import BARE, HANDLER, SERVERS

PARKING = "purgatory.uvicorn:ParkingProtocol"


def main() -> None:
    """Serve until killed."""
    kind = next(kind for kind in SERVERS if kind.name == sys.argv[1])
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if kind is BARE:
        _spare_the_collector()
        uvloop.run(bare_protocol.serve(listening, announce))
        return
    app = handler_app.create_app() if kind is HANDLER else purgatory_app.create_app()
    config = uvicorn.Config(
        app,
        http=PARKING if kind.uses_protocol else "httptools",
        loop="uvloop",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=75,
    )
    config.load()
    _spare_the_collector()
    announce(listening)
    uvicorn.Server(config).run([listening])


def announce(listening: socket.socket) -> None:
    """Tell whoever started this process where it listens."""
    sys.stdout.write(f"listening on {listening.getsockname()[1]}\n")
    sys.stdout.flush()


def _spare_the_collector() -> None:
    # As the service does, for all of them.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)


if __name__ == "__main__":
    main()
