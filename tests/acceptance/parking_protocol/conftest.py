"""A server that runs the protocol, on both loops."""

from __future__ import annotations

import pytest
from fastapi import FastAPI

from purgatory import Purgatory
from tests.acceptance.application import create_app
from tests.acceptance.parking_protocol.requests import PARKING, add_echo
from tests.acceptance.thread_server import each_kind

kind = each_kind(*PARKING)


@pytest.fixture
def app(purgatory: Purgatory) -> FastAPI:
    """The application of the other tests, with an endpoint that echoes."""
    return add_echo(create_app(purgatory))
