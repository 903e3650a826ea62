"""A server that has become a replica, behind an address that now leads to its successor."""

from __future__ import annotations

from pathlib import Path

import pytest

from purgatory import Purgatory
from purgatory.errors import CursorExpiredError, SignalsUnavailableError
from purgatory.signals.redis import RedisSignals
from tests.chaos.signals.proxy import Proxy
from tests.patience import PATIENCE_S, until
from tests.valkey_server import ValkeyServer


async def test_fires_reach_the_new_master(tmp_path: Path) -> None:
    """The old one keeps the connections open, and refuses every fire on them."""
    folders = [tmp_path / "old", tmp_path / "new"]
    for folder in folders:
        folder.mkdir()
    with (
        ValkeyServer(folders[0]) as old,
        ValkeyServer(folders[1], is_on_port=True) as new,
        old.client() as client,
    ):
        async with (
            Proxy(old.url.removeprefix("unix://")) as proxy,
            Purgatory(signals=RedisSignals(f"redis://127.0.0.1:{proxy.port}", timeout=20)) as here,
        ):
            await here.fire("key", 1)
            proxy.target = new.port
            client.replicaof("127.0.0.1", new.port)
            with pytest.raises(SignalsUnavailableError, match="takes no signals now"):
                await here.fire("key", 2)
            await here.fire("key", 3)


async def test_a_fire_that_the_old_primary_takes_after_the_first_report(tmp_path: Path) -> None:
    """Its loss expires the cursors that were given out after that report, too."""
    folders = [tmp_path / "old", tmp_path / "new"]
    for folder in folders:
        folder.mkdir()
    with (
        ValkeyServer(folders[0], is_on_port=True) as old,
        ValkeyServer(folders[1], is_on_port=True) as new,
        new.client() as client,
    ):
        client.replicaof("127.0.0.1", old.port)
        await until(lambda: client.info("replication")["master_link_status"] == "up")
        async with (
            Proxy(old.port) as here_proxy,
            Proxy(old.port) as there_proxy,
            _at(here_proxy) as here,
            _at(there_proxy) as there,
        ):
            await here.fire("key", 1)
            await until(lambda: client.exists("{purgatory:signals:0}:log") == 1)
            client.replicaof("NO", "ONE")
            lost = (await here.fire("key", 2)).cursor
            here_proxy.target = new.port
            here_proxy.cut()
            await _expired(here, lost)
            cursor = (await here.fire("key", 3)).cursor
            await there.fire("key", 4)
            there_proxy.target = new.port
            there_proxy.cut()
            for each in (here, there):
                await _expired(each, cursor)
            # Both know of all that was lost by now: nothing more expires.
            cursor = (await there.fire("key", 5)).cursor
            await here.fire("key", 6)
            for each in (here, there):
                outcome = await each.park("key", timeout=PATIENCE_S, cursor=cursor)
                assert outcome.value == 6


def _at(proxy: Proxy) -> Purgatory:
    return Purgatory(signals=RedisSignals(f"redis://127.0.0.1:{proxy.port}", timeout=20))


async def _expired(purgatory: Purgatory, cursor: str) -> None:
    """Return once a wait on the key with this cursor says that signals may be missing."""
    while True:
        try:
            outcome = await purgatory.park("key", timeout=PATIENCE_S, cursor=cursor)
            raise AssertionError(outcome)
        except CursorExpiredError:
            return
        except SignalsUnavailableError:
            continue
