"""Virtual time for every test of this folder."""

from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from examples.acks_all.app import create_app
from purgatory import Limits, Purgatory
from tests.unit.acks_all.broker import CONFIG, Broker
from tests.virtual_time import anyio_backend  # noqa: F401 # a fixture


@pytest.fixture
async def broker(purgatory: Purgatory) -> Broker:
    """A broker that leaves nothing behind."""
    return Broker(purgatory, CONFIG)


@pytest.fixture
async def http(make_purgatory: Callable[..., Purgatory]) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a broker without a socket."""
    async with make_purgatory(limits=Limits(max_parked=4)) as purgatory:
        transport = httpx.ASGITransport(create_app(CONFIG, purgatory=purgatory))
        async with httpx.AsyncClient(transport=transport, base_url="http://broker") as client:
            yield client
