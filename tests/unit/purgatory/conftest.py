"""Virtual time for every test of this folder."""

import pytest

from purgatory.testing import AutojumpEventLoop


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Run the async tests of this file in virtual time."""
    return "asyncio", {"loop_factory": AutojumpEventLoop}
