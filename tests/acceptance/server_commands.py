"""The servers on which the tests run, each by its own command line."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.acceptance.client import ClosedByServer, ask
from tests.acceptance.process_server import ProcessServer
from tests.free_port import free_port
from tests.nightly import NIGHTLY
from tests.patience import KEEP_ALIVE_S, PATIENCE_S

APP = "tests.acceptance.application:app"


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """A server of one worker, as it is started."""

    name: str
    line: str
    """What follows `python -m`, with `{app}` and `{port}`."""
    reads_behind_parked: bool = False
    """A client that leaves is noticed although it has sent a second request."""
    has_http2: bool = False
    """It serves HTTP/2 on the same port, to clients that begin with it."""

    def __str__(self) -> str:
        return self.name

    def at(self, port: int, app: str = APP) -> list[str]:
        """Return the command line that serves `app` on `port` of this machine."""
        return [sys.executable, "-m", *self.line.format(app=app, port=port).split()]


_PARKING = "purgatory.uvicorn:ParkingProtocol"
_UVICORN = f"uvicorn {{app}} --host 127.0.0.1 --port {{port}} --timeout-keep-alive {KEEP_ALIVE_S}"
_GUNICORN = "gunicorn {app} -w 1 -k uvicorn_worker.UvicornWorker -b 127.0.0.1:{port}"
_GRANIAN = "granian {app} --interface asgi --workers 1 --host 127.0.0.1 --port {port}"
_HYPERCORN = f"hypercorn {{app}} -b 127.0.0.1:{{port}} --keep-alive {KEEP_ALIVE_S}"

SERVERS = (
    ServerCommand("uvicorn-httptools-uvloop", f"{_UVICORN} --http httptools --loop uvloop"),
    ServerCommand("uvicorn-h11-asyncio", f"{_UVICORN} --http h11 --loop asyncio"),
    ServerCommand(
        "uvicorn-parking", f"{_UVICORN} --http {_PARKING} --loop uvloop", reads_behind_parked=True
    ),
    # Without the socket of its own control tool, which would be in the user's home.
    ServerCommand("gunicorn", f"{_GUNICORN} --no-control-socket --keep-alive {KEEP_ALIVE_S}"),
    ServerCommand("granian", f"{_GRANIAN} --backpressure 20000", has_http2=True),
    # One process; and a process that watches over one worker, which is the default.
    ServerCommand("hypercorn-w0", f"{_HYPERCORN} -w 0", has_http2=True),
    ServerCommand("hypercorn-w1", f"{_HYPERCORN} -w 1", has_http2=True),
)


# What is left out by day: another one serves with the same parts.
BY_NIGHT = ("uvicorn-h11-asyncio", "gunicorn", "hypercorn-w0")


def by_day(*commands: ServerCommand) -> list[Any]:
    """Return parameters of pytest, of which `make test` runs one of each server."""
    return [
        pytest.param(command, marks=[NIGHTLY] if command.name in BY_NIGHT else [])
        for command in commands
    ]


@asynccontextmanager
async def serve_by_command(command: ServerCommand, app: str = APP) -> AsyncIterator[ProcessServer]:
    """Serve `app` in a process of its own, which is ended at the end."""
    server = await asyncio.to_thread(ProcessServer, command.at(port := free_port(), app))
    server.address = ("127.0.0.1", port)
    try:
        await _until_answered(server)
        yield server
    finally:
        await asyncio.to_thread(server.kill)


async def _until_answered(server: ProcessServer) -> None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                assert server.process.poll() is None, "".join(server.log)
                try:
                    if (await ask(server.address, "GET", "/purgatory/statistics")).status == 200:
                        return
                except (OSError, ClosedByServer):
                    pass
                await asyncio.sleep(0.05)
    except TimeoutError as exc:
        raise AssertionError(f"it does not answer: {''.join(server.log)}") from exc
