"""A member of a group as a process: `python -m tests.kafka_clients.member CLIENT ADDRESS NAME`.

It prints the value of each record once it has committed its position, and leaves at SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from typing import Any

SESSION_MS = 6_000
TOPIC = "orders"
GROUP = "mixed"

_stopping = False


def _stop(*args: object) -> None:
    global _stopping
    _stopping = True


def confluent(address: str, name: str) -> Iterator[list[bytes]]:
    """Librdkafka."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "client.id": name,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 500,
            "partition.assignment.strategy": "roundrobin",
        }
    )
    consumer.subscribe([TOPIC])
    while not _stopping:
        found = [each for each in consumer.consume(100, 0.2) if not each.error()]
        if found:
            consumer.commit(asynchronous=False)
        yield [each.value() or b"" for each in found]
    consumer.close()


def options(address: str, name: str) -> dict[str, Any]:
    """The settings that the two clients in Python have in common."""
    return {
        "bootstrap_servers": address,
        "client_id": name,
        "group_id": GROUP,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": SESSION_MS,
        "heartbeat_interval_ms": 500,
    }


def kafka_python(address: str, name: str) -> Iterator[list[bytes]]:
    """Pure Python, with threads."""
    from kafka import KafkaConsumer
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    consumer = KafkaConsumer(
        TOPIC, **options(address, name), partition_assignment_strategy=[RoundRobinPartitionAssignor]
    )
    while not _stopping:
        found = [each for part in consumer.poll(200).values() for each in part]
        if found:
            consumer.commit()
        yield [each.value for each in found]
    consumer.close()


async def aiokafka(address: str, name: str) -> None:
    """On asyncio."""
    from aiokafka import AIOKafkaConsumer
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    consumer = AIOKafkaConsumer(
        TOPIC, **options(address, name), partition_assignment_strategy=[RoundRobinPartitionAssignor]
    )
    await consumer.start()
    while not _stopping:
        polled = await consumer.getmany(timeout_ms=200)
        found = [each for part in polled.values() for each in part]
        if found:
            await consumer.commit()
        show([each.value for each in found])
    await consumer.stop()


def show(values: list[Any]) -> None:
    """Print what was consumed, at once."""
    for value in values:
        sys.stdout.write(value.decode() + "\n")
    sys.stdout.flush()


def main() -> None:
    """Consume until SIGTERM."""
    client, address, name = sys.argv[1:]
    signal.signal(signal.SIGTERM, _stop)
    if client == "aiokafka":
        asyncio.run(aiokafka(address, name))
        return
    for values in {"confluent": confluent, "kafka-python": kafka_python}[client](address, name):
        show(values)


if __name__ == "__main__":
    main()
