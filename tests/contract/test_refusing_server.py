"""A server that can be read, and refuses writes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.errors import SignalsUnavailableError
from purgatory.signals.redis import RedisSignals
from tests.patience import until
from tests.valkey_server import ValkeyServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    with ValkeyServer(tmp_path) as server:
        yield server


@pytest.mark.parametrize(
    ("setting", "refusing", "code"),
    [("maxmemory", 1, "OOM"), ("min-replicas-to-write", 1, "NOREPLICAS")],
    ids=["full", "without-replicas"],
)
async def test_a_server_that_refuses_writes_is_missing_until_it_takes_them(
    server: ValkeyServer, caplog: pytest.LogCaptureFixture, setting: str, refusing: int, code: str
) -> None:
    """A worker that can fire nothing is not ready; its waits stay."""
    caplog.set_level(logging.INFO, "purgatory.signals")
    signals = RedisSignals(server.url, shards=2, timeout=20)
    async with Purgatory("w", signals=signals) as here:
        await here.fire("key", 1)
        waiting = asyncio.create_task(here.park("key", timeout=60))
        assert here.missing == []
        with server.client() as client:
            client.config_set(setting, refusing)
            await until(lambda: len(here.missing) == 1)
            assert here.missing == [f"signals: the server of the signals refuses writes: {code}"]
            with pytest.raises(SignalsUnavailableError, match=code) as caught:
                await here.fire("key", 2)
            # For clients: it is not out of reach.
            assert "refuses writes now" in caught.value.summary
            # It follows all the same.
            await signals.read_to_end(["key"])
            client.config_set(setting, 0)
        await until(lambda: not here.missing)
        await here.fire("key", 3)
        assert (await waiting).value == 3
    said = [_action(each) for each in caplog.records if each.name == "purgatory.signals.redis"]
    # Once for each log, of those that were read meanwhile.
    assert 1 <= said.count("signals-refused") == said.count("signals-accepted") <= 2
    assert "signals-away" not in said


@pytest.mark.parametrize(
    ("rights", "reason"),
    [("-publish", "may not publish"), ("resetchannels &purgatory:nothing", "")],
    ids=["no-publish", "no-channels"],
)
async def test_a_user_that_may_not_publish_fires(
    server: ValkeyServer, rights: str, reason: str
) -> None:
    """What is written counts, and is written once; it is late, and readiness says why."""
    with server.client() as client:
        client.acl_setuser("worker", enabled=True, nopass=True)
        client.execute_command("ACL", "SETUSER", "worker", "allkeys", "allcommands", "allchannels")
        url = server.url.replace("unix://", "unix://worker:any@")
        async with (
            Purgatory("w", signals=RedisSignals(url, timeout=20)) as here,
            Purgatory("v", signals=RedisSignals(server.url, timeout=20)) as there,
        ):
            client.execute_command("ACL", "SETUSER", "worker", *rights.split())
            fired = [await here.fire("key", value) for value in range(3)]
            assert [result.seq for result in fired] == [1, 2, 3]
            await until(lambda: there.cursor("key") == fired[-1].cursor)
            await until(lambda: any(reason in each for each in here.missing))
            client.execute_command("ACL", "SETUSER", "worker", "+publish", "allchannels")
            await until(lambda: not here.missing)


def _action(record: logging.LogRecord) -> Any:
    return getattr(record, "action", None)
