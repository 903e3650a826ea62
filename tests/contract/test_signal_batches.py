"""Batches of fires on keys of several logs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Literal

import pytest

from purgatory import Purgatory
from purgatory.errors import SignalsConflictError, SignalsUnavailableError
from purgatory.signals.redis import RedisSignals
from purgatory.signals.shared_signals import Idempotency
from tests.patience import PATIENCE_S, until
from tests.valkey_server import ValkeyServer

KEYS = [f"key:{number}" for number in range(20)]


def _worker(server: ValkeyServer, **options: Any) -> Purgatory:
    return Purgatory("worker", signals=RedisSignals(server.url, shards=8, timeout=30, **options))


@pytest.mark.parametrize("ack", ["memory", "aof"])
async def test_a_batch_over_several_logs_is_one_step(
    tmp_path: Path, ack: Literal["memory", "aof"]
) -> None:
    """Also for a server that has forgotten the script; each worker's waits end."""
    with ValkeyServer(tmp_path, appendfsync="everysec") as server, server.client() as client:
        async with _worker(server, ack=ack) as here, _worker(server) as there:
            cursors = {key: there.cursor(key) for key in KEYS}
            own = asyncio.create_task(here.park(KEYS[3], timeout=PATIENCE_S))
            await asyncio.sleep(0)
            client.script_flush()
            fired = await here.fire_shared([(key, 1) for key in KEYS])
            assert isinstance(fired, list)
            assert [each.completed for each in fired] == [int(key == KEYS[3]) for key in KEYS]
            assert [each.seq for each in fired] == [1] * len(KEYS)
            assert (await own).value == 1
            for key, result in zip(KEYS, fired, strict=True):
                outcome = await there.park(key, timeout=PATIENCE_S, cursor=cursors[key])
                assert (outcome.value, outcome.cursor) == (1, result.cursor)


async def test_a_batch_that_is_refused_appends_to_no_log(tmp_path: Path) -> None:
    """As by a server without memory."""
    with ValkeyServer(tmp_path) as server, server.client() as client:
        async with _worker(server) as here:
            await here.fire_shared([(key, 1) for key in KEYS])
            before = _lengths(client)
            client.config_set("maxmemory", 1)
            with pytest.raises(SignalsUnavailableError, match="no memory left"):
                await here.fire_shared([(key, 2) for key in KEYS])
            client.config_set("maxmemory", 0)
            assert _lengths(client) == before
            assert [each.seq for each in await _fired(here, 3)] == [2] * len(KEYS)


async def test_a_batch_under_way_is_waited_for_at_the_end(tmp_path: Path) -> None:
    """As a fire on one key is: its caller is not left in doubt."""
    with ValkeyServer(tmp_path) as server, server.client() as client:
        async with _worker(server) as here:
            await here.fire_shared([(key, 1) for key in KEYS])
            client.client_pause(int(PATIENCE_S) * 1000, all=False)
            batch = asyncio.create_task(here.fire_shared([(key, 2) for key in KEYS]))
            await until(lambda: bool(_info(client)["blocked_clients"]))
            closing = asyncio.create_task(here.close())
            _, pending = await asyncio.wait([batch, closing], timeout=0.05)
            assert len(pending) == 2
            client.client_unpause()
            fired = await batch
            await closing
            assert isinstance(fired, list)
            assert [each.seq for each in fired] == [2] * len(KEYS)


async def test_a_repeated_batch_appends_nothing(tmp_path: Path) -> None:
    """And its name is not that of another."""
    name = Idempotency(owner="one", name="a", fingerprint="1")
    with ValkeyServer(tmp_path) as server, server.client() as client:
        async with _worker(server) as here:
            first = await _fired(here, 1, name)
            before = _lengths(client)
            again = await _fired(here, 1, name)
            assert [each.cursor for each in again] == [each.cursor for each in first]
            other = Idempotency(owner="one", name="a", fingerprint="2")
            with pytest.raises(SignalsConflictError):
                await _fired(here, 2, other)
            assert _lengths(client) == before


async def test_a_name_that_one_of_the_logs_knows_refuses_the_whole_batch(tmp_path: Path) -> None:
    """Of another request, whose keys are in some of the logs only; a repeat is still known."""
    with ValkeyServer(tmp_path) as server, server.client() as client:
        async with _worker(server) as here:
            name = Idempotency(owner="one", name="a", fingerprint="1")
            (first,) = [await here.fire_shared([(KEYS[0], 1)], idempotency=name)]
            before = _lengths(client)
            with pytest.raises(SignalsConflictError) as conflict:
                await _fired(here, 2, Idempotency(owner="one", name="a", fingerprint="2"))
            assert conflict.value.is_name_reused
            assert _lengths(client) == before
            assert await here.fire_shared([(KEYS[0], 1)], idempotency=name) == first


async def test_large_batches_leave_half_of_the_server_to_others(tmp_path: Path) -> None:
    """If others fire as well, the next one waits for as long as the last one took."""
    large = [(f"large:{number}", 1) for number in range(1000)]
    with ValkeyServer(tmp_path) as server, server.client() as client:
        async with Purgatory("worker", signals=RedisSignals(server.url, timeout=30)) as here:
            await here.fire_shared(large)
            await here.fire("key")
            client.client_pause(300, all=False)
            await here.fire_shared(large)
            another = asyncio.create_task(here.fire_shared(large))
            await asyncio.sleep(0)
            for _ in range(20):
                await here.fire("key")
            assert not another.done()
            await another


async def _fired(worker: Purgatory, value: int, name: Idempotency | None = None) -> list[Any]:
    fired = await worker.fire_shared([(key, value) for key in KEYS], idempotency=name)
    assert isinstance(fired, list)
    return fired


def _info(client: Any) -> Any:
    return client.info("clients")


def _lengths(client: Any) -> list[int]:
    return [client.xlen(f"{{purgatory:signals:{number}}}:log") for number in range(8)]
