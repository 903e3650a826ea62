"""The trace context of a fire travels with its signal through a real server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from purgatory import Limits, Purgatory
from purgatory.event_loop.parking import MAX_UNSLICED
from purgatory.signals.redis import RedisSignals
from purgatory.tracing import PurgatoryTracing
from tests.contract.test_redis_signals import until
from tests.kept_spans import Provider, ids
from tests.patience import PATIENCE_S
from tests.valkey_server import ValkeyServer

pytestmark = pytest.mark.anyio

# Keys that look like the header of an entry.
KEYS = ["k", "f" * 50, "@ab", "@" + "a" * 62, "1 2 3", "é"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    with ValkeyServer(tmp_path) as running:
        yield running


@asynccontextmanager
async def traced(
    url: str, provider: Provider | None, limits: Limits | None = None, shards: int = 1
) -> AsyncIterator[Purgatory]:
    """A purgatory of one process, traced by `provider` if there is one."""
    signals = RedisSignals(url, shards=shards, timeout=PATIENCE_S / 4)
    purgatory = Purgatory(limits=limits, signals=signals)
    if provider is not None:
        PurgatoryTracing(purgatory, tracer_provider=provider)
    async with purgatory:
        yield purgatory


async def entries(url: str) -> list[bytes]:
    """What the log has, as it is stored."""
    async with Redis.from_url(url) as client:
        found: Any = await client.xrange("{purgatory:signals:0}:log")
    return [fields[b"e"] for _, fields in found]


@pytest.mark.parametrize("count", [1, MAX_UNSLICED + 1], ids=["one", "in-slices"])
@pytest.mark.parametrize("shards", [1, 4])
async def test_a_wait_is_linked_to_the_fire_of_another_process(
    server: ValkeyServer, count: int, shards: int
) -> None:
    """Whoever fires, and however many wait: each has one link, to the span of the fire."""
    provider, fires = Provider(), Provider()
    async with (
        traced(server.url, provider, shards=shards) as here,
        traced(server.url, fires, shards=shards) as there,
    ):
        waits = [asyncio.ensure_future(here.park("k", timeout=PATIENCE_S)) for _ in range(count)]
        await until(lambda: here.parked == count)
        with fires.start_as_current_span("payment") as payment:
            await there.fire("k", 1)
        assert {outcome.value for outcome in await asyncio.gather(*waits)} == {1}
        spans = provider.named("purgatory.wait")
        assert len(spans) == count
        expected = [ids(payment.get_span_context())]
        assert all([ids(link) for link in span.links] == expected for span in spans)


async def test_the_fires_of_a_batch_are_linked_in_their_own_process_too(
    server: ValkeyServer,
) -> None:
    """Whether the reply or the message of an entry is here first."""
    provider = Provider()
    async with traced(server.url, provider, shards=4) as here:
        waits = [asyncio.ensure_future(here.park(key, timeout=PATIENCE_S)) for key in KEYS]
        await until(lambda: here.parked == len(KEYS))
        with provider.start_as_current_span("batch") as batch:
            await here.fire_shared([(key, 1) for key in KEYS])
        await asyncio.gather(*waits)
        expected = [ids(batch.get_span_context())]
        for span in provider.named("purgatory.wait"):
            assert [ids(link) for link in span.links] == expected


async def test_a_fire_that_is_not_traced_is_linked_to_nothing(server: ValkeyServer) -> None:
    """Not to what was current where the process was opened, or where it had the log read."""
    provider = Provider()
    with provider.start_as_current_span("start"):
        async with traced(server.url, provider) as here, traced(server.url, None) as there:
            with provider.start_as_current_span("request"):
                wait = asyncio.ensure_future(here.park("k", timeout=PATIENCE_S))
            await until(lambda: here.parked == 1)
            await there.fire("k", 1)
            assert (await wait).value == 1
    [span] = provider.named("purgatory.wait")
    assert span.has_ended and not span.links


async def test_who_does_not_trace_sends_and_stores_not_a_byte_more(server: ValkeyServer) -> None:
    """Without tracing, outside any span, and where the span is not sampled."""
    async with traced(server.url, None) as here, traced(server.url, Provider()) as there:
        await here.fire("k", 1)
        await there.fire("k", 1)
        await here.fire("k", 1, owner="bob")
    pattern = rb"f\d \d{13} \d 1(@[0-9a-f]{12})? k1"
    stored = await entries(server.url)
    assert len(stored) == 3 and all(re.fullmatch(pattern, entry) for entry in stored)


async def test_a_worker_from_before_there_were_trace_contexts_reads_traced_entries(
    server: ValkeyServer,
) -> None:
    """Its script finds keys by this pattern, and fails otherwise, also fires of its own."""
    provider = Provider()
    async with traced(server.url, provider) as here:
        with provider.start_as_current_span("payment"):
            await here.fire("k", 1)
            await here.fire("k", 1, owner="bob")
    stored = await entries(server.url)
    assert len(stored) == 2
    assert all(re.fullmatch(rb"f\d \d+ \d+ 1@?[0-9a-f]* k1", entry) for entry in stored)


async def test_what_another_process_has_stored_does_no_harm(server: ValkeyServer) -> None:
    """A trace context that is none is no link; one where nobody traces is passed over."""
    provider = Provider()
    async with traced(server.url, provider) as here, traced(server.url, None) as there:
        waits = [
            asyncio.ensure_future(each.park("k", timeout=PATIENCE_S)) for each in (here, there)
        ]
        await until(lambda: here.parked == there.parked == 1)
        async with Redis.from_url(server.url) as client:
            head = b"%s 1 3:" % here.cursor("k").partition("-")[0].encode()
            entry = b"f1 1790000000000 0 1@%s k7" % (b"z" * 50)
            await client.publish(
                "{purgatory:signals:0}:appended", head[:-2] + b"%d:%s" % (len(entry), entry)
            )
        assert [outcome.value for outcome in await asyncio.gather(*waits)] == [7, 7]
    [wait] = provider.named("purgatory.wait")
    assert wait.has_ended and not wait.links


@pytest.mark.parametrize("owner", [None, "bob"])
async def test_traced_signals_are_kept_and_trimmed_as_others(
    server: ValkeyServer, owner: str | None
) -> None:
    """By key, by number and by owner, whatever the key is called."""
    limits = Limits(max_signals=40, max_signals_per_key=8)
    provider = Provider()
    async with traced(server.url, provider, limits) as here:
        await here.fire("alice", "kept", owner="alice")
        since = here.cursor("other")
        with provider.start_as_current_span("load"):
            for number in range(20):
                for key in KEYS:
                    await here.fire(key, number, owner=owner)
            await here.fire("dropped", 1, owner=owner)
            await here.cancel("dropped")
        async with traced(server.url, None, limits) as later:
            for each in (here, later):
                assert (await each.park("alice", timeout=0, cursor="0")).value == "kept"
                assert each.statistics().signals.signals <= 40
                for key in KEYS:
                    kept = each.signals.read(key, each.signals.earliest(key), 100)
                    values = [each.signals.value(signal) for signal in kept]
                    assert values == list(range(20))[-len(values) :]
            assert since != later.cursor("other")
    traces = [len(entry.split(b" ", 4)[3]) > 50 for entry in await entries(server.url)]
    assert any(traces) and not all(traces)
