"""Produce and fetch of a replicated log in virtual time: cases 31 and 32."""

import asyncio
from collections.abc import Callable

from examples.acks_all.config import BrokerConfig
from examples.acks_all.topic_partition import TopicPartition
from tests.cases import cases
from tests.unit.acks_all.broker import PATIENT, A, B, Broker, open_broker

NOWHERE = TopicPartition("nowhere", 0)


# Case 31: produce with acks=all.


async def test_a_produce_waits_for_every_replica_in_sync() -> None:
    """It is answered by the fetch of the last follower, and by none before."""
    async with open_broker() as broker:
        told = broker.produce()
        broker.follow(0, 1, 2)
        assert told.is_waiting
        broker.follow(1, 1)
        assert told.is_waiting
        assert broker.partition().high_watermark == 0
        broker.follow(1, 2)
        assert told.slugs == {A: "ok"}
        assert broker.partition().high_watermark == 1
        assert broker.purgatory.parked == 0


async def test_a_produce_waits_for_every_partition() -> None:
    """It has one answer, with one status a partition, when none is pending."""
    async with open_broker() as broker:
        told = broker.produce({A: ["1"], B: ["2", "3"], NOWHERE: ["4"]})
        broker.follow(1, 1, 2, name=A)
        broker.follow(1, 1, 2, name=B)
        assert told.is_waiting
        broker.follow(2, 1, 2, name=B)
        assert told.slugs == {A: "ok", B: "ok", NOWHERE: "unknown-partition"}


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


async def test_nothing_waits_that_need_not() -> None:
    """acks=1, a produce that failed everywhere, and one that is alone in the ISR."""
    alone = BrokerConfig(replica_ids=(0,), min_insync_replicas=1, topics={"a": 1})
    async with open_broker() as broker:
        assert broker.produce(acks_all=False).slugs == {A: "ok"}
        assert broker.produce({NOWHERE: ["1"]}).slugs == {NOWHERE: "unknown-partition"}
    async with open_broker(alone) as broker:
        assert broker.produce(timeout_ms=0).slugs == {A: "ok"}
        assert broker.purgatory.parked == 0


async def test_a_timeout_of_zero_is_due_at_once() -> None:
    """It is never told inside the call, and in the next turn at the latest."""
    async with open_broker() as broker:
        told = broker.produce(timeout_ms=0)
        assert told.is_waiting
        await asyncio.sleep(0.001)
        assert told.slugs == {A: "timed-out"}


async def test_many_produces_are_answered_in_order() -> None:
    """One fetch answers all that it covers, first come first told, and no other."""
    async with open_broker() as broker:
        told = [broker.produce() for _ in range(40)]
        order: list[int] = []
        for number, one in enumerate(told):
            one.operation._respond = lambda _, number=number: order.append(number)
        broker.follow(30, 1, 2)
        await asyncio.sleep(0)
        assert order == list(range(30))
        assert broker.purgatory.waiting(A.produce_key) == 10


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


async def test_a_fetch_has_what_there_is_at_max_wait() -> None:
    """At `max_wait_ms`, and not before."""
    async with open_broker(PATIENT) as broker:
        started_ms = broker.now_ms()
        told = broker.fetch({A: 0}, min_bytes=100, max_wait_ms=400)
        broker.produce({A: ["some"]})
        broker.follow(1, 1, 2)
        await asyncio.sleep(1)
        assert told.values == {A: ["some"]}
        assert told.at_ms == started_ms + 400


async def test_a_fetch_does_not_wait_for_nothing() -> None:
    """Without a wait, or with min_bytes=0, it has what there is."""
    async with open_broker() as broker:
        assert broker.fetch({A: 0}, max_wait_ms=0).values == {A: []}
        assert broker.fetch({A: 0}, min_bytes=0, max_wait_ms=500).values == {A: []}
        assert broker.purgatory.parked == 0


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


async def test_a_truncated_log_answers_whoever_was_beyond() -> None:
    """A follower that had more than is committed is told, and not left waiting."""
    async with open_broker() as broker:
        broker.produce({A: ["1", "2"]})
        follower = broker.fetch({A: 2}, replica_id=1, max_wait_ms=400)
        assert follower.is_waiting
        broker.manager.change_leader(A, 1, 1)
        assert follower.slugs == {A: "not-leader"}
        broker.manager.change_leader(A, 0, 2)
        assert broker.fetch({A: 2}, replica_id=1).slugs == {A: "offset-out-of-range"}
