"""The law of acks=all: what is acknowledged is everywhere and stays."""

import asyncio
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from examples.acks_all.partition import Partition
from examples.acks_all.produce_status import ProduceStatus
from examples.acks_all.topic_partition import TopicPartition
from purgatory import Purgatory
from purgatory.testing import AutojumpEventLoop
from tests.unit.acks_all.broker import CONFIG, A, Broker, Told

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
