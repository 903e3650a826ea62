"""The short form: each fault once, and no broken promise."""

import asyncio
from pathlib import Path

import pytest

from tests.chaos.signals.storm import FAULTS, SignalPlan, SignalStorm
from tests.patience import PATIENCE_S


@pytest.fixture(
    scope="module",
    # The workers have loops of their own; the one here is that of the clients.
    params=[pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio")],
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Run each test on the loop of the standard library."""
    backend: tuple[str, dict[str, bool]] = request.param
    return backend


async def test_every_acknowledged_signal_is_seen_or_said_to_be_lost(tmp_path: Path) -> None:
    """In order and once, by each client, whichever worker it asks."""
    plan = SignalPlan(
        clients=24, keys=8, faults=dict.fromkeys(FAULTS, 1), seed=3, workers=3, firing=2
    )
    storm = SignalStorm(plan, tmp_path)
    # A storm that hangs is a failure, too.
    async with asyncio.timeout(2 * PATIENCE_S):
        assert await storm.blow() == [], storm.counts
    assert storm.counts["acknowledged"] > 100, storm.counts
    assert storm.counts["seen"] > 100, storm.counts
    assert storm.counts["expired"], storm.counts
