"""aiokafka and the broker on one event loop, whose time jumps: hours of Kafka in milliseconds."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import InconsistentGroupProtocolError

from examples.kafka_broker.broker import KafkaBroker
from examples.kafka_broker.groups.group import GroupState
from tests.nightly import by_night

HOUR = 3600


def now() -> float:
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def consumer(broker: KafkaBroker, name: str, **options: Any) -> AsyncIterator[Any]:
    """A member of the group `g` for as long as the block takes."""
    options = {"session_timeout_ms": 45_000, **options}
    member = AIOKafkaConsumer(
        "orders",
        bootstrap_servers=broker.address,
        client_id=name,
        group_id="g",
        auto_offset_reset="earliest",
        **options,
    )
    try:
        await member.start()
        yield member
    finally:
        await member.stop()


async def until(condition: Callable[[], bool]) -> None:
    """Return once `condition()` holds; in virtual time, after an hour at most."""
    async with asyncio.timeout(HOUR):
        while not condition():  # noqa: ASYNC110 # it is a condition on the client, who tells nobody
            await asyncio.sleep(0.1)


def shares(members: Iterable[Any]) -> list[int]:
    """Return the partitions of all members, sorted."""
    return sorted(part.partition for member in members for part in member.assignment())


@pytest.fixture
async def producer(broker: KafkaBroker) -> AsyncIterator[Any]:
    """A producer that waits for every replica."""
    options = {"acks": "all", "enable_idempotence": True, "request_timeout_ms": HOUR * 1000}
    async with AIOKafkaProducer(bootstrap_servers=broker.address, **options) as producer:
        yield producer


async def test_a_member_that_vanishes_is_removed_after_its_session(broker: KafkaBroker) -> None:
    """45 s after its last heartbeat, and the other one has its partitions by its next heartbeat."""
    async with consumer(broker, "a") as a, consumer(broker, "b") as b:
        await until(lambda: shares([a, b]) == list(range(6)) and bool(a.assignment()))
        began = now()
        broker.crash_member("b")
        await until(lambda: shares([a]) == list(range(6)))
        assert 45 - 3 <= now() - began <= 45 + 3 + 0.1
        with pytest.raises(LookupError, match="'c'"):
            broker.crash_member("c")


async def test_acks_all_waits_for_a_slow_replica(broker: KafkaBroker, producer: Any) -> None:
    """Until it fetches again; or until it has left the in-sync replicas."""
    await producer.send_and_wait("orders", b"1")
    broker.pause_follower(1)
    sending = asyncio.create_task(producer.send_and_wait("orders", b"2", partition=0))
    await asyncio.sleep(20)
    assert not sending.done() and broker.purgatories["Produce"].parked == 1
    broker.resume_follower(1)
    await sending
    broker.pause_follower(2)
    began = now()
    await producer.send_and_wait("orders", b"3", partition=0)
    # As long as replica.lag.time.max.ms.
    assert now() - began == pytest.approx(30, abs=0.1)


async def test_a_static_member_restarts_without_a_rebalance(broker: KafkaBroker) -> None:
    """It goes on with its partitions in the same generation, as another one may not know."""
    async with consumer(broker, "a", group_instance_id="a") as a:
        async with consumer(broker, "b", group_instance_id="b") as b:
            await until(lambda: shares([a, b]) == list(range(6)) and bool(a.assignment()))
            generation, own = broker.coordinator.groups["g"].generation, b.assignment()
        async with consumer(broker, "b", group_instance_id="b") as b:
            await until(lambda: bool(b.assignment()))
            await asyncio.sleep(60)
            assert b.assignment() == own and shares([a, b]) == list(range(6))
            assert broker.coordinator.groups["g"].generation == generation


async def test_members_need_a_protocol_in_common(broker: KafkaBroker) -> None:
    """A group uses one that all of them have, and refuses who has none of those."""
    ranges, turns = RangePartitionAssignor, RoundRobinPartitionAssignor
    async with (
        consumer(broker, "a", partition_assignment_strategy=[turns]) as a,
        consumer(broker, "b", partition_assignment_strategy=[ranges, turns]) as b,
    ):
        await until(lambda: shares([a, b]) == list(range(6)) and bool(a.assignment()))
        group = broker.coordinator.groups["g"]
        generation = group.generation
        with pytest.raises(InconsistentGroupProtocolError):
            async with consumer(broker, "c", partition_assignment_strategy=[ranges]):
                pass
        assert (group.protocol, group.generation) == ("roundrobin", generation)


async def test_a_group_resumes_where_it_has_committed(broker: KafkaBroker, producer: Any) -> None:
    """After a day, too; each record is consumed once."""
    for part in (range(50), range(50, 100)):
        for number in part:
            await producer.send("orders", b"%d" % number)
        await producer.flush()
        async with consumer(broker, "a", enable_auto_commit=False) as member:
            got = [int((await member.getone()).value) for _ in part]
            await member.commit()
        assert sorted(got) == list(part)
        await asyncio.sleep(24 * HOUR)


async def test_a_storm_of_members_is_one_generation(broker: KafkaBroker) -> None:
    """Dozens start at once, and half of them leave: no partition is without a member."""
    count = by_night(200, 40)
    broker.replica_manager.delete_topic("orders")
    broker.replica_manager.create_topic("orders", 2 * count)
    async with AsyncExitStack() as stack:
        names = [f"m{number}" for number in range(count)]
        members = await asyncio.gather(
            *(stack.enter_async_context(consumer(broker, name)) for name in names)
        )
        await until(lambda: shares(members) == list(range(2 * count)))
        group = broker.coordinator.groups["g"]
        assert (group.generation, group.state, len(group.members)) == (1, GroupState.STABLE, count)
        await asyncio.gather(*(member.stop() for member in members[count // 2 :]))
        await until(lambda: shares(members[: count // 2]) == list(range(2 * count)))
        assert (group.generation, group.state, len(group.members)) == (
            2,
            GroupState.STABLE,
            count // 2,
        )
