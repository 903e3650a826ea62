"""Metadata, CreateTopics and DeleteTopics."""

from __future__ import annotations

import re
from typing import Any, Final

from examples.kafka_broker.apis.api import Broker, Call
from examples.kafka_broker.errors import ErrorCode
from examples.kafka_broker.log.partition import BROKER_ID, Partition

CLUSTER_ID: Final = "purgatory"
# Of one request, as in Kafka (ReplicationControlManager.MAX_PARTITIONS_PER_BATCH).
_MAX_NEW_PARTITIONS: Final = 10_000
_NAME: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")


def metadata(broker: Broker, call: Call) -> None:
    """Return this broker and the topics; create those that are missing, if that is allowed."""
    request, topics = call.request, broker.replica_manager.topics
    names = None if request.topics is None else [each.name for each in request.topics]
    if names is None or (not names and call.version == 0):
        names = list(topics)
    if getattr(request, "allow_auto_topic_creation", True):
        missing = [name for name in names if name not in topics and _NAME.fullmatch(name)]
        # The client asks again for those that are still unknown.
        for name in dict.fromkeys(missing[:_MAX_NEW_PARTITIONS]):
            broker.create_topic(name)
    call.respond(
        {
            "brokers": [{"node_id": BROKER_ID, "host": broker.host, "port": broker.port}],
            "cluster_id": CLUSTER_ID,
            "controller_id": BROKER_ID,
            "topics": [_topic(broker, name) for name in names],
        }
    )


def _topic(broker: Broker, name: str) -> dict[str, Any]:
    partitions = broker.replica_manager.topics.get(name)
    if partitions is None:
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        error = unknown if _NAME.fullmatch(name) else ErrorCode.INVALID_TOPIC_EXCEPTION
        return {"name": name, "error_code": error}
    return {
        "name": name,
        "partitions": [_partition(number, each) for number, each in enumerate(partitions)],
    }


def _partition(number: int, partition: Partition) -> dict[str, Any]:
    return {
        "partition_index": number,
        "leader_id": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": [BROKER_ID, *partition.replicas],
        "isr_nodes": sorted(partition.isr),
    }


def create(broker: Broker, call: Call) -> None:
    """Create topics; every one has the replicas and settings of the broker."""
    results = []
    replicas = broker.replica_manager.settings.replicas
    counts = [
        len(topic.assignments) or (1 if topic.num_partitions == -1 else topic.num_partitions)
        for topic in call.request.topics
    ]
    is_too_large = sum(max(0, count) for count in counts) > _MAX_NEW_PARTITIONS
    for topic, count in zip(call.request.topics, counts, strict=True):
        error = ErrorCode.NONE
        if is_too_large:
            error = ErrorCode.POLICY_VIOLATION
        elif not _NAME.fullmatch(topic.name):
            error = ErrorCode.INVALID_TOPIC_EXCEPTION
        elif topic.name in broker.replica_manager.topics:
            error = ErrorCode.TOPIC_ALREADY_EXISTS
        elif count < 1:
            error = ErrorCode.INVALID_PARTITIONS
        elif topic.replication_factor > replicas:
            error = ErrorCode.INVALID_REPLICATION_FACTOR
        elif not call.request.validate_only:
            broker.replica_manager.create_topic(topic.name, count)
        results.append(
            {
                "name": topic.name,
                "error_code": error,
                "num_partitions": count,
                "replication_factor": replicas,
                "configs": [],
            }
        )
    call.respond({"topics": results})


def delete(broker: Broker, call: Call) -> None:
    """Delete topics, and what groups have committed for them."""
    results = []
    for name in call.request.topic_names:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if name in broker.replica_manager.topics:
            error = ErrorCode.NONE
            broker.replica_manager.delete_topic(name)
            broker.coordinator.forget_topic(name)
        results.append({"name": name, "error_code": error})
    call.respond({"responses": results})
