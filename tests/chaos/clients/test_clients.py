"""The short form: every signal once for each client, in order, whatever happens to workers."""

from pathlib import Path

from tests.chaos.clients.storm import LEAST_ENDS, run_storm
from tests.nightly import by_night


async def test_clients_lose_nothing(tmp_path: Path) -> None:
    """Neither by streams nor by long polls, in Python, in JavaScript and by EventSource itself."""
    report = await run_storm(by_night(20.0, 3.0), tmp_path)
    assert report.faults == [], str(report)
    assert report.kills + report.drains >= LEAST_ENDS
    assert len(report.fired["a"]) > 3
