"""Virtual time for every test of this folder."""

from collections.abc import AsyncIterator

import httpx
import pytest

from examples.acks_all.app import create_app
from purgatory import Limits
from purgatory.testing import AutojumpEventLoop
from tests.unit.acks_all.broker import CONFIG, open_purgatory


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Run on a loop whose time jumps."""
    return "asyncio", {"loop_factory": AutojumpEventLoop}


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    """A client of a broker without a socket."""
    async with open_purgatory(Limits(max_parked=4)) as purgatory:
        app = create_app(CONFIG, purgatory=purgatory)
        app.state.purgatory = purgatory
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://broker") as client:
            client.app = app  # type: ignore[attr-defined] # for the tests below
            yield client
