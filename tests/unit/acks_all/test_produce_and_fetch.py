"""Produce and fetch of a replicated log in virtual time: cases 31 and 32."""

import asyncio
from collections.abc import Callable

from tests.cases import cases
from tests.unit.acks_all.broker import PATIENT, A, B, Broker, open_broker

# Case 31: produce with acks=all.


async def test_what_is_pending_at_the_timeout_has_timed_out() -> None:
    """At the timeout, and not before, the pending partitions are as they were at the start."""
    async with open_broker(PATIENT) as broker:
        started_ms = broker.now_ms()
        told = broker.produce({A: ["1"], B: ["2"]}, timeout_ms=250)
        broker.follow(1, 1, 2, name=A)
        await asyncio.sleep(0.249)
        assert told.is_waiting
        await asyncio.sleep(0.001)
        assert told.slugs == {A: "ok", B: "timed-out"}
        assert told.at_ms == started_ms + 250
        broker.follow(1, 1, 2, name=B)
        assert told.slugs == {A: "ok", B: "timed-out"}


async def test_a_partition_that_fails_or_loses_its_leader_settles() -> None:
    """The others are waited for all the same, and each has its own status."""
    async with open_broker() as broker:
        told = broker.produce({A: ["1"], B: ["2"]})
        broker.manager.fail_storage(A)
        assert told.is_waiting
        broker.manager.change_leader(B, 1, 1)
        assert told.slugs == {A: "storage-failed", B: "not-leader"}


# Case 32: fetch.


async def test_a_fetch_waits_for_min_bytes_over_its_partitions() -> None:
    """Bytes count that are committed, of all partitions together."""
    async with open_broker() as broker:
        told = broker.fetch({A: 0, B: 0}, min_bytes=10, max_wait_ms=60_000)
        broker.produce({A: ["12345"], B: ["6789"]})
        broker.follow(1, 1, 2, name=A)
        broker.follow(1, 1, 2, name=B)
        assert told.is_waiting
        broker.produce({B: ["0"]})
        assert told.is_waiting
        broker.follow(2, 1, 2, name=B)
        assert told.values == {A: ["12345"], B: ["6789", "0"]}


@cases(
    "happen, slug",
    [
        (lambda broker: broker.manager.fail_storage(A), "storage-failed"),
        (lambda broker: broker.manager.change_leader(A, 1, 1), "not-leader"),
        (lambda broker: broker.manager.change_leader(A, None, 1), "not-leader"),
        (lambda broker: broker.manager.change_leader(A, 0, 1), "fenced-leader-epoch"),
    ],
)
async def test_a_fetch_is_told_of_a_partition_that_fails(
    happen: Callable[[Broker], object], slug: str
) -> None:
    """At once, and with what the other partitions have."""
    async with open_broker() as broker:
        broker.produce({B: ["other"]})
        broker.follow(1, 1, 2, name=B)
        told = broker.fetch({A: 0, B: 0}, min_bytes=500, max_wait_ms=60_000, leader_epoch=0)
        assert told.is_waiting
        happen(broker)
        assert told.slugs == {A: slug, B: "ok"}
        assert told.values[B] == ["other"]


async def test_consumers_read_what_is_committed_and_followers_all() -> None:
    """Consumers up to the high watermark, followers up to the end of the log."""
    async with open_broker() as broker:
        consumer = broker.fetch({A: 0}, max_wait_ms=60_000)
        follower = broker.fetch({A: 0}, replica_id=1, max_wait_ms=400)
        broker.produce({A: ["new"]})
        assert follower.values == {A: ["new"]}
        assert consumer.is_waiting
        broker.follow(1, 1, 2)
        assert consumer.values == {A: ["new"]}


async def test_a_large_record_goes_out_alone() -> None:
    """max_bytes bounds an answer, but nobody is stuck before a record that is larger."""
    async with open_broker() as broker:
        broker.produce({A: ["x" * 50, "y"], B: ["z"]}, acks_all=False)
        for name, count in ((A, 2), (B, 1)):
            broker.follow(count, 1, 2, name=name)
        assert broker.fetch({A: 0, B: 0}, max_bytes=10).values == {A: ["x" * 50], B: []}
        assert broker.fetch({A: 0}, partition_bytes=10).values == {A: ["x" * 50]}
        assert broker.fetch({A: 1, B: 0}, max_bytes=2).values == {A: ["y"], B: ["z"]}
        # More than it may have is nothing to wait for.
        told = broker.fetch({A: 0}, min_bytes=60, max_bytes=50, max_wait_ms=400)
        assert told.values == {A: ["x" * 50]}
