"""A coordinator in virtual time."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.testing import AutojumpEventLoop
from tests.unit.join_group.group_bench import Bench


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Run on a loop whose time jumps."""
    return "asyncio", {"loop_factory": AutojumpEventLoop}


@pytest.fixture
async def bench(make_purgatory: Callable[..., Purgatory]) -> AsyncIterator[Bench]:
    """A coordinator that is open during the test."""
    async with make_purgatory() as purgatory:
        yield Bench(purgatory)
