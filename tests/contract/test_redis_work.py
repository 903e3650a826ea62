"""What the requests of one owner may take of the server of the signals: work, turns, memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from purgatory import Limits, Purgatory
from purgatory.signals.redis import RedisSignals
from purgatory.signals.shared_signals import REPEAT_PART, REPEAT_S, Idempotency
from tests.contract.test_redis_signals import worker
from tests.valkey_server import ValkeyServer

pytestmark = pytest.mark.anyio

TAG = "{purgatory:signals:0}:"
MANY = 1_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    with ValkeyServer(tmp_path) as running:
        yield running


def _calls(client: Any) -> dict[str, int]:
    """How often the server has run each command."""
    found = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): each["calls"] for name, each in found.items()}


async def _fire_many(here: Purgatory, owner: str, count: int = MANY, keys: int = MANY) -> Any:
    items = [(f"{owner}:{number % keys}", number) for number in range(count)]
    return await here.fire_shared(items, owner=owner)


@pytest.mark.parametrize("owners", [("low",), ("low", "other")], ids=["one", "two"])
async def test_a_batch_into_a_full_log_takes_few_commands(
    server: ValkeyServer, owners: tuple[str, ...]
) -> None:
    """Two for each entry that it appends, and two or three for each that makes room."""
    async with worker(server.url, Limits(max_signals=3_000)) as here:
        for number in range(6):
            await _fire_many(here, owners[number % len(owners)])
        with server.client() as client:
            before = sum(_calls(client).values())
            await _fire_many(here, "low")
            assert sum(_calls(client).values()) - before < 4.5 * MANY
            assert 2_990 < client.xlen(f"{TAG}log") <= 3_000


async def test_one_call_trims_a_bounded_number_of_entries(server: ValkeyServer) -> None:
    """Although each key of a batch has a full history, of which an eighth is due."""
    keys, per_key = 20, 800
    async with worker(server.url, Limits(max_signals_per_key=per_key)) as here:
        for _ in range(per_key * 9 // 8):
            await _fire_many(here, "low", keys, keys)
        with server.client() as client:
            kept = client.xlen(f"{TAG}log")
            assert kept == keys * per_key * 9 // 8
            for _ in range(3):
                await _fire_many(here, "low", keys, keys)
                removed = kept + keys - client.xlen(f"{TAG}log")
                assert removed <= MANY + keys
                kept = client.xlen(f"{TAG}log")
            # What one call leaves the next ones trim.
            assert kept <= keys * (per_key + 3)


@pytest.mark.parametrize("shards", [1, 4])
async def test_an_owner_waits_for_one_batch_of_another(server: ValkeyServer, shards: int) -> None:
    """However many that one has submitted before."""
    signals = RedisSignals(server.url, shards=shards, timeout=30)
    async with Purgatory("w", limits=Limits(max_signals=100_000), signals=signals) as here:
        batches = [asyncio.create_task(_fire_many(here, "low")) for _ in range(12)]
        await asyncio.sleep(0)
        await here.fire("victim", 1, owner="victim")
        await _fire_many(here, "victim", 200)
        done = sum(batch.done() for batch in batches)
        assert done <= 4
        await asyncio.gather(*batches)


def _named(owner: str, name: str) -> Idempotency:
    return Idempotency(owner=owner, name=name, fingerprint="f" * 64)


async def _fired(here: Purgatory, owner: str, name: str) -> int:
    """Fire as a request with a name; return the number of the signal."""
    (result,) = await here.fire_shared([(owner, 1)], idempotency=_named(owner, name), owner=owner)
    return result.seq  # type: ignore[union-attr]


async def test_who_has_most_names_forgets_its_oldest(server: ValkeyServer) -> None:
    """Names of all owners together have one budget; a repeat of a smaller owner fires nothing."""
    limits = Limits(max_signal_bytes=256 * 1024)
    async with worker(server.url, limits) as here:
        assert [await _fired(here, owner, "kept") for owner in ("a", "b")] == [1, 1]
        for number in range(600):
            await _fired(here, "low", f"{number:0200}")
        with server.client() as client:
            budget = limits.max_signal_bytes * REPEAT_PART
            used = sum(client.memory_usage(name) for name in client.scan_iter(f"{TAG}repeat*"))
            assert used < 1.2 * budget
            assert int(client.get(f"{TAG}repeats_bytes")) <= budget
        assert [await _fired(here, owner, "kept") for owner in ("a", "b")] == [1, 1]
        assert await _fired(here, "low", f"{599:0200}") == 600
        assert await _fired(here, "low", f"{0:0200}") == 601


async def test_responses_count_as_what_is_kept(server: ValkeyServer) -> None:
    limits = Limits(max_signal_bytes=256 * 1024)
    async with worker(server.url, limits) as here:
        assert here.shared_signals is not None
        for number in range(40):
            await _fired(here, "low", str(number))
            await here.shared_signals.remember(_named("low", str(number)), ["low"], b"x" * 8_000)
        again = await here.fire_shared([("low", 1)], idempotency=_named("low", "39"))
        assert again == b"x" * 8_000
        assert await _fired(here, "low", "0") == 41
        with server.client() as client:
            budget = limits.max_signal_bytes * REPEAT_PART
            assert int(client.get(f"{TAG}repeats_bytes")) <= budget


async def test_names_are_forgotten_in_time(server: ValkeyServer) -> None:
    """Also those of owners that fire no more: reading the log counts them no longer."""
    async with worker(server.url) as here:
        for owner in ("a", "b", "c"):
            await _fired(here, owner, "name")
        with server.client() as client:
            old_ms = int(client.time()[0] - REPEAT_S - 1) * 1_000
            for owner in client.zrange(f"{TAG}repeats_since", 0, 1):
                size, _, name = client.lpop(f"{TAG}repeats:{owner.decode()}").split(b" ")
                client.rpush(f"{TAG}repeats:{owner.decode()}", b"%b %d %b" % (size, old_ms, name))
                client.zadd(f"{TAG}repeats_since", {owner: old_ms})
            (follower,) = here.shared_signals._followers  # type: ignore[union-attr]
            await follower.catch_up()
            assert client.zcard(f"{TAG}repeats_by") == client.zcard(f"{TAG}repeats_since") == 1
            assert int(client.get(f"{TAG}repeats_bytes")) == int(size) > 0
            assert len(client.keys(f"{TAG}repeats:*")) == 1
