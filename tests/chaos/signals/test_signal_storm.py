"""The short form: each fault once, and no broken promise."""

import asyncio
import random
from pathlib import Path

import pytest

from purgatory import Purgatory
from purgatory.signals.redis import RedisSignals
from tests.chaos.signals.servers import ClusterServers
from tests.chaos.signals.storm import FAULTS, SERVERS, SignalPlan, SignalStorm
from tests.nightly import NIGHTLY, by_night
from tests.patience import PATIENCE_S, until


# By day a cluster fails over in the test below, and Sentinel's primary in
# tests/contract/test_moved_servers.py.
@pytest.mark.parametrize(
    "servers",
    [pytest.param(name, marks=[NIGHTLY] * (name != "one")) for name in SERVERS],
)
async def test_every_acknowledged_signal_is_seen_or_said_to_be_lost(
    tmp_path: Path, servers: str
) -> None:
    """In order and once, by each client, whichever worker it asks."""
    plan = SignalPlan(
        clients=24,
        keys=8,
        faults=dict.fromkeys((*FAULTS, *SERVERS[servers].faults), 1),
        seed=3,
        workers=3,
        firing=2,
        servers=servers,
        wakes_a_second=by_night(400, 100),
    )
    storm = SignalStorm(plan, tmp_path)
    # A storm that hangs is a failure, too.
    async with asyncio.timeout(2 * PATIENCE_S):
        assert await storm.blow() == [], storm.counts
    assert storm.counts["acknowledged"] > 100, storm.counts
    assert storm.counts["seen"] > 100, storm.counts
    assert storm.counts["noticed names"], storm.counts
    assert storm.counts["expired"], storm.counts


async def test_an_idle_worker_finds_the_replica_that_has_taken_over(tmp_path: Path) -> None:
    """The connection to a host that is gone stays open: only silence tells."""
    servers = ClusterServers(tmp_path, random.Random(1))
    try:
        await servers.start()
        async with Purgatory(signals=RedisSignals(servers.url)) as idle:
            await until(lambda: not idle.missing)
            cursor = idle.cursor("key")
            async with servers.suspended_owner("{purgatory:signals:0}"):
                await until(lambda: bool(idle.missing))
                await until(lambda: not idle.missing)
                async with Purgatory(signals=RedisSignals(servers.url)) as other:
                    await other.fire("key", 1)
                outcome = await idle.park("key", timeout=PATIENCE_S, cursor=cursor)
                assert outcome.value == 1
    finally:
        await servers.close()
