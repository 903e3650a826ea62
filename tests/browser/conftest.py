"""The loop of the servers: the browser has its own."""

import pytest


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Serve on the loop of the standard library."""
    return "asyncio"
