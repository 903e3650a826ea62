"""Produce and fetch of a replicated log in virtual time: cases 31 and 32, and its replicas."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.acks_all.errors import BrokerBusy
from examples.acks_all.partition import Partition
from examples.acks_all.produce_status import ProduceStatus
from examples.acks_all.topic_partition import TopicPartition
from purgatory import Limits, Purgatory
from purgatory.testing import AutojumpEventLoop, current_clock
from tests.unit.acks_all.broker import CONFIG, LAG_MS, PATIENT, A, B, Broker, Told

# Case 31: produce with acks=all.


async def test_what_is_pending_at_the_timeout_has_timed_out(purgatory: Purgatory) -> None:
    """At the timeout, and not before, the pending partitions are as they were at the start."""
    broker = Broker(purgatory, PATIENT)
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


async def test_a_partition_that_fails_or_loses_its_leader_settles(broker: Broker) -> None:
    """The others are waited for all the same, and each has its own status."""
    told = broker.produce({A: ["1"], B: ["2"]})
    broker.manager.fail_storage(A)
    assert told.is_waiting
    broker.manager.change_leader(B, 1, 1)
    assert told.slugs == {A: "storage-failed", B: "not-leader"}


# Case 32: fetch.


async def test_a_fetch_waits_for_min_bytes_over_its_partitions(broker: Broker) -> None:
    """Bytes count that are committed, of all partitions together."""
    told = broker.fetch({A: 0, B: 0}, min_bytes=10, max_wait_ms=60_000)
    broker.produce({A: ["12345"], B: ["6789"]})
    broker.follow(1, 1, 2, name=A)
    broker.follow(1, 1, 2, name=B)
    assert told.is_waiting
    broker.produce({B: ["0"]})
    assert told.is_waiting
    broker.follow(2, 1, 2, name=B)
    assert told.values == {A: ["12345"], B: ["6789", "0"]}


@pytest.mark.parametrize(
    ("happen", "slug"),
    [
        pytest.param(lambda broker: broker.manager.fail_storage(A), "storage-failed", id="storage"),
        pytest.param(lambda broker: broker.manager.change_leader(A, 1, 1), "not-leader", id="led"),
        pytest.param(
            lambda broker: broker.manager.change_leader(A, 0, 1), "fenced-leader-epoch", id="fenced"
        ),
    ],
)
async def test_a_fetch_is_told_of_a_partition_that_fails(
    broker: Broker, happen: Callable[[Broker], object], slug: str
) -> None:
    """At once, and with what the other partitions have."""
    broker.produce({B: ["other"]})
    broker.follow(1, 1, 2, name=B)
    told = broker.fetch({A: 0, B: 0}, min_bytes=500, max_wait_ms=60_000, leader_epoch=0)
    assert told.is_waiting
    happen(broker)
    assert told.slugs == {A: slug, B: "ok"}
    assert told.values[B] == ["other"]


async def test_consumers_read_what_is_committed_and_followers_all(broker: Broker) -> None:
    """Consumers up to the high watermark, followers up to the end of the log."""
    consumer = broker.fetch({A: 0}, max_wait_ms=60_000)
    follower = broker.fetch({A: 0}, replica_id=1, max_wait_ms=400)
    broker.produce({A: ["new"]})
    assert follower.values == {A: ["new"]}
    assert consumer.is_waiting
    broker.follow(1, 1, 2)
    assert consumer.values == {A: ["new"]}


async def test_a_large_record_goes_out_alone(broker: Broker) -> None:
    """max_bytes bounds an answer, but nobody is stuck before a record that is larger."""
    broker.produce({A: ["x" * 50, "y"], B: ["z"]}, acks_all=False)
    for name, count in ((A, 2), (B, 1)):
        broker.follow(count, 1, 2, name=name)
    assert broker.fetch({A: 0, B: 0}, max_bytes=10).values == {A: ["x" * 50], B: []}
    assert broker.fetch({A: 0}, partition_bytes=10).values == {A: ["x" * 50]}
    assert broker.fetch({A: 1, B: 0}, max_bytes=2).values == {A: ["y"], B: ["z"]}
    # More than it may have is nothing to wait for.
    told = broker.fetch({A: 0}, min_bytes=60, max_bytes=50, max_wait_ms=400)
    assert told.values == {A: ["x" * 50]}


# The ISR.


async def test_followers_that_stop_behind_a_grown_log_fall_out_in_time(broker: Broker) -> None:
    """Also after they were watched for longer than the lag, and nothing else happens."""
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


# Leaders.


async def test_what_a_follower_had_of_a_lost_epoch_acknowledges_nothing(broker: Broker) -> None:
    """It was truncated here, and something else has been appended at the same offset."""
    broker.produce({A: ["lost"]})
    broker.follow(1, 1)
    broker.manager.change_leader(A, None, 1)
    broker.manager.change_leader(A, 0, 2)
    told = broker.produce({A: ["new"]})
    broker.follow(1, 2)
    assert told.is_waiting
    broker.follow(1, 1)
    assert told.slugs == {A: "ok"}


async def test_a_full_purgatory_refuses_before_it_appends(
    make_purgatory: Callable[..., Purgatory],
) -> None:
    """Who finds no place to wait leaves nothing in the log; who need not wait is served."""
    async with make_purgatory(limits=Limits(max_parked=2)) as purgatory:
        broker = Broker(purgatory, CONFIG)
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


async def test_old_records_make_way_once_they_are_committed(broker: Broker) -> None:
    """The log is bounded, in bytes and in records, and what is not committed is kept."""
    for _ in range(10):
        broker.produce({A: ["x" * 100]}, acks_all=False)
    assert broker.produce({A: ["y"]}, acks_all=False).slugs == {A: "log-full"}
    broker.follow(10, 1, 2)
    broker.produce({A: ["y" * 100] * 5}, acks_all=False)
    broker.follow(15, 1, 2)
    assert (broker.partition().log.start_offset, broker.partition().log.size) == (5, 1000)
    assert broker.fetch({A: 4}).slugs == {A: "offset-out-of-range"}
    assert broker.produce({B: ["z"] * 51}, acks_all=False).slugs == {B: "log-full"}


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
    async with Purgatory(clock=current_clock()) as purgatory:
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
