"""Named requests, batches and the short way through the log, over keys of several logs."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from fastapi import FastAPI
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import ClusterDownError

from purgatory import Limits, Purgatory
from purgatory.errors import CursorExpiredError, SignalsConflictError, SignalsUnavailableError
from purgatory.fastapi import ALLOW_ANYONE, install
from purgatory.signals.model import REPEAT_S, EntryType, Idempotency
from purgatory.signals.redis import RedisSignals
from tests.chaos.signals.servers import ClusterServers
from tests.patience import PATIENCE_S, until
from tests.valkey_server import ValkeyServer

SHARDS = 8
KEYS = [f"key:{number}" for number in range(20)]


def worker(url: Any, *, timeout: float = 30) -> Purgatory:
    limits = Limits(max_signals=1_000)
    return Purgatory("w", limits=limits, signals=RedisSignals(url, shards=SHARDS, timeout=timeout))


@asynccontextmanager
async def node_of_cluster(folder: Path) -> AsyncIterator[tuple[Any, Purgatory]]:
    """Yield a client of the only node of a cluster, and a purgatory that shares signals by it."""
    node = ValkeyServer(folder)
    try:
        client: Any = RedisCluster.from_url(node.start_as_cluster().url)
        async with client, worker(client) as here:
            yield client, here
    finally:
        node.close()


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


def entry_of(name: Idempotency, shard: int) -> str:
    """Return the key in Redis under which a log knows a name."""
    return f"{{purgatory:signals:{shard}}}:repeat:{name.hash}"


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
    """As long as the log of the key does; a home that has lost it is told again."""
    async with worker(url) as here:
        signals = here.shared_signals
        assert isinstance(signals, RedisSignals)
        client: Any = signals._server.client
        home = signals.shard_of(named("name").hash)
        key = next(key for key in KEYS if signals.shard_of(key) != home)
        name = named("name", key)
        first = await fired(here, "name", key)
        await signals.remember(name, [key], b"response")
        entries = [entry_of(name, shard) for shard in (signals.shard_of(key), home)]
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
    """Whatever the number of logs: the others do not know the name, or need no response.

    The home is told of the name by another call.
    """
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
            assert _calls(client) - before < 3 * fires + 10 * SHARDS


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
    async with node_of_cluster(tmp_path) as (client, here):
        name, first, other = elsewhere(here)
        signals = here.shared_signals
        assert isinstance(signals, RedisSignals)
        home = signals.shard_of(named(name).hash)
        entry = entry_of(named(name), home)

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


async def test_a_refusal_of_a_repeated_command_does_not_free_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client repeats a command without a reply: the first may have been done."""
    async with node_of_cluster(tmp_path) as (client, here):
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


async def test_a_fire_whose_log_is_away_is_repeated_once(tmp_path: Path) -> None:
    """Within its timeout, the home and the log together; the name is still that of the request."""
    servers = ClusterServers(tmp_path, random.Random(1))
    try:
        await servers.start()
        async with worker(servers.url, timeout=30) as here, worker(servers.url, timeout=1) as brief:
            name, first, other = elsewhere(here)
            signals = here.shared_signals
            assert isinstance(signals, RedisSignals)
            shard = signals.shard_of(first)
            # Its timeout may be over at its start, on a busy machine: it has to have read all once.
            await until(lambda: not brief.missing)
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


def _worker(server: ValkeyServer, **options: Any) -> Purgatory:
    return Purgatory("worker", signals=RedisSignals(server.url, shards=8, timeout=30, **options))


@pytest.mark.parametrize("ack", ["memory", "aof"])
async def test_a_batch_over_several_logs_is_appended_to_each(
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


def on_prefix(server: ValkeyServer, prefix: str, limits: Limits | None = None) -> Purgatory:
    signals = RedisSignals(server.url, prefix, timeout=PATIENCE_S / 4)
    return Purgatory(prefix, limits=limits, signals=signals)


def kept(client: Any, prefix: str) -> dict[bytes, Any]:
    """What is in the log of a prefix, without names and times, which are of each log."""
    tag = f"{{{prefix}:signals:0}}:".encode()
    found: dict[bytes, Any] = {}
    for name in client.scan_iter(tag + b"*"):
        kind = client.type(name)
        value: Any = None
        if kind == b"hash":
            value = {k: v for k, v in client.hgetall(name).items() if k != b"epochs"}
        elif kind == b"stream":
            value = [
                (offset, re.sub(rb" \d{13} ", b" now ", fields[b"e"]))
                for offset, fields in client.xrange(name)
            ]
        elif kind == b"list":
            value = client.lrange(name, 0, -1)
        elif kind == b"zset":
            value = client.zrange(name, 0, -1, withscores=True)
        if not name.startswith(tag + b"repeat"):
            found[name.removeprefix(tag)] = value
    return found


def channel(prefix: str) -> str:
    """Where the log of a prefix publishes its entries."""
    return f"{{{prefix}:signals:0}}:appended"


def messages(pubsub: Any) -> dict[str, list[bytes]]:
    """What was published so far, by prefix, without names and times."""
    prefixes = {channel(prefix).encode(): prefix for prefix in ("short", "long")}
    published: dict[str, list[bytes]] = {prefix: [] for prefix in prefixes.values()}
    pubsub.ping("end")
    while (message := pubsub.get_message(timeout=PATIENCE_S))["type"] != "pong":
        if message["type"] == "message":
            _, _, text = message["data"].partition(b" ")
            published[prefixes[message["channel"]]].append(re.sub(rb" \d{13} ", b" now ", text))
    return published


@pytest.mark.anyio
async def test_a_plain_fire_leaves_what_any_other_leaves(server: ValkeyServer) -> None:
    """A fire with an Idempotency-Key goes the long way."""
    limits = Limits(max_signals=30, max_signals_per_key=8)
    async with (
        on_prefix(server, "short", limits) as short,
        on_prefix(server, "long", limits) as long,
    ):
        with server.client() as client, client.pubsub() as pubsub:
            pubsub.subscribe(*map(channel, ("short", "long")))
            for number in range(120):
                # Some keys are fired once, some fill their history, and all of them the log.
                key = f"key:{number % 3 if number < 60 else number * 7 % 41}"
                name = Idempotency(owner="", name=str(number), fingerprint="")
                owner = (None, "alice", "bob")[number * number % 7 % 3] if number > 20 else None
                fired = await short.fire(key, number, owner=owner)
                (other,) = await long.fire_shared([(key, number)], idempotency=name, owner=owner)
                assert fired.seq == other.seq  # type: ignore[union-attr]
                assert fired.cursor.partition("-")[2] == other.cursor.partition("-")[2]  # type: ignore[union-attr]
                if number == 0:
                    # No value of a fire has this byte, at which Lua's format ends a text.
                    entries = [(EntryType.FIRED, key, b"\0" + b"1")]
                    name = Idempotency(owner="", name="bytes", fingerprint="")
                    await short.shared_signals.append(entries)  # type: ignore[union-attr]
                    await long.shared_signals.append(entries, idempotency=name)  # type: ignore[union-attr]
                if number % 17 == 0:
                    assert kept(client, "short") == kept(client, "long")
                    assert await short.cancel(key) == await long.cancel(key) == 0
            assert kept(client, "short") == kept(client, "long")
            published = messages(pubsub)
            assert len(published["short"]) > 120
            assert published["short"] == published["long"]
            calls = client.info("commandstats")
    # Nearly half of all look at the length of the log, and only the long way does.
    assert calls["cmdstat_xlen"]["calls"] < calls["cmdstat_xadd"]["calls"]


@pytest.mark.anyio
@pytest.mark.parametrize("is_all", [True, False], ids=["deleted", "cut"])
async def test_a_log_that_somebody_has_touched_is_begun_anew(
    server: ValkeyServer, *, is_all: bool
) -> None:
    """A deleted one with the next fire, and one that lacks entries when it is read."""
    async with on_prefix(server, "touched") as here:
        before = (await here.fire("key", 1)).cursor
        await here.fire("key", 2)
        with server.client() as client:
            log = "{touched:signals:0}:log"
            _ = client.delete(log) if is_all else client.xtrim(log, maxlen=1, approximate=False)
        (follower,) = here.shared_signals._followers  # type: ignore[union-attr]
        if not is_all:
            await follower.catch_up()
        fired = await here.fire("key", 3)
        assert fired.seq == 1
        assert fired.cursor.partition("-")[0] != before.partition("-")[0]
        await follower.catch_up()
        with pytest.raises(CursorExpiredError):
            await here.park("key", timeout=0, cursor=before)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "stored", [b"", b"x", b"= {", b"= x\xda", b"e 1", b"e x y z ", b"= {}\n\n", b"@x 1 9"]
)
async def test_a_forged_response_of_a_repeat_is_refused(
    server: ValkeyServer, stored: bytes
) -> None:
    """It is no JSON, or no response: the client is told to try again, or that it is another's."""
    signals = RedisSignals(server.url, timeout=PATIENCE_S / 4)
    purgatory, app = Purgatory(signals=signals), FastAPI()
    install(app, purgatory, authorize=ALLOW_ANYONE)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test") as http,
    ):
        headers = {"Idempotency-Key": "once"}
        path = "/purgatory/keys/k"
        assert (await http.post(path, json={"value": 1}, headers=headers)).status_code == 201
        with server.client() as client:
            [key] = client.keys("*repeat:*")
            fingerprint = client.get(key).partition(b" ")[0]
            client.set(key, fingerprint + b" " + stored)
        again = await http.post(path, json={"value": 1}, headers=headers)
        assert again.status_code == 503
        assert again.json()["type"] == "/purgatory/problems/signals-unavailable"
