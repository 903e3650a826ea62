"""Owners share the log of signals fairly: one who fires very many evicts nobody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from purgatory import Limits
from purgatory.errors import CursorExpiredError
from purgatory.outcome import Status
from tests.contract.test_redis_signals import until, worker
from tests.valkey_server import ValkeyServer

pytestmark = pytest.mark.anyio

LIMITS = Limits(max_signals=60, max_signals_per_key=60)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    with ValkeyServer(tmp_path) as running:
        yield running


async def test_one_who_fires_very_many_evicts_nobody_else_s(server: ValkeyServer) -> None:
    """In the log, in the copies of those that follow, and in one that starts later."""
    async with worker(server.url, LIMITS) as here, worker(server.url, LIMITS) as there:
        before = here.cursor("alice:1")
        for number in range(10):
            await here.fire(f"alice:{number}", number, owner="alice")
        await here.fire("nobody", "kept")
        for number in range(300):
            await there.fire(f"bob:{number % 100}", number, owner="bob")
        await until(lambda: here.signals.last("bob:99") == there.signals.last("bob:99"))
        async with worker(server.url, LIMITS) as later:
            for each in (here, there, later):
                counts = each.statistics().signals
                assert counts.signals <= LIMITS.max_signals
                for number in range(10):
                    outcome = await each.park(f"alice:{number}", timeout=0, cursor=before)
                    assert (outcome.status, outcome.value) == (Status.FIRED, number)
                assert (await each.park("nobody", timeout=0, cursor=before)).value == "kept"
                # His own are gone, and he is told.
                with pytest.raises(CursorExpiredError):
                    await each.park("bob:7", timeout=0, cursor=before)
                assert (await each.park("bob:99", timeout=0, cursor="0")).value == 299


async def test_nobody_s_signals_share_with_those_of_owners(server: ValkeyServer) -> None:
    """Also those from before there were owners."""
    async with worker(server.url, LIMITS) as here:
        for number in range(100):
            await here.fire(f"nobody:{number}", number)
        cursor = here.cursor("alice")
        for number in range(5):
            await here.fire("alice", number, owner="alice")
        for number in range(100, 200):
            await here.fire(f"nobody:{number}", number)
        seen: list[int] = []
        async with worker(server.url, LIMITS) as later:
            while (
                outcome := await later.park("alice", timeout=0, cursor=cursor)
            ).status is Status.FIRED:
                seen.append(outcome.value)
                cursor = outcome.cursor
        assert seen == list(range(5))


async def test_large_values_count_by_their_bytes(server: ValkeyServer) -> None:
    limits = Limits(max_signal_bytes=100_000, max_value_bytes=10_000)
    async with worker(server.url, limits) as here:
        before = here.cursor("alice")
        await here.fire("alice", 1, owner="alice")
        for number in range(50):
            await here.fire(f"bob:{number}", "x" * 9_000, owner="bob")
        async with worker(server.url, limits) as later:
            for each in (here, later):
                assert (await each.park("alice", timeout=0, cursor=before)).value == 1


async def test_reading_a_log_that_is_too_full_does_not_empty_it(server: ValkeyServer) -> None:
    """As where a worker was given lower limits: it removes what is in the midst, and counts it."""
    few = Limits(max_signals=20, max_signals_per_key=60)
    async with worker(server.url, LIMITS) as here:
        before = here.cursor("nobody")
        await here.fire("nobody", "kept")
        for number in range(50):
            await here.fire(f"bob:{number}", number, owner="bob")
        epoch = here.cursor("nobody").partition("-")[0]
        async with worker(server.url, few):
            await here.fire("nobody", "later")
            assert (await here.park("nobody", timeout=0, cursor=before)).value == "kept"
            assert here.cursor("nobody").partition("-")[0] == epoch


async def test_one_large_value_is_kept_where_room_is_made_by_reading(server: ValkeyServer) -> None:
    """One request makes room for it only in part, as a thousand small entries are not enough."""
    limits = Limits(max_signals=3_000, max_signal_bytes=100_000, max_value_bytes=95_000)
    async with worker(server.url, limits) as here:
        before = here.cursor("carol")
        fires = (here.fire(f"bob:{number}", number, owner="bob") for number in range(1_900))
        await asyncio.gather(*fires)
        await here.fire("carol", "x" * 90_000, owner="carol")
        (follower,) = here.shared_signals._followers  # type: ignore[union-attr]
        for _ in range(3):
            await follower.catch_up()
        async with worker(server.url, limits) as later:
            for each in (here, later):
                outcome = await each.park("carol", timeout=0, cursor=before)
                assert outcome.status is Status.FIRED


async def test_the_counts_of_owners_are_those_of_their_entries(server: ValkeyServer) -> None:
    """Whatever removes an entry: age, number, the key's number, a drop."""
    limits = Limits(max_signals=40, max_signals_per_key=3)
    async with worker(server.url, limits) as here:
        for number in range(300):
            owner = (None, "alice", "bob", "carol")[number * number % 7 % 4]
            await here.fire(f"key:{number * 5 % 23}", number, owner=owner)
            if number % 29 == 0:
                await here.cancel(f"key:{number % 23}")
    tag = "{purgatory:signals:0}:"
    with server.client() as client:
        found: dict[str, list[int]] = {}
        for name, fields in client.xrange(f"{tag}log"):
            owner_name = fields[b"e"].split(b" ", 4)[3].partition(b"@")[2].decode()
            found.setdefault(owner_name, []).append(int(name.partition(b"-")[0]))
        owned = {name: len(offsets) for name, offsets in found.items() if name}
        counted = dict(client.zrange(f"{tag}entries_by", 0, -1, withscores=True))
        assert {name.decode(): count for name, count in counted.items()} == owned
        for name, offsets in found.items():
            index = [int(each) for each in client.zrange(f"{tag}by:{name}", 0, -1)]
            # Nobody's from before there was an owner are not in theirs.
            assert index == offsets[len(offsets) - len(index) :]
            assert not name or len(index) == len(offsets)
        counts = client.hget(f"{tag}meta", "counts").split()
        assert [int(each) for each in counts[6:8]] == [len(owned), sum(owned.values())]


@pytest.mark.parametrize("count", [30, 100], ids=["keys-are-known", "keys-are-forgotten"])
async def test_a_worker_that_was_away_is_told_what_was_removed_in_the_midst(
    server: ValkeyServer, count: int
) -> None:
    """The last entry of a key is gone, and older ones of others are not: no later one tells."""
    limits = Limits(max_signals=20, max_signals_per_key=20)
    async with worker(server.url, limits) as here, worker(server.url, limits) as there:
        for number in range(8):
            await here.fire(f"alice:{number}", number, owner="alice")
        await until(lambda: there.signals.last("alice:7"))
        cursor = there.cursor("bob:0", "alice:0")
        # As if it had been suspended: nothing reaches it.
        (follower,) = there.shared_signals._followers  # type: ignore[union-attr]
        await follower.stop()
        for number in range(count):
            await here.fire(f"bob:{number}", number, owner="bob")
        assert follower._listener is not None
        follower.start(there.shared_signals._server, follower._listener)  # type: ignore[union-attr]
        await until(lambda: there.signals.last(f"bob:{count - 1}"))
        with pytest.raises(CursorExpiredError):
            await there.park("bob:0", timeout=0, cursor=cursor)
        assert (await there.park("alice:0", timeout=0, cursor="0")).value == 0
        if count == 30:
            last = await there.park("bob:29", timeout=0, cursor=cursor)
            assert last.value == 29
        # Quiet keys are not concerned.
        outcome = await there.park("alice:0", timeout=0, cursor=cursor)
        assert outcome.status is Status.EXPIRED
