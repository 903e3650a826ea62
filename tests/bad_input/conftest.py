"""One server for each file of this folder; what a test leaves behind in it fails the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from purgatory import Purgatory
from purgatory.jobs import MemoryJobStore
from tests.acceptance.client import Connection
from tests.acceptance.jobs.application import create_app
from tests.acceptance.thread_server import KINDS, ThreadServer, serve
from tests.bad_input.declared import Endpoint, endpoints_of
from tests.nightly import NIGHTLY


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Run the clients on uvloop."""
    return "asyncio", {"use_uvloop": True}


# By day the service's own, but for the tests of what is odd on the wire.
@pytest.fixture(
    scope="module",
    params=[*(pytest.param(kind, marks=NIGHTLY) for kind in KINDS[:-1]), KINDS[-1]],
    ids=str,
)
def shared_server(request: pytest.FixtureRequest) -> Iterator[ThreadServer]:
    """A server on each pair of protocol and loop, with every endpoint there is."""
    purgatory = Purgatory(jobs=MemoryJobStore())
    with serve(create_app(purgatory), purgatory, request.param) as running:
        yield running


@pytest.fixture(scope="module")
def endpoints(shared_server: ThreadServer) -> list[Endpoint]:
    """The endpoints of the server, as they are declared."""
    return endpoints_of(shared_server.app)


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


@pytest.fixture
async def nothing_is_done(server: ThreadServer) -> AsyncIterator[None]:
    """A refused request has fired nothing, and stored no job."""
    fired = server.purgatory.signals.statistics()
    stored = await server.call(server.purgatory.jobs.counts)
    yield
    assert server.purgatory.signals.statistics() == fired
    assert await server.call(server.purgatory.jobs.counts) == stored
