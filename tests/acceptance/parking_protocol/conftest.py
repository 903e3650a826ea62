"""A server that runs the protocol, on both loops."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi import FastAPI

from purgatory import Purgatory
from tests.acceptance.application import create_app
from tests.acceptance.parking_protocol.requests import PARKING, add_echo
from tests.acceptance.thread_server import ServerKind, ThreadServer, serve


@pytest.fixture(params=PARKING, ids=str)
def kind(request: pytest.FixtureRequest) -> ServerKind:
    """Run the protocol on both loops."""
    found: ServerKind = request.param
    return found


@pytest.fixture
def app(purgatory: Purgatory) -> FastAPI:
    """The application of the other tests, with an endpoint that echoes."""
    return add_echo(create_app(purgatory))


@pytest.fixture
def server(app: FastAPI, purgatory: Purgatory, kind: ServerKind) -> Iterator[ThreadServer]:
    """A server in a thread."""
    with serve(app, purgatory, kind) as running:
        yield running
