"""A server with delayed jobs, on both ways to serve."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from purgatory import Purgatory
from purgatory.jobs import JobLimits
from tests.acceptance.client import Connection
from tests.acceptance.jobs.application import Store, create_app
from tests.acceptance.thread_server import KINDS, ServerKind, ThreadServer, serve


@pytest.fixture
def store() -> Store:
    return Store(limits=JobLimits(max_waiting=50_000))


@pytest.fixture
def purgatory(store: Store) -> Purgatory:
    return Purgatory(jobs=store)


@pytest.fixture
def server(purgatory: Purgatory, kind: ServerKind) -> Iterator[ThreadServer]:
    with serve(create_app(purgatory), purgatory, kind) as running:
        yield running


@pytest.fixture(params=[KINDS[0], KINDS[2]], ids=str)
def kind(request: pytest.FixtureRequest) -> ServerKind:
    found: ServerKind = request.param
    return found


@pytest.fixture
async def connection(server: ThreadServer) -> AsyncIterator[Connection]:
    async with await Connection.open(server.address) as opened:
        yield opened
