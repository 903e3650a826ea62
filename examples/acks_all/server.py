"""A broker on a real socket, for the demonstration and the tests."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI

from purgatory import Purgatory


class _Server(uvicorn.Server):
    """A uvicorn server that signals when it has started."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.has_begun = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.has_begun.set()


@asynccontextmanager
async def serve(app: FastAPI, purgatory: Purgatory) -> AsyncIterator[str]:
    """Serve `app` on a free port of this machine; yield its URL, and drain at the end."""
    # IPPROTO_TCP is explicit because asyncio disables Nagle's algorithm only then. Otherwise a
    # response in two writes, head and body, takes the 40 ms of a delayed acknowledgement.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        # Longer than a client may pause: a connection that is closed while the next request is on
        # its way fails that request.
        config = uvicorn.Config(app, log_level="warning", lifespan="on", timeout_keep_alive=75)
        server = _Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await server.has_begun.wait()
        if not server.started:
            raise RuntimeError("the broker did not start; the log says why")
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            if purgatory.is_open:
                await purgatory.drain()
            server.should_exit = True
            await serving
