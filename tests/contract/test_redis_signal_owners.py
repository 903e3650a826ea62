"""What requests of one owner may take of the signals of others, and of their server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from purgatory import Limits, Purgatory
from purgatory.errors import CursorExpiredError
from purgatory.outcome import Status
from purgatory.signals.model import REPEAT_PART, REPEAT_S, Idempotency
from purgatory.signals.redis import RedisSignals
from tests.contract.test_redis_signals import parked, worker
from tests.patience import until
from tests.valkey_server import ValkeyServer

LIMITS = Limits(max_signals=60, max_signals_per_key=60)


@pytest.mark.anyio
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


@pytest.mark.anyio
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


@pytest.mark.anyio
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


@pytest.mark.anyio
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


@pytest.mark.anyio
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


@pytest.mark.anyio
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


@pytest.mark.anyio
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
        assert follower.applier.listener is not None
        follower.start(there.shared_signals._server, follower.applier.listener)  # type: ignore[union-attr]
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


TAG = "{purgatory:signals:0}:"
MANY = 1_000


def _calls(client: Any) -> dict[str, int]:
    """How often the server has run each command."""
    found = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): each["calls"] for name, each in found.items()}


async def _fire_many(here: Purgatory, owner: str, count: int = MANY, keys: int = MANY) -> Any:
    items = [(f"{owner}:{number % keys}", number) for number in range(count)]
    return await here.fire_shared(items, owner=owner)


@pytest.mark.anyio
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


@pytest.mark.anyio
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


@pytest.mark.anyio
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


@pytest.mark.anyio
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


@pytest.mark.anyio
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


@pytest.mark.anyio
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


@pytest.mark.anyio
async def test_a_process_is_asked_by_those_of_its_database_only(server: ValkeyServer) -> None:
    async with (
        worker(server.url) as elsewhere,
        worker(f"{server.url}?db=1") as here,
        worker(f"{server.url}?db=1") as there,
    ):
        waiting = await parked(there, "k")
        assert here.shared_signals is not None and elsewhere.shared_signals is not None
        assert await here.shared_signals.peers.ask("waiting", "k", int) == [1]
        assert await elsewhere.shared_signals.peers.ask("waiting", "k", int) == []
        await elsewhere.fire("k", "elsewhere")
        await here.fire("k", "here")
        assert (await waiting).value == "here"
