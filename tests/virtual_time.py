"""Virtual time for the async tests of a file or folder, which import this fixture."""

from __future__ import annotations

from typing import Any

import pytest

from purgatory.testing import AutojumpEventLoop


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Run async tests on an event loop whose time jumps to the next timer."""
    return "asyncio", {"loop_factory": AutojumpEventLoop}
