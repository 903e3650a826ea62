"""The coordinator on a real socket in its own thread, for the demonstration and the tests."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Self

import uvicorn

from examples.join_group.app import create_app
from examples.join_group.settings import CoordinatorSettings
from purgatory import Purgatory


class _Server(uvicorn.Server):
    """A uvicorn server that signals when its start has succeeded or failed."""

    def __init__(self, config: uvicorn.Config, is_ready: threading.Event) -> None:
        super().__init__(config)
        self._is_ready = is_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._is_ready.set()


class CoordinatorServer:
    """A uvicorn server on a free local port, for the duration of a `with` block."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        """Prepare the server; `with` starts it."""
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        app = create_app(settings)
        self.purgatory: Purgatory = app.state.purgatory
        config = uvicorn.Config(
            app,
            access_log=False,
            log_level="warning",
            backlog=2048,
            # Longer than a client may pause between heartbeats: a connection that is closed while
            # the next request is on its way fails that request.
            timeout_keep_alive=75,
        )
        self._is_ready = threading.Event()
        self._server = _Server(config, self._is_ready)
        self._runner = asyncio.Runner(loop_factory=config.get_loop_factory())
        self._thread = threading.Thread(target=self._serve, name="coordinator", daemon=True)

    def __enter__(self) -> Self:
        """Start, and return when the server accepts requests."""
        self._thread.start()
        self._is_ready.wait(timeout=30)
        if not self._server.started:
            raise RuntimeError("the coordinator did not start: its log says why")
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Drain and stop."""
        self.drain()
        self._server.should_exit = True
        self._thread.join(timeout=30)
        self._socket.close()

    def drain(self) -> None:
        """Complete all parked requests, as SIGTERM does for a server in the main thread."""
        loop = self._runner.get_loop()
        loop.call_soon_threadsafe(self.purgatory.begin_drain)

    def _serve(self) -> None:
        with self._runner:
            self._runner.run(self._server.serve(sockets=[self._socket]))
        self._is_ready.set()
