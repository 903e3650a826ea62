"""The replicated log in virtual time: cases 31 and 32, the ISR, leaders, and every refusal."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.responses import Response

from examples.acks_all.app import create_app
from examples.acks_all.config import BrokerConfig
from examples.acks_all.errors import BrokerBusy, BrokerClosing, BrokerError, FencedLeaderEpoch
from examples.acks_all.fetch_request import FetchedPartition, FetchPosition, FetchRequest
from examples.acks_all.log import Log
from examples.acks_all.partition import Partition
from examples.acks_all.problems import KINDS, problem_response
from examples.acks_all.produce_status import ProduceStatus
from examples.acks_all.replica import Replica
from examples.acks_all.replica_manager import ReplicaManager
from examples.acks_all.topic_partition import TopicPartition
from purgatory import Limits, Purgatory
from purgatory.fastapi import DelayedResponse
from purgatory.testing import AutojumpEventLoop, MockClock

A = TopicPartition("a", 0)
B = TopicPartition("a", 1)
NOWHERE = TopicPartition("nowhere", 0)

LAG_MS = 1000
CONFIG = BrokerConfig(
    topics={"a": 2},
    replica_lag_ms=LAG_MS,
    max_record_bytes=100,
    max_log_bytes=1000,
    max_log_records=50,
)
# No follower falls out of the ISR.
PATIENT = BrokerConfig(topics={"a": 2}, replica_lag_ms=10**9)


@dataclass
class Told:
    """What one request was told, and when."""

    clock: MockClock
    answers: list[Any] = field(default_factory=list)
    at_ms: int = -1
    operation: Any = None

    def __call__(self, answer: Any) -> None:
        # As it is now: a status that changed after the answer would go unseen.
        self.answers.append({name: self._as_told(result) for name, result in answer.items()})
        self.at_ms = self.clock.now_ns() // 1_000_000

    @property
    def is_waiting(self) -> bool:
        """True iff nothing was told yet; more than one answer is an error."""
        assert len(self.answers) <= 1
        return not self.answers

    @property
    def slugs(self) -> dict[TopicPartition, str]:
        """The outcome of each partition: "ok", or the kind of problem."""
        assert not self.is_waiting
        return {
            name: "ok" if result[0] is None else result[0]
            for name, result in self.answers[0].items()
        }

    @property
    def values(self) -> dict[TopicPartition, list[str]]:
        """What a fetch has read."""
        assert not self.is_waiting
        return {name: result[1] for name, result in self.answers[0].items()}

    @staticmethod
    def _as_told(result: ProduceStatus | FetchedPartition) -> tuple[str | None, list[str]]:
        slug = None if result.error is None else result.error.slug
        records = result.records if isinstance(result, FetchedPartition) else ()
        return slug, [record.value for record in records]


class Broker:
    """A replica manager, and the requests that it gets."""

    def __init__(self, purgatory: Purgatory, config: BrokerConfig) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, AutojumpEventLoop)
        self.clock = loop.clock
        self.purgatory = purgatory
        self.manager = ReplicaManager(purgatory, config)

    def now_ms(self) -> int:
        return self.clock.now_ns() // 1_000_000

    def produce(
        self,
        batches: Mapping[TopicPartition, Sequence[str]] | None = None,
        *,
        timeout_ms: int = 30_000,
        acks_all: bool = True,
    ) -> Told:
        told = Told(self.clock)
        told.operation = self.manager.produce(
            {A: ["value"]} if batches is None else batches,
            acks_all=acks_all,
            timeout_ms=timeout_ms,
            respond=told,
        )
        return told

    def fetch(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        replica_id: int | None = None,
        min_bytes: int = 1,
        max_bytes: int = 1000,
        partition_bytes: int = 1000,
        max_wait_ms: int = 0,
        leader_epoch: int | None = None,
    ) -> Told:
        told = Told(self.clock)
        request = FetchRequest(
            positions={
                name: FetchPosition(offset, partition_bytes, leader_epoch)
                for name, offset in positions.items()
            },
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            max_wait_ms=max_wait_ms,
            replica_id=replica_id,
        )
        told.operation = self.manager.fetch(request, respond=told)
        return told

    def follow(self, offset: int, *replica_ids: int, name: TopicPartition = A) -> None:
        """Let followers say that they have everything before `offset`."""
        for replica_id in replica_ids:
            self.fetch({name: offset}, replica_id=replica_id)

    def partition(self, name: TopicPartition = A) -> Partition:
        return self.manager.partition(name)


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Run on a loop whose time jumps."""
    return "asyncio", {"loop_factory": AutojumpEventLoop}


@asynccontextmanager
async def open_purgatory(limits: Limits | None = None) -> AsyncIterator[Purgatory]:
    """Open a purgatory in which nothing is left in the end."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, AutojumpEventLoop)
    purgatory = Purgatory(clock=loop.clock, limits=limits)
    async with purgatory:
        yield purgatory
    left = purgatory.statistics()
    assert (left.parked, left.watched, left.keys, left.timers) == (0, 0, 0, 0)


@asynccontextmanager
async def open_broker(
    config: BrokerConfig = CONFIG, limits: Limits | None = None
) -> AsyncIterator[Broker]:
    """Open a broker that leaves nothing behind."""
    async with open_purgatory(limits) as purgatory:
        yield Broker(purgatory, config)


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


@pytest.mark.parametrize(
    ("happen", "slug"),
    [
        (lambda broker: broker.manager.fail_storage(A), "storage-failed"),
        (lambda broker: broker.manager.change_leader(A, 1, 1), "not-leader"),
        (lambda broker: broker.manager.change_leader(A, None, 1), "not-leader"),
        (lambda broker: broker.manager.change_leader(A, 0, 1), "fenced-leader-epoch"),
    ],
    ids=["storage fails", "another leader", "no leader", "another epoch"],
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


async def test_a_follower_waits_for_half_the_lag_at_most() -> None:
    """So one that lives is heard of before it would fall out of the ISR."""
    async with open_broker() as broker:
        started_ms = broker.now_ms()
        told = broker.fetch({A: 0}, replica_id=1, max_wait_ms=60_000)
        await asyncio.sleep(LAG_MS / 1000)
        assert told.at_ms == started_ms + LAG_MS // 2


# The ISR.


async def test_a_follower_that_stops_falls_out_and_completes_produces() -> None:
    """`replica_lag_ms` after it had everything; whoever waits for it is answered then."""
    async with open_broker() as broker:
        broker.follow(0, 1, 2)
        caught_up_ms = broker.now_ms()
        await asyncio.sleep(0.3)
        told = broker.produce()
        broker.follow(1, 1)
        assert broker.partition().isr == {0, 1, 2}
        await asyncio.sleep(2)
        assert told.slugs == {A: "ok"}
        assert told.at_ms == caught_up_ms + LAG_MS
        assert broker.partition().isr == {0, 1}
        assert broker.purgatory.parked == 0


async def test_a_follower_that_has_everything_does_not_fall_out() -> None:
    """However long nothing happens; and the first append that it does not fetch is its end."""
    async with open_broker() as broker:
        broker.follow(0, 1, 2)
        await asyncio.sleep(100)
        assert broker.partition().isr == {0, 1, 2}
        told = broker.produce()
        broker.follow(1, 1)
        await asyncio.sleep(0.001)
        assert told.slugs == {A: "ok"}
        assert broker.partition().isr == {0, 1}


async def test_a_follower_that_keeps_up_with_a_growing_log_stays() -> None:
    """It is always behind, but never for long: each fetch has what was there at the last."""
    async with open_broker() as broker:
        for offset in range(30):
            broker.produce(acks_all=False)
            # What it has is what there was before this append.
            broker.follow(offset, 1, 2)
            await asyncio.sleep(0.2)
        assert broker.partition().isr == {0, 1, 2}
        assert broker.partition().high_watermark == 29


async def test_a_follower_that_falls_behind_a_growing_log_falls_out() -> None:
    """Fetching is not enough, if it never has what was there at its last fetch."""
    async with open_broker() as broker:
        for offset in range(30):
            broker.produce(acks_all=False)
            broker.follow(offset, 1)
            broker.follow(offset // 2, 2)
            await asyncio.sleep(0.2)
        assert broker.partition().isr == {0, 1}


async def test_followers_that_stop_behind_a_grown_log_fall_out_in_time() -> None:
    """Also after they were watched for longer than the lag, and nothing else happens."""
    async with open_broker() as broker:
        for offset in range(8):
            broker.produce(acks_all=False)
            broker.follow(offset, 1, 2)
            last_fetch_ms = broker.now_ms()
            await asyncio.sleep(0.2)
        told = broker.produce()
        await asyncio.sleep(3)
        # What they had at the last fetch was all that there was at the fetch before it.
        assert told.at_ms - (last_fetch_ms - 200 + LAG_MS) in (0, 1)
        assert broker.partition().isr == {0}


def test_a_replica_has_caught_up_as_of_its_last_fetch() -> None:
    """If it has what was the end of the log then; now, if it has what is the end now."""
    replica = Replica(1, now_ms=0)
    replica.fetch(0, 10, now_ms=100)
    assert replica.last_caught_up_ms == 0
    replica.fetch(10, 20, now_ms=200)
    assert replica.last_caught_up_ms == 100
    replica.fetch(19, 20, now_ms=300)
    assert replica.last_caught_up_ms == 100
    replica.fetch(20, 20, now_ms=400)
    assert replica.last_caught_up_ms == 400


async def test_too_few_in_sync_fail_who_waits_and_refuse_who_comes() -> None:
    """NOT_ENOUGH_REPLICAS_AFTER_APPEND for the one that was appended, then NOT_ENOUGH_REPLICAS."""
    async with open_broker() as broker:
        told = broker.produce()
        await asyncio.sleep(2 * LAG_MS / 1000)
        assert told.slugs == {A: "not-enough-replicas-after-append"}
        assert broker.partition().isr == {0}
        assert broker.produce().slugs == {A: "not-enough-replicas"}
        assert broker.partition().log.end_offset == 1
        assert broker.produce(acks_all=False).slugs == {A: "ok"}
        assert broker.partition().high_watermark == 2


async def test_a_follower_returns_when_it_has_what_is_committed() -> None:
    """And is watched from then on: it falls out again if it stays behind."""
    async with open_broker() as broker:
        broker.produce(acks_all=False)
        await asyncio.sleep(2 * LAG_MS / 1000)
        broker.produce(acks_all=False)
        broker.follow(1, 1)
        assert broker.partition().isr == {0}
        broker.follow(2, 1)
        assert broker.partition().isr == {0, 1}
        told = broker.produce()
        broker.follow(3, 1)
        assert told.slugs == {A: "ok"}
        broker.produce(acks_all=False)
        await asyncio.sleep(2 * LAG_MS / 1000)
        assert broker.partition().isr == {0}


async def test_a_follower_that_joins_behind_is_watched() -> None:
    """The high watermark waits for it, though not for ever."""
    async with open_broker(BrokerConfig(topics={"a": 1}, replica_lag_ms=LAG_MS)) as broker:
        broker.follow(0, 1)
        told = broker.produce(timeout_ms=60_000)
        await asyncio.sleep(LAG_MS / 1000)
        assert broker.partition().isr == {0}
        assert told.slugs == {A: "not-enough-replicas-after-append"}
        broker.produce(acks_all=False)
        broker.follow(2, 1)
        assert broker.partition().isr == {0, 1}
        broker.produce(acks_all=False)
        # At the high watermark, and not at the end.
        broker.follow(2, 2)
        assert broker.partition().isr == {0, 1, 2}
        broker.follow(3, 1)
        assert broker.partition().high_watermark == 2
        await asyncio.sleep(2 * LAG_MS / 1000)
        assert broker.partition().isr == {0, 1}
        assert broker.partition().high_watermark == 3


# Leaders.


async def test_a_leader_that_goes_takes_along_what_is_not_committed() -> None:
    """What was refused with "not-leader" is not there when the leader returns."""
    async with open_broker() as broker:
        committed = broker.produce({A: ["kept"]})
        broker.follow(1, 1, 2)
        lost = broker.produce({A: ["lost"]})
        broker.follow(2, 1)
        broker.manager.change_leader(A, 2, 1)
        assert (committed.slugs, lost.slugs) == ({A: "ok"}, {A: "not-leader"})
        assert broker.produce().slugs == {A: "not-leader"}
        broker.manager.change_leader(A, 0, 2)
        assert broker.fetch({A: 0}).values == {A: ["kept"]}
        assert broker.partition().epoch_start_offset == 1


async def test_a_new_epoch_waits_for_each_follower_to_fetch_in_it() -> None:
    """What followers had in an old epoch counts for nothing in a new one."""
    async with open_broker() as broker:
        broker.follow(0, 1, 2)
        broker.manager.change_leader(A, 0, 1)
        told = broker.produce()
        assert broker.fetch({A: 1}, replica_id=1, leader_epoch=0).slugs == {
            A: "fenced-leader-epoch"
        }
        broker.fetch({A: 1}, replica_id=1, leader_epoch=1)
        assert told.is_waiting
        broker.fetch({A: 1}, replica_id=2, leader_epoch=1)
        assert told.slugs == {A: "ok"}


async def test_what_a_follower_had_of_a_lost_epoch_acknowledges_nothing() -> None:
    """It was truncated here, and something else has been appended at the same offset."""
    async with open_broker() as broker:
        broker.produce({A: ["lost"]})
        broker.follow(1, 1)
        broker.manager.change_leader(A, None, 1)
        broker.manager.change_leader(A, 0, 2)
        told = broker.produce({A: ["new"]})
        broker.follow(1, 2)
        assert told.is_waiting
        broker.follow(1, 1)
        assert told.slugs == {A: "ok"}


async def test_who_waits_in_turn_is_not_taken_for_another() -> None:
    """A record of a later epoch at the same offset acknowledges nothing of an earlier one."""
    async with open_broker(PATIENT) as broker:
        told = broker.produce(acks_all=True)
        status = told.operation.statuses[A]
        broker.partition().change_leader(1, 1, 0)
        broker.partition().change_leader(0, 2, 0)
        broker.partition().append(["another"], acks_all=True)
        broker.partition().update_follower(1, 1, 0)
        broker.partition().update_follower(2, 1, 0)
        with pytest.raises(BrokerError, match="does not lead"):
            broker.manager.has_replicated(A, status)


async def test_an_old_epoch_changes_nothing() -> None:
    """The controller's words may come late."""
    async with open_broker() as broker:
        broker.manager.change_leader(A, 1, 5)
        with pytest.raises(FencedLeaderEpoch):
            broker.manager.change_leader(A, 0, 4)
        assert (broker.partition().leader, broker.partition().leader_epoch) == (1, 5)


# Bounds, cancelling and draining.


async def test_a_full_purgatory_refuses_before_it_appends() -> None:
    """Who finds no place to wait leaves nothing in the log; who need not wait is served."""
    async with open_broker(limits=Limits(max_parked=2)) as broker:
        told = broker.produce()  # and the timer that watches the followers
        with pytest.raises(BrokerBusy):
            broker.produce()
        with pytest.raises(BrokerBusy):
            broker.fetch({A: 0}, max_wait_ms=100)
        assert broker.produce({B: ["1"]}, acks_all=False).slugs == {B: "broker-busy"}
        assert broker.partition(A).log.end_offset == 1
        assert broker.partition(B).log.end_offset == 0
        broker.follow(1, 1, 2)
        assert told.slugs == {A: "ok"}
        assert broker.fetch({A: 0}, max_wait_ms=100).values == {A: ["value"]}


async def test_draining_answers_everybody() -> None:
    """A produce is not acknowledged, a fetch has what there is, and who comes later is refused."""
    async with open_broker() as broker:
        produce = broker.produce({A: ["1"], B: ["2"]})
        broker.follow(1, 1, 2, name=A)
        fetch = broker.fetch({A: 0}, min_bytes=500, max_wait_ms=60_000)
        await broker.purgatory.drain()
        assert produce.slugs == {A: "ok", B: "not-acknowledged"}
        assert fetch.values == {A: ["1"]}
        with pytest.raises(BrokerClosing):
            broker.produce()
        with pytest.raises(BrokerClosing):
            broker.fetch({A: 1}, max_wait_ms=100)
        assert broker.fetch({A: 0}, max_wait_ms=100).values == {A: ["1"]}


async def test_an_operator_may_end_the_waits_of_a_partition() -> None:
    """Nobody is left without an answer."""
    async with open_broker() as broker:
        produce, fetch = broker.produce(), broker.fetch({A: 0}, max_wait_ms=60_000)
        assert await broker.purgatory.cancel(A.produce_key) == 1
        assert await broker.purgatory.cancel(A.fetch_key) == 1
        assert (produce.slugs, fetch.values) == ({A: "not-acknowledged"}, {A: []})


async def test_old_records_make_way_once_they_are_committed() -> None:
    """The log is bounded, in bytes and in records, and what is not committed is kept."""
    async with open_broker() as broker:
        for _ in range(10):
            broker.produce({A: ["x" * 100]}, acks_all=False)
        assert broker.produce({A: ["y"]}, acks_all=False).slugs == {A: "log-full"}
        broker.follow(10, 1, 2)
        broker.produce({A: ["y" * 100] * 5}, acks_all=False)
        broker.follow(15, 1, 2)
        assert (broker.partition().log.start_offset, broker.partition().log.size) == (5, 1000)
        assert broker.fetch({A: 4}).slugs == {A: "offset-out-of-range"}
        assert broker.produce({B: ["z"] * 51}, acks_all=False).slugs == {B: "log-full"}


def test_a_log_measures_what_it_reads() -> None:
    """Positions hold through appends, truncation and trimming."""
    log = Log()
    log.append(["a", "bb", "ccc"], 0)
    log.truncate(2)
    assert log.append(["dddd"], 1) == 2
    assert (log.size, log.bytes_between(1, 3)) == (7, 6)
    assert (log.holds(2, 0), log.holds(2, 1), log.holds(3, 1)) == (False, True, False)
    log.trim(2, max_bytes=4, max_records=10)
    assert (log.start_offset, log.size, log.holds(0, 0)) == (2, 4, True)
    log.trim(3, max_bytes=0, max_records=10)
    assert (log.start_offset, log.end_offset, log.size) == (3, 3, 0)


@pytest.mark.parametrize(
    ("settings_", "complaint"),
    [
        ({"broker_id": 7}, "broker_id 7"),
        ({"min_insync_replicas": 4}, "give 1 to 3"),
        ({"min_insync_replicas": 0}, "give 1 to 3"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    settings_: dict[str, int], complaint: str
) -> None:
    """With a sentence that says what is allowed."""
    with pytest.raises(ValueError, match=complaint):
        BrokerConfig(**settings_)  # type: ignore[arg-type] # integers all of them


async def test_an_answer_that_has_to_wait_is_finished_by_a_task() -> None:
    """Where `send` waits, whoever completed the operation does not."""
    async with open_broker() as broker:
        sent, may_send, begun = [], asyncio.Event(), asyncio.Event()

        async def receive() -> dict[str, str]:
            begun.set()
            await asyncio.sleep(10)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            await may_send.wait()
            sent.append(message["type"])

        response = DelayedResponse(
            lambda respond: broker.manager.produce(
                {A: ["x"]}, acks_all=True, timeout_ms=5000, respond=lambda _: respond(Response())
            )
        )
        answering = asyncio.ensure_future(response({"type": "http"}, receive, send))
        await begun.wait()
        broker.follow(1, 1, 2)
        await asyncio.sleep(0.01)
        assert sent == []
        may_send.set()
        await answering
        assert sent == ["http.response.start", "http.response.body"]


# The law.

STEPS = st.one_of(
    st.tuples(st.just("produce"), st.integers(1, 3)),
    st.tuples(st.just("fetch 1"), st.integers(0, 5)),
    st.tuples(st.just("fetch 2"), st.integers(0, 5)),
    st.tuples(st.just("wait"), st.integers(1, 800)),
    st.tuples(st.just("lead"), st.integers(0, 1)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_what_is_acknowledged_is_everywhere_and_stays(steps: list[tuple[str, int]]) -> None:
    """Whatever happens: each produce has one answer, by its timeout; none before its time."""
    with asyncio.Runner(loop_factory=AutojumpEventLoop) as runner:
        runner.run(_take(steps))


async def _take(steps: list[tuple[str, int]]) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, AutojumpEventLoop)
    async with Purgatory(clock=loop.clock) as purgatory:
        broker = Broker(purgatory, CONFIG)
        acknowledged: dict[int, str] = {}
        told = []
        epoch = 0
        for number, (step, size) in enumerate(steps):
            high_watermark = broker.partition().high_watermark
            if step == "produce":
                told.append(_produce(broker, f"{number}", size, acknowledged))
            elif step == "wait":
                await asyncio.sleep(size / 1000)
            elif step == "lead":
                epoch += 1
                broker.manager.change_leader(A, size, epoch)
            else:
                replica_id = int(step[-1])
                end_offset = broker.partition().replica(replica_id).log_end_offset
                broker.follow(max(0, end_offset) + size, replica_id)
            assert broker.partition().high_watermark >= high_watermark
            _check_law(broker.partition(), acknowledged)
        await asyncio.sleep(6)
        assert not any(one.is_waiting for one in told)
        assert purgatory.parked == 0


def _produce(broker: Broker, value: str, count: int, acknowledged: dict[int, str]) -> Told:
    told = Told(broker.clock)

    def respond(answer: Mapping[TopicPartition, ProduceStatus]) -> None:
        told(answer)
        status = answer[A]
        if status.error is None:
            assert status.base_offset is not None
            assert status.end_offset is not None
            acknowledged.update(dict.fromkeys(range(status.base_offset, status.end_offset), value))
            _check_law(broker.partition(), acknowledged)
            assert len(broker.partition().isr) >= CONFIG.min_insync_replicas

    broker.manager.produce({A: [value] * count}, acks_all=True, timeout_ms=5000, respond=respond)
    return told


def _check_law(partition: Partition, acknowledged: Mapping[int, str]) -> None:
    log = partition.log
    assert log.start_offset <= partition.high_watermark <= log.end_offset
    assert all(offset < partition.high_watermark for offset in acknowledged)
    if log.start_offset < partition.high_watermark:
        read = partition.read(log.start_offset, 10**6, to_follower=False, at_least_one=True)
        committed = {record.offset: record.value for record in read}
        assert all(committed[offset] == value for offset, value in acknowledged.items())


# Over HTTP: every refusal.


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    """A client of a broker without a socket."""
    async with open_purgatory(Limits(max_parked=4)) as purgatory:
        app = create_app(CONFIG, purgatory=purgatory)
        app.state.purgatory = purgatory
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://broker") as client:
            client.app = app  # type: ignore[attr-defined] # for the tests below
            yield client


def _produce_body(
    value: str = "x", *, topic: str = "a", acks: object = "all", timeout_ms: int = 100
) -> dict[str, object]:
    partition = {"topic": topic, "partition": 0, "records": [value]}
    return {"acks": acks, "timeout_ms": timeout_ms, "partitions": [partition]}


def _fetch_body(offset: int = 0, **more: object) -> dict[str, object]:
    entry: dict[str, object] = {"topic": "a", "partition": 0, "offset": offset}
    if "leader_epoch" in more:
        entry["leader_epoch"] = more.pop("leader_epoch")
    return {"max_wait_ms": 0, "partitions": [entry], **more}


async def _lose_leader(http: httpx.AsyncClient) -> None:
    body = {"leader": 1, "leader_epoch": 1}
    response = await http.put("/topics/a/partitions/0/leader", json=body)
    assert response.status_code == 200


async def _lose_storage(http: httpx.AsyncClient) -> None:
    response = await http.post("/topics/a/partitions/0/storage-failure")
    assert response.json()["is_offline"]


async def _lose_followers(http: httpx.AsyncClient) -> None:
    response = await http.post("/produce", json=_produce_body(timeout_ms=5000))
    assert response.json()["type"] == "/problems/not-enough-replicas-after-append"


async def _fill_log(http: httpx.AsyncClient) -> None:
    for _ in range(10):
        response = await http.post("/produce", json=_produce_body("x" * 100, acks=1))
        assert response.status_code == 200


async def _fill_purgatory(http: httpx.AsyncClient) -> None:
    manager: ReplicaManager = http.app.state.replica_manager  # type: ignore[attr-defined] # above
    for _ in range(3):
        manager.produce({A: ["x"]}, acks_all=True, timeout_ms=1, respond=lambda _: None)
    assert manager.purgatory.parked == 4


async def _drain(http: httpx.AsyncClient) -> None:
    await http.app.state.purgatory.drain()  # type: ignore[attr-defined] # above


async def _nothing(http: httpx.AsyncClient) -> None:
    pass


LEADER = {"leader": 9, "leader_epoch": 1}


@pytest.mark.parametrize(
    ("prepare", "method", "path", "body", "status", "slug"),
    [
        (_nothing, "POST", "/produce", _produce_body(topic="b"), 404, "unknown-partition"),
        (_lose_leader, "POST", "/produce", _produce_body(), 421, "not-leader"),
        (_lose_leader, "POST", "/fetch", _fetch_body(), 421, "not-leader"),
        (_lose_storage, "POST", "/produce", _produce_body(), 500, "storage-failed"),
        (_lose_storage, "POST", "/fetch", _fetch_body(), 500, "storage-failed"),
        (_nothing, "POST", "/fetch", _fetch_body(leader_epoch=3), 409, "unknown-leader-epoch"),
        (
            _lose_leader,
            "PUT",
            "/topics/a/partitions/0/leader",
            {"leader": 0, "leader_epoch": 1},
            409,
            "fenced-leader-epoch",
        ),
        (_nothing, "PUT", "/topics/a/partitions/0/leader", LEADER, 403, "unknown-replica"),
        (_nothing, "POST", "/fetch", _fetch_body(replica_id=9), 403, "unknown-replica"),
        (_nothing, "POST", "/fetch", _fetch_body(1), 416, "offset-out-of-range"),
        (_nothing, "POST", "/produce", _produce_body("x" * 101), 413, "record-too-large"),
        (_fill_log, "POST", "/produce", _produce_body(), 507, "log-full"),
        (_lose_followers, "POST", "/produce", _produce_body(), 503, "not-enough-replicas"),
        (
            _nothing,
            "POST",
            "/produce",
            _produce_body(timeout_ms=5000),
            503,
            "not-enough-replicas-after-append",
        ),
        (_nothing, "POST", "/produce", _produce_body(), 504, "timed-out"),
        (_fill_purgatory, "POST", "/produce", _produce_body(), 503, "broker-busy"),
        (_drain, "POST", "/produce", _produce_body(), 503, "broker-closing"),
        (_nothing, "GET", "/topics/b/partitions/0", None, 404, "unknown-partition"),
    ],
)
async def test_every_refusal_is_a_problem_of_its_own(
    http: httpx.AsyncClient,
    prepare: Callable[[httpx.AsyncClient], Any],
    method: str,
    path: str,
    body: object,
    status: int,
    slug: str,
) -> None:
    """With a type, a status, a sentence, and what the error's docstring calls it."""
    await prepare(http)
    response = await http.request(method, path, json=body)
    document = response.json()
    assert (response.status_code, document["type"]) == (status, f"/problems/{slug}")
    assert response.headers["content-type"] == "application/problem+json"
    assert document["status"] == status
    assert document["instance"] == path
    assert document["detail"]
    assert ("retry-after" in response.headers) == (status == 503)
    described = await http.get(document["type"])
    assert described.json() == {"title": document["title"], "status": status}


def test_each_kind_of_problem_has_its_own_slug() -> None:
    """Each is also the builtin that a stranger would catch, and can be shown without a detail."""
    assert len(KINDS) == 15
    for kind in KINDS.values():
        assert len(kind.__mro__[kind.__mro__.index(BrokerError) :]) >= 4
        assert problem_response(kind(), "/").status_code == kind.status


async def test_a_wait_that_is_cut_off_is_a_problem(http: httpx.AsyncClient) -> None:
    """Draining answers the produce that waits; its records may yet be committed."""
    producing = asyncio.create_task(http.post("/produce", json=_produce_body(timeout_ms=5000)))
    await asyncio.sleep(0.01)
    await _drain(http)
    response = await producing
    assert response.json()["type"] == "/problems/not-acknowledged"


async def test_partitions_that_differ_have_each_their_status(http: httpx.AsyncClient) -> None:
    """207 when some went well, or when they failed in different ways."""
    body = _produce_body(acks=1)
    assert isinstance(body["partitions"], list)
    body["partitions"].append({"topic": "b", "partition": 0, "records": ["x"]})
    response = await http.post("/produce", json=body)
    assert response.status_code == 207
    first, second = response.json()["partitions"]
    assert (first["error"], first["base_offset"]) == (None, 0)
    assert second["error"]["status"] == 404


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"partitions": []},
        {**_produce_body(), "more": 1},
        _produce_body(""),
        _produce_body("\ud800"),
        _produce_body(topic="a/b"),
        _produce_body(timeout_ms=-1),
        _produce_body(timeout_ms=55_001),
        _produce_body(acks=0),
        _produce_body(acks="1"),
        {"partitions": [{"topic": "a", "partition": 0, "records": ["x"]}] * 2},
        {"partitions": [{"topic": "a", "partition": "0", "records": ["x"]}]},
        {"partitions": [{"topic": "a", "partition": True, "records": ["x"]}]},
    ],
)
async def test_a_body_that_says_something_else_is_refused(
    http: httpx.AsyncClient, body: object
) -> None:
    """With 422 and a problem, and nothing is appended."""
    # With every character escaped, as half a surrogate pair has to be.
    response = await http.post(
        "/produce", content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    assert (await http.get("/topics/a/partitions/0")).json()["log_end_offset"] == 0


async def test_openapi_shows_the_endpoints_and_their_problems(http: httpx.AsyncClient) -> None:
    """Every endpoint of the broker, each with what it refuses."""
    paths = (await http.get("/openapi.json")).json()["paths"]
    ours = {path: item for path, item in paths.items() if not path.startswith("/purgatory")}
    assert {"/produce", "/fetch", "/topics/{topic}/partitions/{partition}/leader"} <= set(ours)
    for path in ("/produce", "/fetch"):
        assert "application/problem+json" in paths[path]["post"]["responses"]["5XX"]["content"]
