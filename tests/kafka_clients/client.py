"""A client as a process: `python -m tests.kafka_clients.client CLIENT ADDRESS NAME OPTIONS`.

First it produces as many records with acks=all as the options say. Then it is a member of a group:
it prints the value of each record once it has committed its position, and leaves at SIGTERM.
`client.mjs` is the same for the clients of npm.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

TOPIC = "orders"

_stopping = False


@dataclass(kw_only=True)
class Options:
    """What the members of a test have differently."""

    produce: int = 0
    group: str = "g"
    strategy: str = "roundrobin"
    instance: str | None = None
    session_ms: int = 6_000
    max_wait_ms: int = 500
    min_bytes: int = 1


def _stop(*args: object) -> None:
    global _stopping
    _stopping = True


def confluent(address: str, name: str, options: Options) -> Iterator[list[bytes]]:
    """Librdkafka."""
    from confluent_kafka import Consumer, Producer

    failed: list[Any] = []

    def note(error: Any, message: object) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer(
        {"bootstrap.servers": address, "acks": "all", "enable.idempotence": True, "linger.ms": 5}
    )
    for number in range(options.produce):
        producer.produce(TOPIC, b"%d" % number, on_delivery=note)
        producer.poll(0)
    assert (producer.flush(), failed) == (0, [])
    settings: dict[str, Any] = {
        "bootstrap.servers": address,
        "client.id": name,
        "group.id": options.group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": options.session_ms,
        "heartbeat.interval.ms": 500,
        "fetch.wait.max.ms": options.max_wait_ms,
        "fetch.min.bytes": options.min_bytes,
        "partition.assignment.strategy": options.strategy,
    }
    if options.instance is not None:
        settings["group.instance.id"] = options.instance
    consumer = Consumer(settings)
    consumer.subscribe([TOPIC])
    while not _stopping:
        found = [each for each in consumer.consume(1_000, 0.2) if not each.error()]
        if found:
            consumer.commit(asynchronous=False)
        yield [each.value() or b"" for each in found]
    consumer.close()


def _in_common(address: str, name: str, options: Options) -> dict[str, Any]:
    """Return the settings that the two clients in Python have in common."""
    return {
        "bootstrap_servers": address,
        "client_id": name,
        "group_id": options.group,
        "group_instance_id": options.instance,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": options.session_ms,
        "heartbeat_interval_ms": 500,
        "fetch_max_wait_ms": options.max_wait_ms,
        "fetch_min_bytes": options.min_bytes,
    }


def kafka_python(address: str, name: str, options: Options) -> Iterator[list[bytes]]:
    """Pure Python, with threads."""
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    producer = KafkaProducer(bootstrap_servers=address, acks="all", enable_idempotence=True)
    sent = [producer.send(TOPIC, b"%d" % number) for number in range(options.produce)]
    producer.flush()
    assert all(each.succeeded() for each in sent)
    producer.close()
    assignors = (RoundRobinPartitionAssignor, CooperativeStickyAssignor)
    consumer = KafkaConsumer(
        TOPIC,
        **_in_common(address, name, options),
        partition_assignment_strategy=[it for it in assignors if it.name == options.strategy],
    )
    while not _stopping:
        found = [each for part in consumer.poll(200).values() for each in part]
        if found:
            consumer.commit()
        yield [each.value for each in found]
    consumer.close()


async def aiokafka(address: str, name: str, options: Options) -> None:
    """On asyncio."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    async with AIOKafkaProducer(
        bootstrap_servers=address, acks="all", enable_idempotence=True
    ) as producer:
        sent = [await producer.send(TOPIC, b"%d" % number) for number in range(options.produce)]
        await asyncio.gather(*sent)
    consumer = AIOKafkaConsumer(
        TOPIC,
        **_in_common(address, name, options),
        partition_assignment_strategy=[RoundRobinPartitionAssignor],
    )
    await consumer.start()
    while not _stopping:
        polled = await consumer.getmany(timeout_ms=200)
        found = [each for part in polled.values() for each in part]
        if found:
            await consumer.commit()
        _show([each.value for each in found])
    await consumer.stop()


def _show(values: list[Any]) -> None:
    """Print what was consumed, at once."""
    for value in values:
        sys.stdout.write(value.decode() + "\n")
    sys.stdout.flush()


def main() -> None:
    """Produce, and consume until SIGTERM."""
    client, address, name, text = sys.argv[1:]
    options = Options(**json.loads(text))
    signal.signal(signal.SIGTERM, _stop)
    if client == "aiokafka":
        asyncio.run(aiokafka(address, name, options))
        return
    consume = {"confluent": confluent, "kafka-python": kafka_python}[client]
    for values in consume(address, name, options):
        _show(values)


if __name__ == "__main__":
    main()
