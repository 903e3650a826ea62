"""The shop on a real socket, for the demonstration and the tests."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI

from examples.unpaid_orders.shop import Shop


class _Server(uvicorn.Server):
    """A uvicorn server that signals when it has started."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.has_begun = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.has_begun.set()


def free_port() -> int:
    """Return a free local port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@asynccontextmanager
async def serve(app: FastAPI, port: int) -> AsyncIterator[Shop]:
    """Serve `app` on `port` of this machine; yield its shop."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        # A restarted shop can use the same port again.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        # Longer than a client may pause: a connection that is closed while the next request is on
        # its way fails that request.
        config = uvicorn.Config(app, log_level="warning", lifespan="on", timeout_keep_alive=75)
        server = _Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await server.has_begun.wait()
        if not server.started:
            raise RuntimeError("the shop did not start; the log says why")
        try:
            yield app.state.shop
        finally:
            # As SIGTERM does for a server in the main thread.
            await app.state.purgatory.drain()
            server.should_exit = True
            await serving
