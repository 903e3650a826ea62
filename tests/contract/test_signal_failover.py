"""A server that has become a replica, behind an address that now leads to its successor."""

from __future__ import annotations

from pathlib import Path

import pytest

from purgatory import Purgatory
from purgatory.errors import SignalsUnavailableError
from purgatory.signals.redis import RedisSignals
from tests.chaos.signals.proxy import Proxy
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
