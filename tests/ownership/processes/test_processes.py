"""Real workers: `make chaos-ownership` has the long form."""

from pathlib import Path
from typing import Any

import pytest

from tests.ownership.processes.trial import trial

# Those that differ most, to be quick.
FAULTS_OF_SUITE = ["kill", "stop", "Valkey restart"]


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """One loop: what is tested is in other processes."""
    return "asyncio", {"use_uvloop": False}


async def test_members_find_the_next_owner(tmp_path: Path) -> None:
    """After each of these faults; and no generation is handed out by two owners."""
    async with trial(tmp_path) as running:
        report = await running.run(FAULTS_OF_SUITE)
        logs = running.logs()
    assert report.ledger.faults == []
    assert report.faults.total() == len(FAULTS_OF_SUITE)
    assert "Traceback" not in logs, logs
