"""Signals that several purgatories share through a real server."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster

from purgatory import Limits, Purgatory
from purgatory.errors import (
    BadCursorError,
    CursorExpiredError,
    SignalsNotReadyError,
    SignalsUnavailableError,
)
from purgatory.outcome import Status
from purgatory.signals import WaitOperation
from purgatory.signals.redis import RedisSignals
from purgatory.signals.redis.follower import PAGE
from tests.patience import PATIENCE_S, until
from tests.valkey_server import ValkeyServer

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[1, 4], ids=["one-log", "four-logs"])
def shards(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    return count


class Noted(WaitOperation):
    """A wait that responds to nobody."""

    __slots__ = ()

    def on_complete(self) -> None:
        pass


@asynccontextmanager
async def worker(
    given: str | Redis | RedisCluster, limits: Limits | None = None, **options: Any
) -> AsyncIterator[Purgatory]:
    """A purgatory as in one worker process: its connections and its copy are its own."""
    options.setdefault("timeout", PATIENCE_S / 4)
    async with Purgatory("worker", limits=limits, signals=RedisSignals(given, **options)) as one:
        yield one


@asynccontextmanager
async def two_workers(
    given: str, limits: Limits | None = None, **options: Any
) -> AsyncIterator[tuple[Purgatory, Purgatory]]:
    async with worker(given, limits, **options) as one, worker(given, limits, **options) as two:
        yield one, two


async def noticed_by(*workers: Purgatory) -> None:
    """Wait until all have noticed that the server is away."""
    await until(lambda: all(each.missing for each in workers))


async def restarted(server: ValkeyServer, *workers: Purgatory) -> None:
    """Start the server again, and wait until all are connected."""
    server.start()
    await until(lambda: not any(each.missing for each in workers))


def gaps_of(purgatory: Purgatory) -> int:
    shared = purgatory.statistics().shared_signals
    assert shared is not None
    return shared.gaps


async def parked(purgatory: Purgatory, *keys: str, **options: Any) -> asyncio.Task[Any]:
    before = purgatory.parked
    task = asyncio.create_task(purgatory.park(*keys, timeout=PATIENCE_S, **options))
    await until(lambda: purgatory.parked > before or task.done())
    return task


async def test_a_fire_in_one_worker_ends_waits_in_another(
    server: ValkeyServer, shards: int
) -> None:
    async with two_workers(server.url, shards=shards) as (here, there):
        waiting = await parked(there, "order:1", "order:2")
        fired = await here.fire("order:2", {"paid": True})
        outcome = await waiting
        assert (outcome.status, outcome.key, outcome.value) == (
            Status.FIRED,
            "order:2",
            {"paid": True},
        )
        assert fired.seq == 1


async def test_a_cursor_of_one_worker_is_good_in_others_and_later_ones(
    server: ValkeyServer, shards: int
) -> None:
    async with worker(server.url, shards=shards) as first:
        since = first.cursor("a", "b", "c", "d", "e")
        for number in range(3):
            for key in "abcde":
                await first.fire(key, number)
        async with worker(server.url, shards=shards) as later:
            for key in "abcde":
                seen: list[int] = []
                cursor = since
                while (
                    outcome := await later.park(key, timeout=0, cursor=cursor)
                ).status is Status.FIRED:
                    seen.append(outcome.value)
                    cursor = outcome.cursor
                assert seen == [0, 1, 2]


async def test_what_is_kept_ends_a_wait_of_any_log_at_once(server: ValkeyServer) -> None:
    """Positions of an empty log are 0 and more, as many as there are logs."""
    async with worker(server.url, shards=4) as here:
        for number in range(12):
            key = f"key:{number}"
            await here.fire(key, number)
            position = here.signals.position(key, "0")
            wait = Noted(0, here.signals, (key,), (position,))
            assert wait.try_complete()


async def test_several_keys_are_read_to_the_end_by_the_cursor_of_each_outcome(
    server: ValkeyServer, shards: int
) -> None:
    async with two_workers(server.url, shards=shards) as (here, there):
        keys = [f"key:{number}" for number in range(8)]
        cursor = there.cursor(*keys)
        fired = [(keys[number * 5 % 8], number) for number in range(40)]
        for key, number in fired:
            await here.fire(key, number)
        seen: list[tuple[str | None, int]] = []
        while len(seen) < 40:
            outcome = await there.park(*keys, timeout=PATIENCE_S, cursor=cursor)
            seen.append((outcome.key, outcome.value))
            cursor = outcome.cursor
        assert sorted(seen) == sorted(fired)
        for key in keys:
            assert [value for name, value in seen if name == key] == [
                value for name, value in fired if name == key
            ]


async def test_the_numbers_of_a_key_are_without_gap_whoever_fires(server: ValkeyServer) -> None:
    async with two_workers(server.url) as (one, two):
        fires = [each.fire("key", index) for index in range(50) for each in (one, two)]
        results = await asyncio.gather(*fires)
        assert sorted(result.seq for result in results) == list(range(1, 101))


async def test_a_dropped_key_ends_waits_everywhere_and_expires_cursors(
    server: ValkeyServer, shards: int
) -> None:
    async with two_workers(server.url, shards=shards) as (here, there):
        old = (await here.fire("key", 1)).cursor
        await until(lambda: there.signals.last("key"))
        waiting = await parked(there, "key")
        await here.cancel("key")
        assert (await waiting).status is Status.CANCELLED
        for each in (here, there):
            with pytest.raises(CursorExpiredError):
                await each.park("key", timeout=0, cursor=old)


async def test_a_cursor_ahead_of_this_worker_waits_for_what_is_behind_it(
    server: ValkeyServer,
) -> None:
    async with two_workers(server.url) as (here, there):
        cursors = [(await here.fire("key", number)).cursor for number in range(20)]
        # Whether or not the last entries have arrived there.
        outcome = await there.park("key", timeout=0, cursor=cursors[-1])
        assert outcome.status is Status.EXPIRED
        assert outcome.cursor == cursors[-1]


async def test_an_emptied_server_expires_cursors_and_ends_waits(
    server: ValkeyServer, shards: int
) -> None:
    async with two_workers(server.url, shards=shards) as (here, there):
        old = (await here.fire("key", 1)).cursor
        waiting = await parked(there, "key", cursor=old)
        with server.client() as client:
            client.flushall()
        with pytest.raises(CursorExpiredError) as caught:
            await waiting
        assert caught.value.key == "key"
        outcome = await there.park("key", timeout=0, cursor=caught.value.head)
        assert outcome.status is Status.EXPIRED
        await here.fire("key", 2)
        following = await there.park("key", timeout=PATIENCE_S, cursor=outcome.cursor)
        assert following.value == 2
        with pytest.raises(CursorExpiredError):
            await here.park("key", timeout=0, cursor=old)


async def test_a_restarted_server_keeps_cursors_and_waits(
    server: ValkeyServer, shards: int
) -> None:
    async with two_workers(server.url, shards=shards) as (here, there):
        cursor = (await here.fire("key", 1)).cursor
        waiting = await parked(there, "key", cursor=cursor)
        server.kill()
        await noticed_by(here, there)
        await restarted(server, here, there)
        assert not waiting.done()
        await here.fire("key", 2)
        assert (await waiting).value == 2
        assert (await there.park("key", timeout=0, cursor=cursor)).value == 2


async def test_lost_writes_expire_the_cursors_of_their_keys_only(
    server: ValkeyServer, tmp_path: Path
) -> None:
    """As after a failover to a replica that was behind: the log is shorter than it was."""
    async with two_workers(server.url) as (here, there):
        kept = (await here.fire("kept", 1)).cursor
        lost = (await here.fire("lost", 1)).cursor
        server.kill()
        saved = tmp_path / "saved"
        shutil.copytree(tmp_path / "appendonlydir", saved)
        await noticed_by(here, there)
        await restarted(server, here, there)
        acknowledged = (await here.fire("lost", 2)).cursor
        await until(lambda: there.signals.last("lost") == here.signals.last("lost"))
        waiting = await parked(there, "lost", cursor=acknowledged)
        still = await parked(there, "kept", cursor=kept)
        server.kill()
        shutil.rmtree(tmp_path / "appendonlydir")
        shutil.copytree(saved, tmp_path / "appendonlydir")
        server.start()
        with pytest.raises(CursorExpiredError):
            await waiting
        # Until it has noticed, a worker still has the entry, which was acknowledged.
        await until(lambda: all(gaps_of(each) for each in (here, there)))
        async with worker(server.url) as later:
            for each in (here, there, later):
                for cursor in (lost, acknowledged):
                    # At the latest when a worker that knew the lost entry has reported its key.
                    with pytest.raises(CursorExpiredError):
                        await each.park("lost", timeout=PATIENCE_S, cursor=cursor)
            assert not still.done()
            await later.fire("kept", 2)
            assert (await still).value == 2
            assert (await here.park("kept", timeout=PATIENCE_S, cursor=kept)).value == 2


async def test_a_log_that_returns_after_it_was_emptied_expires_every_cursor(
    server: ValkeyServer, tmp_path: Path
) -> None:
    """A backup is restored: which keys have fired since then, nobody could say."""
    async with two_workers(server.url) as (here, there):
        before = (await here.fire("key", 1)).cursor
        server.kill()
        saved = tmp_path / "saved"
        shutil.copytree(tmp_path / "appendonlydir", saved)
        await noticed_by(here, there)
        await restarted(server, here, there)
        with server.client() as client:
            client.flushall()
        await until(lambda: all(gaps_of(each) for each in (here, there)))
        await here.fire("key", 2)
        server.kill()
        shutil.rmtree(tmp_path / "appendonlydir")
        shutil.copytree(saved, tmp_path / "appendonlydir")
        await noticed_by(here, there)
        await restarted(server, here, there)
        async with worker(server.url) as later:
            for each in (here, there, later):
                with pytest.raises(CursorExpiredError):
                    await each.park("key", timeout=PATIENCE_S, cursor=before)
            await later.fire("key", 3)


async def test_a_worker_that_missed_more_than_is_kept_expires_only_keys_that_fired(
    server: ValkeyServer,
) -> None:
    limits = Limits(max_signals=10, max_signals_per_key=10)
    async with two_workers(server.url, limits) as (here, there):
        # As if it had been suspended: nothing reaches it.
        (follower,) = there.shared_signals._followers  # type: ignore[union-attr]
        cursor = there.cursor("fired", "quiet")
        fired = await parked(there, "fired", cursor=cursor)
        quiet = await parked(there, "quiet", cursor=cursor)
        await follower.stop()
        await here.fire("fired", 0)
        for number in range(15):
            await here.fire(f"other:{number}")
        assert follower.applier.listener is not None
        follower.start(there.shared_signals._server, follower.applier.listener)  # type: ignore[union-attr]
        with pytest.raises(CursorExpiredError):
            await fired
        assert not quiet.done()
        await here.fire("quiet", 1)
        assert (await quiet).value == 1


async def test_only_logs_with_signals_have_a_timer(server: ValkeyServer) -> None:
    """It ages the signals of one log."""
    async with worker(server.url, shards=16) as here:
        before = here.statistics().timers
        await here.fire("key")
        await here.fire("key")
        assert here.statistics().timers == before + 1


async def test_a_full_log_is_read_at_the_start(server: ValkeyServer) -> None:
    count = 2 * PAGE + 10
    async with worker(server.url) as here:
        await asyncio.gather(*(here.fire(f"key:{number % 7}", number) for number in range(count)))
        async with worker(server.url) as later:
            assert later.signals.statistics().signals == count
            assert later.signals.cursor_of(["key:1"]) == here.signals.cursor_of(["key:1"])


async def test_the_log_is_bounded_by_number_per_key_and_in_all(server: ValkeyServer) -> None:
    limits = Limits(max_signals=50, max_signals_per_key=5)
    async with worker(server.url, limits) as here:
        for number in range(100):
            await here.fire("hot", number)
        for number in range(40):
            await here.fire(f"key:{number}")
        async with worker(server.url, limits) as later:
            assert [signal.value for signal in later.signals.read("hot", 0, 10)] == list(
                range(95, 100)
            )
            assert later.signals.statistics().signals == 45
        for number in range(60):
            await here.fire(f"more:{number}")
    client = Redis.from_url(server.url)
    tag = "{purgatory:signals:0}:"
    assert await client.xlen(f"{tag}log") == 50
    assert await client.hlen(f"{tag}keys") <= 100
    assert len([name async for name in client.scan_iter(f"{tag}of:*")]) == 50
    await client.aclose()


async def test_fires_while_the_server_is_away_are_refused_within_the_timeout(
    server: ValkeyServer,
) -> None:
    async with worker(server.url, timeout=1.0) as here:
        waiting = await parked(here, "key")
        server.kill()
        with pytest.raises(SignalsUnavailableError, match="the same call can be made again"):
            await here.fire("key")
        await noticed_by(here)
        assert "signals: " in here.missing[0]
        # Anyone may ask /readyz: where the server is, is in the log.
        assert "127.0.0.1" not in here.missing[0] and "Error" not in here.missing[0]
        # What waits goes on waiting, and can go on to be parked.
        assert not waiting.done()
        assert (await here.park("key", timeout=0.01)).status is Status.EXPIRED
        await restarted(server, here)
        await here.fire("key", 3)
        assert (await waiting).value == 3


async def test_a_worker_starts_while_the_server_is_away(server: ValkeyServer) -> None:
    server.kill()
    async with worker(server.url, timeout=0.2) as here:
        assert here.missing
        with pytest.raises(SignalsUnavailableError, match="not read"):
            await here.park("key", timeout=1)
        with pytest.raises(SignalsUnavailableError):
            await here.fire("key")
        await restarted(server, here)
        assert (await here.fire("key")).seq == 1


async def test_a_server_that_evicts_is_refused(tmp_path: Path) -> None:
    evicting = ValkeyServer(tmp_path, maxmemory_policy="allkeys-lru")
    with evicting, pytest.raises(SignalsNotReadyError, match="noeviction"):
        async with worker(evicting.url):
            raise AssertionError("it opened")


@pytest.mark.parametrize("other", [1, 4])
async def test_another_number_of_shards_is_refused(
    server: ValkeyServer, other: int, caplog: pytest.LogCaptureFixture
) -> None:
    """At once, rather than as a server that may come back."""
    async with worker(server.url, shards=2):
        caplog.clear()
        with pytest.raises(SignalsNotReadyError, match=r"shards=2, and.*: give shards=2"):
            async with worker(server.url, shards=other):
                raise AssertionError("it opened")
        assert "signals are not exchanged" not in caplog.text


async def test_entries_that_are_too_long_for_a_message_are_read(server: ValkeyServer) -> None:
    async with two_workers(server.url) as (here, there):
        waiting = await parked(there, "key:39")
        await here.fire_shared([(f"key:{number}", "x" * 60_000) for number in range(40)])
        assert len((await waiting).value) == 60_000
        (follower,) = there.shared_signals._followers  # type: ignore[union-attr]
        # A reply is bounded, too.
        state = await follower.log.read(0, PAGE)
        assert state.head == 40
        async with worker(server.url) as later:
            assert later.signals.statistics().signals == 40


async def test_a_server_that_becomes_a_replica_is_away(server: ValkeyServer) -> None:
    async with worker(server.url) as here:
        waiting = await parked(here, "key")
        with server.client() as client:
            client.execute_command("REPLICAOF", "127.0.0.1", "1")
            await noticed_by(here)
            with pytest.raises(SignalsUnavailableError, match="takes no signals now"):
                await here.fire("key")
            client.execute_command("REPLICAOF", "NO", "ONE")
        await until(lambda: not here.missing)
        await here.fire("key", 1)
        assert (await waiting).value == 1


@pytest.fixture
def cluster_url(tmp_path: Path) -> Iterator[str]:
    node = ValkeyServer(tmp_path)
    try:
        yield node.start_as_cluster().url
    finally:
        node.close()


async def test_a_cluster(cluster_url: str) -> None:
    async with (
        RedisCluster.from_url(cluster_url) as client,
        worker(client, shards=4) as here,
        worker(cluster_url.replace("redis:", "redis+cluster:"), shards=4) as there,
    ):
        for number in range(8):
            waiting = await parked(there, f"key:{number}")
            await here.fire(f"key:{number}", number)
            assert (await waiting).value == number


async def test_questions_do_not_ask_a_cluster_for_its_nodes(cluster_url: str) -> None:
    """A dashboard asks the other processes each second; subscriptions look for a new master."""
    url = cluster_url.replace("redis:", "redis+cluster:")
    async with Redis.from_url(cluster_url) as client, worker(url) as here, worker(url) as there:
        assert isinstance(here.shared_signals, RedisSignals)
        _ = await parked(there, "k")
        assert await here.shared_signals.peers.ask("waiting", "k", int) == [1]
        before = await client.info("commandstats")
        for _ in range(10):
            assert await here.shared_signals.peers.ask("waiting", "k", int) == [1]
        after = await client.info("commandstats")
        assert after["cmdstat_cluster|slots"] == before["cmdstat_cluster|slots"]


async def test_a_cursor_of_other_keys_is_refused(server: ValkeyServer) -> None:
    async with worker(server.url, shards=4) as here:
        shared = here.shared_signals
        assert isinstance(shared, RedisSignals)
        other = next(
            f"key:{number}"
            for number in range(100)
            if shared.shard_of(f"key:{number}") != shared.shard_of("key")
        )
        with pytest.raises(BadCursorError, match="other keys"):
            await here.park("key", timeout=0, cursor=here.cursor(other))


async def test_one_object_serves_one_purgatory() -> None:
    signals = RedisSignals("redis://localhost")
    Purgatory(signals=signals)
    with pytest.raises(ValueError, match="another purgatory"):
        Purgatory(signals=signals)
    with pytest.raises(TypeError, match="RedisSignals"):
        Purgatory(signals="redis://localhost")  # type: ignore[arg-type]  # that is the test
