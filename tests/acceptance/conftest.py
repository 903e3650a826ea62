"""Servers for the tests in this folder."""

from __future__ import annotations

import logging.config
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from fastapi import FastAPI

from app.__main__ import main
from purgatory import Purgatory
from tests.acceptance.application import create_app
from tests.acceptance.client import Connection
from tests.acceptance.process_server import ProcessServer, serve_in_process
from tests.acceptance.server_commands import SERVERS, ServerCommand, by_day
from tests.acceptance.thread_server import (
    KINDS_BY_DAY,
    ServerKind,
    ThreadServer,
    each_kind,
    serve,
)


# One loop for the clients; it is the servers that come in two kinds.
@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Run the clients on uvloop."""
    return "asyncio", {"use_uvloop": True}


kind = each_kind(*KINDS_BY_DAY)


@pytest.fixture(scope="module", params=by_day(*SERVERS), ids=str)
def command(request: pytest.FixtureRequest) -> ServerCommand:
    """Each server in turn."""
    found: ServerCommand = request.param
    return found


@pytest.fixture
def purgatory() -> Purgatory:
    """The purgatory inside the server."""
    return Purgatory()


@pytest.fixture
def app(purgatory: Purgatory) -> FastAPI:
    """The application that is served."""
    return create_app(purgatory)


@pytest.fixture
def server(app: FastAPI, purgatory: Purgatory, kind: ServerKind) -> Iterator[ThreadServer]:
    """A server in a thread; whatever a test leaves behind in it fails the test."""
    with serve(app, purgatory, kind) as running:
        yield running


@pytest.fixture
def process_server(kind: ServerKind) -> Iterator[ProcessServer]:
    """A server in a process of its own."""
    with serve_in_process(kind=kind) as running:
        yield running


@pytest.fixture
async def connection(server: ThreadServer) -> AsyncIterator[Connection]:
    """A connection to the server in the thread."""
    async with await Connection.open(server.address) as opened:
        yield opened


@pytest.fixture
def start_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[dict[str, str]], str]:
    """A function that starts the service, here, with settings that are no good, given as variables.

    It returns what is said on standard error; nothing else is.
    """

    def start(variables: dict[str, str]) -> str:
        others = [name for name in os.environ if name.startswith("PURGATORY_")]
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["app"])
            # The log is that of this process.
            patch.setattr(logging.config, "dictConfig", lambda config: None)
            for name in others:
                patch.delenv(name)
            for name, value in {"PORT": "0", **variables}.items():
                patch.setenv(name, value)
            assert main() == 2
        said = capsys.readouterr()
        assert said.out == ""
        return said.err

    return start
