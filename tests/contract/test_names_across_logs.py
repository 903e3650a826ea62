"""Names of requests (Idempotency-Key) that are used again for keys of other logs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import ClusterDownError

from purgatory import Limits, Purgatory
from purgatory.errors import SignalsConflictError, SignalsUnavailableError
from purgatory.signals.redis import RedisSignals
from purgatory.signals.shared_signals import REPEAT_S, Idempotency
from tests.chaos.signals.servers import ClusterServers
from tests.valkey_server import ValkeyServer

SHARDS = 8
KEYS = [f"key:{number}" for number in range(16)]


def worker(url: Any, *, timeout: float = 30) -> Purgatory:
    limits = Limits(max_signals=1_000)
    return Purgatory("w", limits=limits, signals=RedisSignals(url, shards=SHARDS, timeout=timeout))


@pytest.fixture(params=["one", "cluster", "one-node-of-a-cluster"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    node = ValkeyServer(tmp_path)
    try:
        if request.param == "one":
            node.start()
        else:
            node.start_as_cluster()
        yield node.url.replace(
            "redis:", "redis+cluster:" if request.param == "cluster" else "redis:"
        )
    finally:
        node.close()


def named(name: str, *keys: str) -> Idempotency:
    return Idempotency(owner="one", name=name, fingerprint="-".join(keys))


async def fired(here: Purgatory, name: str, *keys: str, **options: Any) -> list[tuple[str, int]]:
    """Fire keys as the request `name`, which its keys tell from others."""
    pairs = [(key, 1) for key in keys]
    results = await here.fire_shared(pairs, idempotency=named(name, *keys), **options)
    assert isinstance(results, list)
    return [(each.cursor, each.seq) for each in results]


async def refused(here: Purgatory, name: str, *keys: str) -> None:
    """The request is refused because of its name, and fires nothing."""
    before = [here.cursor(key) for key in keys]
    with pytest.raises(SignalsConflictError) as conflict:
        await fired(here, name, *keys)
    assert conflict.value.is_name_reused
    assert [here.cursor(key) for key in keys] == before


async def test_a_name_is_that_of_one_request_whatever_log_has_its_key(url: str) -> None:
    """Its repeats are known, in each process; other names and clients are not concerned."""
    async with worker(url) as here, worker(url) as there:
        for number, key in enumerate(KEYS):
            first = await fired(here, f"name {number}", key)
            assert await fired(there, f"name {number}", key) == first
            for other in KEYS:
                if other != key:
                    await refused(there, f"name {number}", other)
        another = Idempotency(owner="two", name="name 0", fingerprint="other")
        await there.fire_shared([(KEYS[1], 1)], idempotency=another)


async def test_batches_and_single_fires_share_names(url: str) -> None:
    """Nothing of what is refused is fired, also if the logs take their parts in turn."""
    async with worker(url) as here:
        for number in range(8):
            first = await fired(here, f"batch {number}", *KEYS[:2])
            await refused(here, f"batch {number}", KEYS[5])
            await refused(here, f"batch {number}", *KEYS[6:9])
            assert await fired(here, f"batch {number}", *KEYS[:2]) == first
            await fired(here, f"single {number}", KEYS[10])
            await refused(here, f"single {number}", *KEYS[11:14])


async def test_many_at_once_share_round_trips(url: str) -> None:
    """Also with the same name: one of them is fired."""
    async with worker(url) as here:
        await here.fire(KEYS[0])
        ends = await asyncio.gather(
            *(fired(here, f"name {n % 20}", KEYS[n % 16]) for n in range(200)),
            return_exceptions=True,
        )
        errors = [end for end in ends if isinstance(end, BaseException)]
        assert all(isinstance(each, SignalsConflictError) for each in errors)
        won: dict[int, set[str]] = {}
        for number, end in enumerate(ends):
            if not isinstance(end, BaseException):
                won.setdefault(number % 20, set()).add(KEYS[number % 16])
        assert [len(won[name]) for name in range(20)] == [1] * 20


async def test_a_name_is_free_after_a_request_that_was_refused(url: str) -> None:
    """By If-Match: its signal was not fired."""
    async with worker(url) as here:
        for number in range(8):
            position = here.signals.position(KEYS[0], here.cursor(KEYS[0]))
            await here.fire(KEYS[0])
            with pytest.raises(SignalsConflictError) as conflict:
                await fired(here, f"name {number}", KEYS[0], unless_after=position)
            assert not conflict.value.is_name_reused
            await fired(here, f"name {number}", KEYS[1])


async def test_the_home_knows_the_name_and_not_the_response(url: str) -> None:
    """As long as the log of the key does; what another version has written without is enough."""
    async with worker(url) as here:
        signals = here.shared_signals
        assert isinstance(signals, RedisSignals)
        client: Any = signals._server.client
        home = signals.shard_of(named("name").hash)
        key = next(key for key in KEYS if signals.shard_of(key) != home)
        name = named("name", key)
        first = await fired(here, "name", key)
        await signals.remember(name, [key], b"response")
        entries = [
            signals._logs[shard].key_of_name(name) for shard in (signals.shard_of(key), home)
        ]
        assert [(await client.get(each)).endswith(b"response") for each in entries] == [True, False]
        assert REPEAT_S * 1_000 - 60_000 < await client.pttl(entries[0]) <= REPEAT_S * 1_000
        assert abs(await client.pttl(entries[0]) - await client.pttl(entries[1])) < 60_000
        await client.delete(entries[1])
        assert await here.fire_shared([(key, 1)], idempotency=name) == b"response"
        assert here.signals.last(key) == here.signals.position(key, first[0][0])


async def test_a_server_that_has_forgotten_the_script_is_sent_it(url: str) -> None:
    async with worker(url) as here:
        await here.fire(KEYS[0])
        signals = here.shared_signals
        assert isinstance(signals, RedisSignals)
        client: Any = signals._server.client
        for number in range(4):
            await client.script_flush()
            await fired(here, f"name {number}", KEYS[1])
            await refused(here, f"name {number}", KEYS[2])


async def test_a_response_is_stored_by_one_call(tmp_path: Path) -> None:
    """Whatever the number of logs: the others do not know the name, or need no response."""
    fires = 100
    with ValkeyServer(tmp_path) as server, server.client() as client:
        async with worker(server.url) as here:
            assert here.shared_signals is not None
            before = _calls(client)
            for number in range(fires):
                name = Idempotency(owner="one", name=f"{number}", fingerprint="1")
                await here.fire_shared([(KEYS[0], 1)], idempotency=name)
                await here.shared_signals.remember(name, [KEYS[0]], b"response")
            # Each log is read once a second, besides.
            assert _calls(client) - before < 2 * fires + 10 * SHARDS


def _calls(client: Any) -> int:
    return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])


def elsewhere(here: Purgatory) -> tuple[str, str, str]:
    """Return a name, and two keys of different logs that are not its home."""
    signals = here.shared_signals
    assert isinstance(signals, RedisSignals)
    home = signals.shard_of(named("name").hash)
    first = next(key for key in KEYS if signals.shard_of(key) != home)
    known = {home, signals.shard_of(first)}
    return "name", first, next(key for key in KEYS if signals.shard_of(key) not in known)


async def test_a_claim_without_a_fire_ends_when_that_cannot_be_under_way(tmp_path: Path) -> None:
    """Of a process that was killed in between: the same request may be repeated at once."""
    node = ValkeyServer(tmp_path)
    try:
        url = node.start_as_cluster().url
        client: Any = RedisCluster.from_url(url)
        async with client, worker(client) as here:
            name, first, other = elsewhere(here)
            signals = here.shared_signals
            assert isinstance(signals, RedisSignals)
            home = signals.shard_of(named(name).hash)
            entry = signals._logs[home].key_of_name(named(name))

            async def claim() -> None:
                await client.delete(entry)
                await signals._claims.claim(home, named(name, first), [signals.shard_of(first)])

            async def let_time_pass() -> None:
                text, token, _, logs = (await client.get(entry)).split(b" ")
                await client.set(entry, b" ".join((text, token, b"1", logs)), keepttl=True)

            await claim()
            await refused(here, name, other)
            await let_time_pass()
            await fired(here, name, other)
            await refused(here, name, first)
            # Fired, although the process that has claimed the name never knew.
            await let_time_pass()
            await refused(here, name, first)
    finally:
        node.close()


async def test_a_refusal_of_a_repeated_command_does_not_free_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client repeats a command without a reply: the first may have been done."""
    node = ValkeyServer(tmp_path)
    try:
        url = node.start_as_cluster().url
        client: Any = RedisCluster.from_url(url)
        async with client, worker(client) as here:
            name, first, other = elsewhere(here)
            execute = client.execute_command

            async def execute_twice(*command: Any, **options: Any) -> Any:
                reply = await execute(*command, **options)
                if b"append" in command:
                    raise ClusterDownError("CLUSTERDOWN The cluster is down")
                return reply

            with monkeypatch.context() as patch:
                patch.setattr(client, "execute_command", execute_twice)
                with pytest.raises(SignalsUnavailableError, match="made again"):
                    await fired(here, name, first)
            await refused(here, name, other)
            ((_, seq),) = await fired(here, name, first)
            assert seq == 1
    finally:
        node.close()


async def test_a_fire_whose_log_is_away_is_repeated_once(tmp_path: Path) -> None:
    """Within its timeout, the home and the log together; the name is still that of the request."""
    servers = ClusterServers(tmp_path, random.Random(1))
    await servers.start()
    try:
        async with worker(servers.url, timeout=30) as here, worker(servers.url, timeout=1) as brief:
            name, first, other = elsewhere(here)
            signals = here.shared_signals
            assert isinstance(signals, RedisSignals)
            shard = signals.shard_of(first)
            async with servers.suspended_owner(f"{{purgatory:signals:{shard}}}:log"):
                with pytest.raises(SignalsUnavailableError, match="made again"):
                    await fired(brief, name, first)
            again = await fired(here, name, first)
            assert await fired(here, name, first) == again
            await refused(here, name, other)
            position = here.signals.position(first, again[0][0])
            await signals.read_to_end([first])
            assert here.signals.last(first) == position
    finally:
        await servers.close()
