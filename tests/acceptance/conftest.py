"""Servers for the tests in this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from purgatory import Purgatory
from tests.acceptance.application import create_app
from tests.acceptance.client import Connection
from tests.acceptance.process_server import ProcessServer, serve_in_process
from tests.acceptance.thread_server import KINDS, ServerKind, ThreadServer, serve


# One loop for the clients; it is the servers that come in two kinds.
@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Run the clients on uvloop."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> ServerKind:
    """Run the server on each pair of protocol and loop."""
    found: ServerKind = request.param
    return found


@pytest.fixture
def purgatory() -> Purgatory:
    """The purgatory inside the server."""
    return Purgatory()


@pytest.fixture
def server(purgatory: Purgatory, kind: ServerKind) -> Iterator[ThreadServer]:
    """A server in a thread; whatever a test leaves behind in it fails the test."""
    with serve(create_app(purgatory), purgatory, kind) as running:
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
