"""One loop: applications are called in this process, and none of it depends on the loop."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Run the async tests of this folder on the loop of the standard library."""
    return "asyncio", {"use_uvloop": False}
