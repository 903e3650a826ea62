"""The short way through the script of the log, which most fires take."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from purgatory import Limits, Purgatory
from purgatory.errors import CursorExpiredError
from purgatory.signals.redis import RedisSignals
from purgatory.signals.shared_signals import EntryType, Idempotency
from tests.patience import PATIENCE_S
from tests.valkey_server import ValkeyServer

pytestmark = pytest.mark.anyio


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    with ValkeyServer(tmp_path) as running:
        yield running


def worker(server: ValkeyServer, prefix: str, limits: Limits | None = None) -> Purgatory:
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


async def test_a_plain_fire_leaves_what_any_other_leaves(server: ValkeyServer) -> None:
    """A fire with an Idempotency-Key goes the long way."""
    limits = Limits(max_signals=30, max_signals_per_key=8)
    async with worker(server, "short", limits) as short, worker(server, "long", limits) as long:
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
                    await short.shared_signals.append_if(entries)  # type: ignore[union-attr]
                    await long.shared_signals.append_if(entries, idempotency=name)  # type: ignore[union-attr]
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


@pytest.mark.parametrize("is_all", [True, False], ids=["deleted", "cut"])
async def test_a_log_that_somebody_has_touched_is_begun_anew(
    server: ValkeyServer, *, is_all: bool
) -> None:
    """A deleted one with the next fire, and one that lacks entries when it is read."""
    async with worker(server, "touched") as here:
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
