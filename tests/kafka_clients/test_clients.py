"""Each client produces with acks=all and consumes; groups of several kinds; nothing is lost."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from struct import unpack_from
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer

from examples.kafka_broker.broker import KafkaBroker
from examples.kafka_broker.groups.coordinator import GroupSettings
from examples.kafka_broker.groups.group import Group, GroupState
from examples.kafka_broker.testing import BrokerThread
from tests.event_source.node import NODE, NODE_MODULES
from tests.kafka_clients.member import GROUP, TOPIC
from tests.nightly import NIGHTLY, by_night
from tests.patience import PATIENCE_S

COUNT = by_night(100_000, 10_000)
PARTITIONS = 12
HERE = Path(__file__).parent

needs_npm = pytest.mark.skipif(
    not (NODE_MODULES / "kafkajs").exists() and "CI" not in os.environ,
    reason="needs kafkajs and @platformatic/kafka, which `make test` installs where npm is",
)


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    """A broker in a thread, whose groups do not wait long for their first members."""
    groups = GroupSettings(initial_rebalance_delay_ms=200)
    with BrokerThread({TOPIC: PARTITIONS}, replicas=3, groups=groups) as thread:
        yield thread


def until(condition: Callable[[], object]) -> None:
    """Return once `condition()` holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.02)


def with_confluent(address: str) -> Iterator[list[bytes]]:
    """Produce COUNT records and consume them, in the second round from where the first ended."""
    failed: list[Any] = []

    def note(error: Any, message: object) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer(
        {"bootstrap.servers": address, "acks": "all", "enable.idempotence": True, "linger.ms": 5}
    )
    for _ in range(2):
        for number in range(COUNT):
            producer.produce(TOPIC, b"%d" % number, on_delivery=note)
            producer.poll(0)
        assert (producer.flush(PATIENCE_S), failed) == (0, [])
        consumer = Consumer(
            {"bootstrap.servers": address, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([TOPIC])
        found: list[bytes] = []
        while len(found) < COUNT:
            found += [each.value() or b"" for each in consumer.consume(1000, PATIENCE_S)]
        consumer.commit(asynchronous=False)
        consumer.close()
        yield found


def with_kafka_python(address: str) -> Iterator[list[bytes]]:
    """The same by kafka-python."""
    # Here, as importing it warns.
    from kafka import KafkaConsumer, KafkaProducer

    producer = KafkaProducer(bootstrap_servers=address, acks="all")
    for _ in range(2):
        for number in range(COUNT):
            producer.send(TOPIC, b"%d" % number)
        producer.flush(PATIENCE_S)
        consumer = KafkaConsumer(
            TOPIC, bootstrap_servers=address, group_id="g", auto_offset_reset="earliest"
        )
        found: list[bytes] = []
        while len(found) < COUNT:
            polled = consumer.poll(1000, max_records=COUNT - len(found))
            found += [each.value for part in polled.values() for each in part]
        consumer.commit()
        consumer.close()
        yield found
    producer.close()


def with_aiokafka(address: str) -> Iterator[list[bytes]]:
    """The same by aiokafka."""

    async def run() -> list[bytes]:
        async with AIOKafkaProducer(bootstrap_servers=address, acks="all") as producer:
            sending = [await producer.send(TOPIC, b"%d" % number) for number in range(COUNT)]
            await asyncio.gather(*sending)
        options = {"bootstrap_servers": address, "group_id": "g"}
        consumer = AIOKafkaConsumer(TOPIC, auto_offset_reset="earliest", **options)
        async with consumer:
            found: list[bytes] = []
            while len(found) < COUNT:
                polled = await consumer.getmany(timeout_ms=1000, max_records=COUNT - len(found))
                found += [each.value for part in polled.values() for each in part]
            await consumer.commit()
        return found

    for _ in range(2):
        yield asyncio.run(run())


@pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated")
@pytest.mark.parametrize("client", [with_confluent, with_kafka_python, with_aiokafka])
def test_each_record_is_consumed_once(
    broker: BrokerThread, client: Callable[[str], Iterator[list[bytes]]]
) -> None:
    """Also after a restart, which resumes at the committed offsets."""
    expected = sorted(b"%d" % number for number in range(COUNT))
    for found in client(broker.address):
        assert sorted(found) == expected
    assert broker.call(lambda it: it.purgatories["Produce"].parked) == 0


@needs_npm
@pytest.mark.parametrize("client", ["kafkajs", "platformatic"])
def test_each_record_is_consumed_by_javascript(broker: BrokerThread, client: str) -> None:
    """By clients of npm."""
    arguments = [client, broker.address, client, TOPIC, "g", str(COUNT)]
    environment = {**os.environ, "NODE_MODULES": str(NODE_MODULES)}
    printed = subprocess.run(
        [str(NODE), str(HERE / "client.mjs"), *arguments],
        env=environment,
        capture_output=True,
        timeout=2 * PATIENCE_S,
        text=True,
        check=True,
    )
    assert printed.stdout == f"{COUNT}\n", printed.stderr


@NIGHTLY
def test_the_own_tests_of_kafka_python(tmp_path: Path) -> None:
    """Those of consumers and producers, from its archive; not those of transactions."""
    pip = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*pip, f"kafka-python=={version('kafka-python')}"], cwd=tmp_path, check=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.glob("*/test")
    # Or it would be the standard library's.
    (folder / "__init__.py").touch()
    path = os.pathsep.join([str(folder.parent), str(HERE.parents[1]), *sys.path])
    ran = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "tests.kafka_clients.kafka_python_plugin",
            ),
            "test/integration/test_consumer_integration.py",
            "test/integration/test_producer_integration.py",
            *("-k", "not transactional"),
        ],
        cwd=folder.parent,
        env={**os.environ, "PYTHONPATH": path, "KAFKA_VERSION": "3.2"},
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
    )
    assert ran.returncode == 0, ran.stdout
    passed = re.search(r"(\d+) passed", ran.stdout)
    assert passed is not None and int(passed[1]) >= 25, ran.stdout


class Member:
    """A process that consumes, and what it has printed."""

    def __init__(self, client: str, address: str, name: str) -> None:
        arguments = [sys.executable, "-m", "tests.kafka_clients.member", client, address, name]
        self.process = subprocess.Popen(
            arguments,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.values: list[int] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            self.values.extend(map(int, lines))

    def end(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        self.process.wait(PATIENCE_S)
        self._thread.join()


def _shares(group: Group) -> dict[str, list[int]]:
    """Return the partitions of each member, by its client's id, as its assignment has them."""
    found = {}
    for member in group.members.values():
        data, numbers = member.assignment, []
        topics, at = unpack_from(">i", data, 2)[0], 6
        for _ in range(topics):
            at += 2 + unpack_from(">h", data, at)[0]
            count = unpack_from(">i", data, at)[0]
            numbers += list(unpack_from(f">{count}i", data, at + 4))
            at += 4 + 4 * count
        found[member.client_id] = numbers
    return found


class Mixed:
    """A group of several kinds of clients, and what they have consumed together."""

    def __init__(self, thread: BrokerThread) -> None:
        self._thread = thread
        self._producer = Producer({"bootstrap.servers": thread.address, "acks": "all"})
        self._sent = 0
        self._ended: Counter[int] = Counter()
        self.members: dict[str, Member] = {}

    def start(self, client: str, name: str) -> None:
        self.members[name] = Member(client, self._thread.address, name)

    def end(self, name: str, number: signal.Signals) -> None:
        member = self.members.pop(name)
        member.end(number)
        self._ended.update(member.values)

    def settle(self) -> int:
        """Wait for one generation of all members with disjoint partitions; return its number."""
        until(lambda: self._thread.call(self._is_settled))
        return self._thread.call(lambda it: it.coordinator.groups[GROUP].generation)

    def _is_settled(self, broker: KafkaBroker) -> bool:
        group = broker.coordinator.groups.get(GROUP)
        if group is None or group.state is not GroupState.STABLE or group.unsynced:
            return False
        shares = _shares(group)
        numbers = sorted(number for own in shares.values() for number in own)
        return shares.keys() == self.members.keys() and numbers == list(range(PARTITIONS))

    def consume(self, count: int) -> None:
        """Produce records, and wait until each was consumed and committed, once."""
        for number in range(self._sent, self._sent + count):
            self._producer.produce(TOPIC, b"%d" % number, partition=number % PARTITIONS)
        assert self._producer.flush(PATIENCE_S) == 0
        self._sent += count
        until(lambda: sum(self.counts().values()) >= self._sent)
        assert self.counts() == Counter(range(self._sent))
        until(lambda: self._thread.call(self._is_committed))

    def counts(self) -> Counter[int]:
        living = (value for member in self.members.values() for value in list(member.values))
        return self._ended + Counter(living)

    def _is_committed(self, broker: KafkaBroker) -> bool:
        offsets = broker.coordinator.offsets(GROUP)
        ends = [each.log.end_offset for each in broker.replica_manager.topics[TOPIC]]
        return all(offsets.get((TOPIC, at)) is not None for at in range(PARTITIONS)) and ends == [
            offsets[TOPIC, at].offset for at in range(PARTITIONS)
        ]


@contextmanager
def mixed(thread: BrokerThread) -> Iterator[Mixed]:
    """End every process."""
    group = Mixed(thread)
    try:
        yield group
    finally:
        for member in group.members.values():
            member.end(signal.SIGKILL)


def test_a_group_of_several_clients(broker: BrokerThread) -> None:
    """A kill -9, a late joiner, a leaver: one generation, disjoint partitions, each record once."""
    with mixed(broker) as group:
        group.start("confluent", "a")
        group.start("kafka-python", "b")
        group.start("aiokafka", "c")
        group.start("confluent", "d")
        before = group.settle()
        group.consume(240)
        group.start("kafka-python", "late")
        assert group.settle() > before
        group.consume(240)
        for name, number in (("c", signal.SIGKILL), ("a", signal.SIGTERM)):
            before = group.settle()
            group.end(name, number)
            assert group.settle() > before
            group.consume(240)


def test_a_cooperative_rebalance_takes_only_what_moves(broker: BrokerThread) -> None:
    """The first member goes on with the partitions that it keeps."""
    options = {
        "bootstrap.servers": broker.address,
        "group.id": "g",
        "partition.assignment.strategy": "cooperative-sticky",
        "heartbeat.interval.ms": 200,
        "session.timeout.ms": 6000,
    }
    revoked: list[int] = []
    first, second = Consumer(options), Consumer(options)
    first.subscribe(
        [TOPIC],
        on_revoke=lambda _, parts: revoked.extend(part.partition for part in parts),
    )
    until(lambda: first.poll(0.05) or len(first.assignment()) == PARTITIONS)
    second.subscribe([TOPIC])
    until(
        lambda: (
            first.poll(0.05)
            or second.poll(0.05)
            or (len(first.assignment()), len(second.assignment())) == (6, 6)
        )
    )
    assert sorted(revoked) == sorted(part.partition for part in second.assignment())
    first.close()
    second.close()
