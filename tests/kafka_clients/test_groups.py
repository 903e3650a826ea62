"""Groups of several kinds of clients: one generation, disjoint partitions, each record once."""

import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from struct import unpack_from
from typing import Any

import pytest
from confluent_kafka import Producer

from examples.kafka_broker.broker import KafkaBroker
from examples.kafka_broker.errors import ErrorCode
from examples.kafka_broker.groups.group import Group, GroupState, Sync, SyncRequest, SyncResult
from examples.kafka_broker.testing import BrokerThread
from tests.kafka_clients.client import TOPIC
from tests.kafka_clients.processes import KAFKAJS, KCAT, PLATFORMATIC, Client, until
from tests.patience import PATIENCE_S

PARTITIONS = 12


def _partitions(assignment: bytes) -> list[int]:
    """Return the partitions in an assignment, in the format of consumers."""
    numbers: list[int] = []
    # Leaders leave it empty for a member that gets nothing.
    topics, at = (unpack_from(">i", assignment, 2)[0] if assignment else 0), 6
    for _ in range(topics):
        at += 2 + unpack_from(">h", assignment, at)[0]
        count = unpack_from(">i", assignment, at)[0]
        numbers += unpack_from(f">{count}i", assignment, at + 4)
        at += 4 + 4 * count
    return numbers


def _shares(group: Group) -> dict[str, list[int]]:
    """Return the partitions of each member, by its client's id, as its assignment has them."""
    return {each.client_id: _partitions(each.assignment) for each in group.members.values()}


class Mixed:
    """A group of several kinds of clients, and what they have consumed together."""

    def __init__(self, thread: BrokerThread, options: Mapping[str, Any]) -> None:
        self._thread = thread
        self._options = options
        self._producer = Producer({"bootstrap.servers": thread.address, "acks": "all"})
        self._sent = 0
        self._ended: Counter[int] = Counter()
        self.members: dict[str, Client] = {}

    def start(self, client: str, name: str, **options: Any) -> None:
        self.members[name] = Client(
            client, self._thread.address, name, **{**self._options, **options}
        )

    def end(self, name: str, number: signal.Signals) -> None:
        member = self.members.pop(name)
        member.end(number)
        self._ended.update(member.values)

    def restart(self, client: str, name: str) -> None:
        """End a static member, and wait until it is there again, under a new id."""
        before = self._ids()
        # It would leave the group, as a static member should not.
        is_leaver = client == "platformatic"
        self.end(name, signal.SIGKILL if is_leaver else signal.SIGTERM)
        self.start(client, name, instance=name)
        self.until(lambda: self._ids()[name] != before[name])
        assert self._ids() == {**before, name: self._ids()[name]}

    def until(self, condition: Callable[[], object]) -> None:
        """Return once `condition()` holds, while all members run."""
        until(condition, *self.members.values())

    def settle(self) -> int:
        """Wait for one generation of all members with disjoint partitions; return its number."""
        self.until(lambda: self._thread.call(self._is_settled))
        return self._thread.call(lambda it: it.coordinator.groups["g"].generation)

    def shares(self) -> dict[str, list[int]]:
        return self._thread.call(lambda it: _shares(it.coordinator.groups["g"]))

    def _ids(self) -> dict[str, str]:
        """Return the id of each static member, by its instance's."""
        return self._thread.call(lambda it: dict(it.coordinator.groups["g"].static_members))

    def _is_settled(self, broker: KafkaBroker) -> bool:
        group = broker.coordinator.groups.get("g")
        if group is None or group.state is not GroupState.STABLE or group.unsynced:
            return False
        shares = _shares(group)
        numbers = sorted(number for own in shares.values() for number in own)
        return shares.keys() == self.members.keys() and numbers == list(range(PARTITIONS))

    def consume(self, count: int = 240) -> None:
        """Produce records, and wait until each was consumed and committed, once, by its owner."""
        before = {name: len(member.values) for name, member in self.members.items()}
        for number in range(self._sent, self._sent + count):
            self._producer.produce(TOPIC, b"%d" % number, partition=number % PARTITIONS)
        assert self._producer.flush(PATIENCE_S) == 0
        self._sent += count
        self.until(lambda: sum(self.counts().values()) >= self._sent)
        assert self.counts() == Counter(range(self._sent))
        for name, numbers in self.shares().items():
            consumed = self.members[name].values[before[name] :]
            assert {number % PARTITIONS for number in consumed} == set(numbers)
        self.until(lambda: self._thread.call(self._is_committed))

    def counts(self) -> Counter[int]:
        living = (value for member in self.members.values() for value in list(member.values))
        return self._ended + Counter(living)

    def _is_committed(self, broker: KafkaBroker) -> bool:
        offsets = broker.coordinator.offsets("g")
        ends = [each.log.end_offset for each in broker.replica_manager.topics[TOPIC]]
        return all(offsets.get((TOPIC, at)) is not None for at in range(PARTITIONS)) and ends == [
            offsets[TOPIC, at].offset for at in range(PARTITIONS)
        ]


@contextmanager
def mixed(thread: BrokerThread, **options: Any) -> Iterator[Mixed]:
    """End every process."""
    group = Mixed(thread, options)
    try:
        yield group
    finally:
        for member in group.members.values():
            member.end(signal.SIGKILL)


def test_a_group_of_several_clients(broker: BrokerThread) -> None:
    """A late joiner, a kill -9, a leaver."""
    with mixed(broker) as group:
        for client, name in [
            ("confluent", "a"),
            ("kafka-python", "b"),
            ("aiokafka", "c"),
            (KCAT, "d"),
        ]:
            group.start(client, name)
        before = group.settle()
        group.consume()
        group.start(KAFKAJS, "late")
        assert group.settle() > before
        group.consume()
        for name, number in (("c", signal.SIGKILL), ("a", signal.SIGTERM)):
            before = group.settle()
            group.end(name, number)
            assert group.settle() > before
            group.consume()


def test_a_rolling_bounce_of_static_members(broker: BrokerThread) -> None:
    """Each one goes on with its partitions in the same generation (KIP-345)."""
    clients = {
        "a": "confluent",
        "b": "kafka-python",
        "c": "aiokafka",
        "d": KCAT,
        "e": PLATFORMATIC,
    }
    with mixed(broker, session_ms=120_000) as group:
        for name, client in clients.items():
            group.start(client, name, instance=name)
            # One by one: the last one is in no rebalance, in which it may hand on records twice.
            generation = group.settle()
        shares = group.shares()
        group.consume()
        for name, client in clients.items():
            group.restart(client, name)
            group.consume()
        assert (group.settle(), group.shares()) == (generation, shares)


def test_a_cooperative_rebalance_takes_only_what_moves(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member goes on with what it keeps, and what moves is nobody's in between (KIP-429)."""
    # {member id: the partitions that it was given last}, and all overlaps of those of members.
    given: dict[str, list[int]] = {}
    overlaps: list[list[int]] = []
    coordinator = broker.broker.coordinator
    sync = coordinator.sync

    def note(request: SyncRequest, respond: Sync) -> None:
        def give(result: SyncResult) -> None:
            if result.error is ErrorCode.NONE:
                given[request.member_id] = _partitions(result.assignment)
                members = coordinator.groups["g"].members
                owned = [number for each in members for number in given.get(each, ())]
                if len(owned) > len(set(owned)):
                    overlaps.append(owned)
            respond(result)

        sync(request, give)

    monkeypatch.setattr(coordinator, "sync", note)
    with mixed(broker, strategy="cooperative-sticky") as group:
        for client, name in [("confluent", "a"), ("kafka-python", "b"), (KCAT, "c")]:
            group.start(client, name)
        group.settle()
        group.consume()
        for client, name in [("kafka-python", "d"), (PLATFORMATIC, "e")]:
            before = group.shares()
            group.start(client, name)
            group.settle()
            after = group.shares()
            assert all(set(after[name]) <= set(own) for name, own in before.items())
            group.consume()
        # Before another rebalance, in which it may hand on records twice: see the README.
        for name, number in [("e", signal.SIGTERM), ("c", signal.SIGKILL)]:
            before = group.shares()
            group.end(name, number)
            group.settle()
            assert all(set(before[name]) <= set(own) for name, own in group.shares().items())
            group.consume()
    assert len(given) > 4 and not overlaps
