"""One server for each file of this folder; what a test leaves behind in it fails the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from purgatory import Purgatory
from tests.acceptance.application import create_app
from tests.acceptance.client import Connection
from tests.acceptance.thread_server import KINDS, ThreadServer, serve


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Run the clients on uvloop."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="module", params=KINDS, ids=str)
def shared_server(request: pytest.FixtureRequest) -> Iterator[ThreadServer]:
    """A server on each pair of protocol and loop."""
    purgatory = Purgatory()
    with serve(create_app(purgatory), purgatory, request.param) as running:
        yield running


@pytest.fixture
def server(shared_server: ThreadServer) -> Iterator[ThreadServer]:
    """The server; checked after each test."""
    yield shared_server
    shared_server.check_leaks()


@pytest.fixture
async def connection(server: ThreadServer) -> AsyncIterator[Connection]:
    """A connection to it, which is still good after every refusal that does not say otherwise."""
    async with await Connection.open(server.address) as opened:
        yield opened
