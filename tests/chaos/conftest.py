"""The loop of the clients: services and workers have loops of their own."""

import pytest


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Run each test on the loop of the standard library."""
    return "asyncio"
