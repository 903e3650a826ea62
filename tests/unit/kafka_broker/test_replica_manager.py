"""Produce and fetch of a replicated log in virtual time: cases 31 and 32, and its replicas."""

import asyncio
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.kafka_broker.errors import ErrorCode
from examples.kafka_broker.log.delayed_operations import FetchPosition, FetchRequest
from examples.kafka_broker.log.partition import LogSettings, Partition, TopicPartition
from examples.kafka_broker.log.record_batch import read_batches
from examples.kafka_broker.log.replica_manager import LogPurgatories, ReplicaManager
from purgatory import Limits, Purgatory
from purgatory.testing import AutojumpEventLoop, current_clock
from tests.cases import cases
from tests.nightly import by_night
from tests.unit.kafka_broker.batches import batch
from tests.virtual_time import anyio_backend  # noqa: F401 # a fixture

A, B = ("a", 0), ("a", 1)
SIZE = len(batch())
OK, NOT_LEADER = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER
TIMED_OUT = ErrorCode.REQUEST_TIMED_OUT


@dataclass
class Told:
    """What one request was told, and when."""

    answers: list[Mapping[TopicPartition, Any]] = field(default_factory=list)
    at_ms: int = -1
    operation: Any = None

    def __call__(self, answer: Mapping[TopicPartition, Any]) -> None:
        self.answers.append(dict(answer))
        self.at_ms = current_clock().now_ns() // 1_000_000
        assert len(self.answers) == 1

    @property
    def is_waiting(self) -> bool:
        return not self.answers

    @property
    def errors(self) -> dict[TopicPartition, ErrorCode]:
        return {name: result.error for name, result in self.answers[0].items()}

    @property
    def records(self) -> dict[TopicPartition, int]:
        """How many bytes a fetch has read."""
        return {name: len(result.records) for name, result in self.answers[0].items()}


class Broker:
    """A replica manager whose two followers are paused: the tests fetch for them."""

    def __init__(self, purgatory: Purgatory, **options: Any) -> None:
        options = {"replicas": 3, "min_insync_replicas": 2, "replica_lag_ms": 1000, **options}
        self.purgatory = purgatory
        purgatories = {"produce": purgatory, "fetch": purgatory, "isr_shrink": purgatory}
        self.manager = ReplicaManager(LogPurgatories(**purgatories), LogSettings(**options))
        self.manager.create_topic("a", 2)
        for replica_id in self.manager.followers:
            self.manager.pause_follower(replica_id)

    def produce(
        self, batches: Mapping[Any, bytes], *, acks: int = -1, timeout_ms: int = 30_000
    ) -> Told:
        told = Told()
        told.operation = self.manager.produce(
            batches,
            acks=acks,
            timeout_ms=timeout_ms,
            respond=told,
        )
        return told

    def fetch(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        leader_epoch: int = -1,
        partition_bytes: int = 1000,
        max_wait_ms: int = 0,
        **options: Any,
    ) -> Told:
        told = Told()
        positions = {
            name: FetchPosition(offset, partition_bytes, leader_epoch)
            for name, offset in offsets.items()
        }
        request = FetchRequest(positions=positions, max_wait_ms=max_wait_ms, **options)
        told.operation = self.manager.fetch(request, told)
        return told

    def follow(self, offset: int, *replica_ids: int, name: TopicPartition = A) -> None:
        """Let followers say that they have everything before `offset`."""
        for replica_id in replica_ids:
            self.fetch({name: offset}, replica_id=replica_id)

    def partition(self, name: TopicPartition = A) -> Partition:
        found = self.manager.find(name)
        assert found is not None
        return found


@pytest.fixture
async def broker(purgatory: Purgatory) -> Broker:
    """A broker that leaves nothing behind."""
    return Broker(purgatory)


# Case 31: produce with acks=all.


async def test_what_is_pending_at_the_timeout_has_timed_out(purgatory: Purgatory) -> None:
    """At the timeout, and not before, the pending partitions are as they were at the start."""
    broker = Broker(purgatory, replica_lag_ms=10**9)
    told = broker.produce({A: batch(), B: batch()}, timeout_ms=250)
    broker.follow(1, 1, 2, name=A)
    await asyncio.sleep(0.249)
    assert told.is_waiting
    await asyncio.sleep(0.001)
    assert told.errors == {A: OK, B: TIMED_OUT}
    broker.follow(1, 1, 2, name=B)


async def test_a_partition_that_loses_its_leader_settles(broker: Broker) -> None:
    """The others are waited for all the same, and each has its own status."""
    told = broker.produce({A: batch(), B: batch(), ("b", 0): batch()})
    broker.manager.change_leader(A, 1, 1)
    assert told.is_waiting
    broker.manager.change_leader(B, 1, 1)
    unknown = {("b", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert told.errors == {A: NOT_LEADER, B: NOT_LEADER, **unknown}


async def test_a_produce_and_a_fetch_of_very_many_partitions(
    make_purgatory: Callable[..., Purgatory],
) -> None:
    """As many as a request names: the number of keys is the peer's."""
    async with make_purgatory(limits=Limits(max_keys_per_operation=10**6)) as purgatory:
        broker = Broker(purgatory)
        broker.manager.create_topic("b", 300)
        names = [("b", number) for number in range(300)]
        fetched = broker.fetch(dict.fromkeys(names, 0), max_wait_ms=500)
        told = broker.produce(dict.fromkeys(names, batch()))
        for replica_id in (1, 2):
            broker.fetch(dict.fromkeys(names, 1), replica_id=replica_id)
        assert set(told.errors.values()) == {OK} and not fetched.is_waiting


# Case 32: fetch.


async def test_a_fetch_waits_for_min_bytes_over_its_partitions(broker: Broker) -> None:
    """Bytes count that are committed, of all partitions together."""
    told = broker.fetch({A: 0, B: 0}, min_bytes=2 * SIZE + 1, max_wait_ms=60_000)
    broker.produce({A: batch(), B: batch()}, acks=1)
    broker.follow(1, 1, 2, name=A)
    broker.follow(1, 1, 2, name=B)
    broker.produce({B: batch()}, acks=1)
    assert told.is_waiting
    broker.follow(2, 1, 2, name=B)
    assert told.records == {A: SIZE, B: 2 * SIZE}


@pytest.mark.parametrize(
    ("happen", "error"),
    [
        pytest.param(lambda manager: manager.change_leader(A, 1, 1), 6, id="led elsewhere"),
        pytest.param(lambda manager: manager.change_leader(A, 0, 1), 74, id="fenced"),
        pytest.param(lambda manager: manager.delete_topic("a"), 3, id="deleted"),
    ],
)
async def test_a_fetch_is_told_of_a_partition_that_fails(
    broker: Broker, happen: Callable[[ReplicaManager], object], error: int
) -> None:
    """At once, and with what the other partitions have."""
    broker.manager.create_topic("b", 1)
    broker.produce({("b", 0): batch()}, acks=1)
    broker.follow(1, 1, 2, name=("b", 0))
    told = broker.fetch({A: 0, ("b", 0): 0}, min_bytes=500, max_wait_ms=60_000, leader_epoch=0)
    assert told.is_waiting
    happen(broker.manager)
    assert told.errors == {A: error, ("b", 0): OK}
    assert told.records[("b", 0)] == SIZE


async def test_consumers_read_what_is_committed_and_followers_all(broker: Broker) -> None:
    """Consumers up to the high watermark, followers up to the end of the log."""
    consumer = broker.fetch({A: 0}, max_wait_ms=60_000)
    follower = broker.fetch({A: 0}, replica_id=1, max_wait_ms=400)
    broker.produce({A: batch()}, acks=1)
    assert follower.records == {A: SIZE}
    assert consumer.is_waiting
    broker.follow(1, 1, 2)
    assert consumer.records == {A: SIZE}


async def test_a_fetch_at_the_end_reads_nothing(broker: Broker) -> None:
    """Nor does it read again what lies before its offset, whatever other partitions have."""
    broker.produce({A: batch(), B: batch()}, acks=1)
    for name in (A, B):
        broker.follow(1, 1, 2, name=name)
    assert broker.fetch({A: 1, B: 0}).records == {A: 0, B: SIZE}


async def test_a_fetch_of_a_client_that_has_left_reads_nothing(broker: Broker) -> None:
    """It is cancelled, and not responded to."""
    told = broker.fetch({A: 0}, max_wait_ms=60_000)
    told.operation.cancel()
    broker.produce({A: batch()}, acks=1)
    broker.follow(1, 1, 2)
    await asyncio.sleep(0.001)
    assert told.is_waiting and broker.purgatory.parked == 0


async def test_a_large_batch_goes_out_alone(broker: Broker) -> None:
    """max_bytes bounds a response, but nobody is stuck before a batch that is larger."""
    large = batch(payload=b"x" * 200)
    broker.produce({A: large, B: batch()}, acks=1)
    broker.produce({A: batch()}, acks=1)
    for name, end in ((A, 2), (B, 1)):
        broker.follow(end, 1, 2, name=name)
    assert broker.fetch({A: 0, B: 0}, max_bytes=10).records == {A: len(large), B: 0}
    assert broker.fetch({A: 0}, partition_bytes=10).records == {A: len(large)}
    assert broker.fetch({A: 1, B: 0}, max_bytes=2 * SIZE).records == {A: SIZE, B: SIZE}


@cases(
    "data, error",
    [
        (None, ErrorCode.INVALID_RECORD),
        (batch()[:30], ErrorCode.CORRUPT_MESSAGE),
        (batch()[:-1], ErrorCode.CORRUPT_MESSAGE),
        (batch()[:-1] + b"?", ErrorCode.CORRUPT_MESSAGE),
        (batch()[:16] + b"\1" + batch()[17:], ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (batch() + batch(), ErrorCode.INVALID_RECORD),
        (batch(payload=b"x" * 1000), ErrorCode.MESSAGE_TOO_LARGE),
    ],
)
async def test_what_is_no_batch_is_not_appended(
    purgatory: Purgatory, data: bytes, error: ErrorCode
) -> None:
    """Cut off, changed on the way, of an older format, or too large."""
    broker = Broker(purgatory, max_batch_bytes=500)
    assert broker.produce({A: data}).errors == {A: error}
    assert broker.partition().log.end_offset == 0


async def test_an_idempotent_producer_may_repeat(broker: Broker) -> None:
    """A batch is appended once, in the order of its numbers, of the newest epoch only."""

    def produce(epoch: int, sequence: int) -> tuple[int, int]:
        told = broker.produce({A: batch(2, producer=(7, epoch, sequence))}, acks=1)
        result = told.answers[0][A]
        return result.error, result.base_offset

    for epoch, sequence, expected in [
        (0, 0, (0, 0)),
        (0, 2, (0, 2)),
        (0, 0, (0, 0)),
        (0, 5, (45, -1)),
        (1, 2, (45, -1)),
        (1, 0, (0, 4)),
        (0, 4, (47, -1)),
    ]:
        assert produce(epoch, sequence) == expected
    assert broker.partition().log.end_offset == 6


async def test_many_idempotent_producers(purgatory: Purgatory) -> None:
    """A partition knows the last thousand, and keeps no bytes of theirs beyond its retention."""
    broker = Broker(purgatory, retention_bytes=100_000, replicas=1, min_insync_replicas=1)

    def produce(number: int) -> int:
        data = batch(payload=b"x" * 10_000, producer=(number, 0, 0))
        offset: int = broker.produce({A: data}, acks=1).answers[0][A].base_offset
        return offset

    tracemalloc.start()
    try:
        assert [produce(number) for number in range(1_001)] == list(range(1_001))
        assert tracemalloc.get_traced_memory()[0] < 2 * 2**20
    finally:
        tracemalloc.stop()
    assert (produce(1), produce(0)) == (1, 1_001)


# The ISR, and leaders.


async def test_followers_that_stop_behind_a_grown_log_fall_out_in_time(broker: Broker) -> None:
    """Then acks=all is refused before the append, as too few would have the records."""
    broker.follow(0, 1, 2)
    await asyncio.sleep(60)
    appended_ms = broker.manager.now_ms()
    told = broker.produce({A: batch()})
    await asyncio.sleep(3)
    assert told.at_ms - (appended_ms + 1000) in (0, 1)
    assert told.errors == {A: ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
    assert broker.partition().isr == {0}
    assert broker.produce({A: batch()}).errors == {A: ErrorCode.NOT_ENOUGH_REPLICAS}
    assert broker.produce({A: batch()}, acks=1).errors == {A: OK}
    broker.follow(2, 1)
    assert broker.partition().isr == {0, 1}


async def test_replicas_in_memory_follow(broker: Broker) -> None:
    """All is committed at once while they run, and when they resume; they have what it has."""
    for replica_id in (1, 2):
        broker.manager.resume_follower(replica_id)
    assert broker.produce({A: batch()}).errors == {A: OK}
    broker.manager.pause_follower(2)
    told = broker.produce({A: batch(3)})
    assert told.is_waiting
    broker.manager.resume_follower(2)
    assert told.errors == {A: OK}
    logs = [followers[A].log for followers in broker.manager.followers.values()]
    whole = broker.partition().log.read(0, 4, 1000, at_least_one=True)
    assert [log.read(0, 4, 1000, at_least_one=True) for log in logs] == [whole, whole]
    assert [each.base_offset for each in read_batches(whole)] == [0, 1]
    for replica_id in (1, 2):
        broker.manager.pause_follower(replica_id)


async def test_a_paused_follower_fetches_no_topic_at_all(broker: Broker) -> None:
    """Those that are created later included; and one that runs is not resumed once more."""
    new = ("new", 0)
    broker.manager.create_topic("new", 1)
    told = broker.produce({new: batch()})
    assert told.is_waiting
    before = broker.purgatory.parked
    for _ in range(2):
        broker.manager.resume_follower(1)
    # Those of three partitions.
    assert broker.purgatory.parked == before + 3
    broker.manager.resume_follower(2)
    assert told.errors == {new: OK}
    for replica_id in (1, 2):
        broker.manager.pause_follower(replica_id)
    with pytest.raises(KeyError):
        broker.manager.pause_follower(3)


async def test_what_a_follower_had_of_a_lost_epoch_acknowledges_nothing(broker: Broker) -> None:
    """It was truncated here, and something else has been appended at the same offset."""
    broker.produce({A: batch()}, acks=1)
    broker.follow(1, 1)
    broker.manager.change_leader(A, 9, 1)
    broker.manager.change_leader(A, 0, 2)
    for replica_id in (1, 2):
        broker.manager.pause_follower(replica_id)
    told = broker.produce({A: batch()})
    broker.follow(1, 2)
    assert told.is_waiting
    broker.follow(1, 1)
    assert told.errors == {A: OK}


async def test_old_records_make_way_once_they_are_committed(purgatory: Purgatory) -> None:
    """The log is bounded, and what is not committed is kept."""
    broker = Broker(purgatory, retention_bytes=5 * SIZE)
    for _ in range(10):
        broker.produce({A: batch()}, acks=1)
    assert broker.partition().log.size == 10 * SIZE
    broker.follow(10, 1, 2)
    assert (broker.partition().log.start_offset, broker.partition().log.size) == (5, 5 * SIZE)
    assert broker.fetch({A: 4}).errors == {A: ErrorCode.OFFSET_OUT_OF_RANGE}


STEPS = st.one_of(
    st.tuples(st.just("produce"), st.integers(1, 3)),
    st.tuples(st.just("fetch 1"), st.integers(0, 5)),
    st.tuples(st.just("fetch 2"), st.integers(0, 5)),
    st.tuples(st.just("wait"), st.integers(1, 800)),
    st.tuples(st.just("lead"), st.integers(0, 1)),
)


@settings(max_examples=by_night(60, 25), deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_what_is_acknowledged_is_everywhere_and_stays(steps: list[tuple[str, int]]) -> None:
    """Whatever happens: each produce has one answer, by its timeout; none before its time."""
    with asyncio.Runner(loop_factory=AutojumpEventLoop) as runner:
        runner.run(_take(steps))


async def _take(steps: list[tuple[str, int]]) -> None:
    async with Purgatory(clock=current_clock()) as purgatory:
        broker = Broker(purgatory)
        told, epoch = [], 0
        for number, (step, size) in enumerate(steps):
            high_watermark = broker.partition().high_watermark
            if step == "produce":
                data = batch(size, payload=b"%d" % number)
                told.append((number, broker.produce({A: data}, timeout_ms=5000)))
            elif step == "wait":
                await asyncio.sleep(size / 1000)
            elif step == "lead":
                epoch += 1
                broker.manager.change_leader(A, size, epoch)
            else:
                replica_id = int(step[-1])
                end_offset = broker.partition().replicas[replica_id].end_offset
                broker.follow(max(0, end_offset) + size, replica_id)
            assert broker.partition().high_watermark >= high_watermark
            _check_law(broker.partition(), told)
        await asyncio.sleep(6)
        assert not any(one.is_waiting for _, one in told)
        assert purgatory.parked == 0


def _check_law(partition: Partition, told: list[tuple[int, Told]]) -> None:
    log = partition.log
    assert log.start_offset <= partition.high_watermark <= log.end_offset
    read = log.read(0, partition.high_watermark, 10**6, at_least_one=True)
    committed = {each.base_offset: each.data[61:] for each in read_batches(read)}
    for number, one in told:
        if one.answers and one.errors == {A: OK}:
            assert committed[one.answers[0][A].base_offset] == b"%d" % number
