"""A server that still reads its file: it is as if it were away, for whatever is kept there."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from purgatory import Purgatory
from purgatory.errors import OwnershipUnavailableError, SignalsUnavailableError
from purgatory.jobs import StoreUnavailableError
from purgatory.jobs.redis import RedisJobStore
from purgatory.ownership import Lease, Ownership
from purgatory.ownership.redis import RedisLeaseStore
from purgatory.signals.redis import RedisSignals
from tests.patience import until
from tests.valkey_server import ValkeyServer

pytestmark = pytest.mark.anyio


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    with ValkeyServer(tmp_path, appendfsync="always") as running:
        yield running


async def test_a_start_while_the_server_loads(
    server: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It says that it has no append-only file, which is neither refused nor warned of."""
    caplog.set_level(logging.INFO)
    async with AsyncExitStack() as stack:
        with server.loading():
            signals = RedisSignals(server.url, ack="aof", timeout=1)
            shared = await stack.enter_async_context(Purgatory("s", signals=signals))
            store = RedisJobStore(server.url, fsync=True)
            delayed = await stack.enter_async_context(Purgatory("j", jobs=store))
            delayed.handled_elsewhere(["h"])
            owning = Ownership(RedisLeaseStore(server.url), "http://a", timeout=1)
            await stack.enter_async_context(owning)
            with pytest.raises(SignalsUnavailableError):
                await shared.fire("k")
            with pytest.raises(StoreUnavailableError):
                await delayed.defer("h", delay=60)
            with pytest.raises(OwnershipUnavailableError):
                await owning.acquire("n")
        await until(lambda: not shared.missing + delayed.missing)
        assert (await shared.fire("k")).seq == 1
        assert (await delayed.defer("h", delay=60)).id
        assert isinstance(await owning.acquire("n"), Lease)
    assert "append" not in caplog.text
