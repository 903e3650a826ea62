"""Produce, Fetch, ListOffsets and InitProducerId."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from examples.kafka_broker.apis.api import Broker, Call, by_topic
from examples.kafka_broker.errors import ErrorCode
from examples.kafka_broker.log.delayed_operations import (
    Fetched,
    FetchPosition,
    FetchRequest,
    Produced,
)
from examples.kafka_broker.log.partition import TopicPartition
from examples.kafka_broker.wire.codec import BadRequest, milliseconds
from purgatory import DelayedOperation

_ACKS: Final = (-1, 0, 1)


def produce(broker: Broker, call: Call) -> DelayedOperation | None:
    """Append record batches."""
    request = call.request
    batches = {
        (topic.name, each.index): each.records
        for topic in request.topic_data
        for each in topic.partition_data
    }

    def respond(results: Mapping[TopicPartition, Produced]) -> None:
        if request.acks:
            found = [(name, _produced(name, result)) for name, result in results.items()]
            call.respond({"responses": by_topic(found, "name", "partition_responses")})
            return
        # The client expects no response: as in Kafka, it learns of an error by a new connection.
        if any(result.error for result in results.values()):
            raise BadRequest("a produce with acks=0 that failed")
        call.respond(None)

    error = ErrorCode.NONE
    if request.acks not in _ACKS:
        error = ErrorCode.INVALID_REQUIRED_ACKS
    elif getattr(request, "transactional_id", None) is not None:
        error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if error is not ErrorCode.NONE:
        respond({name: Produced(error) for name in batches})
        return None
    timeout_ms = milliseconds(request.timeout)
    return broker.replica_manager.produce(
        batches, acks=request.acks, timeout_ms=timeout_ms, respond=respond
    )


def _produced(name: TopicPartition, result: Produced) -> dict[str, Any]:
    return {
        "index": name[1],
        "error_code": result.error,
        "base_offset": result.base_offset,
        "log_start_offset": result.log_start_offset,
    }


def fetch(broker: Broker, call: Call) -> DelayedOperation | None:
    """Read record batches. There are no sessions: each response says so, as a full cache does."""
    request = call.request
    if getattr(request, "session_id", 0):
        call.respond({"error_code": ErrorCode.FETCH_SESSION_ID_NOT_FOUND})
        return None

    def respond(results: Mapping[TopicPartition, Fetched]) -> None:
        found = [(name, _fetched(name, result)) for name, result in results.items()]
        call.respond({"responses": by_topic(found, "topic", "partitions")})

    positions = {
        (topic.topic, each.partition): FetchPosition(
            each.fetch_offset,
            each.partition_max_bytes,
            getattr(each, "current_leader_epoch", -1),
        )
        for topic in request.topics
        for each in topic.partitions
    }
    return broker.replica_manager.fetch(
        FetchRequest(
            positions=positions,
            min_bytes=request.min_bytes,
            max_bytes=request.max_bytes,
            max_wait_ms=max(0, milliseconds(request.max_wait)),
        ),
        respond,
    )


def _fetched(name: TopicPartition, result: Fetched) -> dict[str, Any]:
    return {
        "partition_index": name[1],
        "error_code": result.error,
        "high_watermark": result.high_watermark,
        "last_stable_offset": result.high_watermark,
        "log_start_offset": result.log_start_offset,
        "records": result.records,
    }


def list_offsets(broker: Broker, call: Call) -> None:
    """Return the first or last offset, or that of a time, to the precision of a batch."""
    found = [
        ((topic.name, each.partition_index), _offset(broker, topic.name, each))
        for topic in call.request.topics
        for each in topic.partitions
    ]
    call.respond({"topics": by_topic(found, "name", "partitions")})


def _offset(broker: Broker, topic: str, asked: Any) -> dict[str, Any]:
    result: dict[str, Any] = {"partition_index": asked.partition_index}
    partition = broker.replica_manager.find((topic, asked.partition_index))
    if partition is None:
        return {**result, "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    error = partition.check_leader(getattr(asked, "current_leader_epoch", -1))
    if error is not ErrorCode.NONE:
        return {**result, "error_code": error}
    timestamp = -1
    match asked.timestamp:
        case -1:
            offset = partition.high_watermark
        case -2:
            offset = partition.log.start_offset
        case -3:
            offset, timestamp = partition.log.newest()
        case _:
            offset, timestamp = partition.log.offset_at(asked.timestamp, partition.high_watermark)
    return {
        **result,
        "offset": offset,
        "timestamp": timestamp,
        "leader_epoch": partition.leader_epoch,
    }


def init_producer_id(broker: Broker, call: Call) -> None:
    """Return an id for an idempotent producer; there are no transactions."""
    if call.request.transactional_id is not None:
        call.respond({"error_code": ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED})
        return
    call.respond({"producer_id": broker.new_producer_id(), "producer_epoch": 0})
