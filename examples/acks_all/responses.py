"""HTTP requests and responses as values of the replica manager, and back."""

from __future__ import annotations

from starlette.responses import Response

from examples.acks_all.delayed_fetch import FetchResults
from examples.acks_all.delayed_produce import ProduceResults
from examples.acks_all.errors import BrokerError
from examples.acks_all.fetch_request import FetchedPartition, FetchPosition, FetchRequest
from examples.acks_all.partition import Partition
from examples.acks_all.problems import partitions_response, problem
from examples.acks_all.produce_status import ProduceStatus
from examples.acks_all.replica_manager import ReplicaManager
from examples.acks_all.schemas import (
    FetchBody,
    Fetched,
    FetchedRecord,
    PartitionState,
    Problem,
    Produced,
)
from examples.acks_all.topic_partition import TopicPartition


def fetch_request(body: FetchBody) -> FetchRequest:
    """Return the fetch request in a body."""
    return FetchRequest(
        positions={
            entry.topic_partition: FetchPosition(entry.offset, entry.max_bytes, entry.leader_epoch)
            for entry in body.partitions
        },
        min_bytes=body.min_bytes,
        max_bytes=body.max_bytes,
        max_wait_ms=body.max_wait_ms,
        replica_id=body.replica_id,
    )


def produce_response(results_by_partition: ProduceResults, instance: str) -> Response:
    """Return a response with one status per partition."""
    results = [_produced(name, status) for name, status in results_by_partition.items()]
    return partitions_response(
        results, [status.error for status in results_by_partition.values()], instance
    )


def fetch_response(answer: FetchResults, instance: str) -> Response:
    """Return a response with one result per partition."""
    results = [_fetched(name, fetched) for name, fetched in answer.items()]
    return partitions_response(results, [fetched.error for fetched in answer.values()], instance)


def partition_state(partition: Partition, manager: ReplicaManager) -> PartitionState:
    """Return the state of a partition on this broker."""
    name = partition.topic_partition
    return PartitionState(
        topic=name.topic,
        partition=name.partition,
        leader=partition.leader,
        is_leader=partition.leader == manager.config.broker_id,
        leader_epoch=partition.leader_epoch,
        epoch_start_offset=partition.epoch_start_offset,
        isr=sorted(partition.isr),
        log_start_offset=partition.log.start_offset,
        high_watermark=partition.high_watermark,
        log_end_offset=partition.log.end_offset,
        follower_end_offsets={
            replica_id: replica.log_end_offset for replica_id, replica in partition.replicas.items()
        },
        is_offline=partition.is_offline,
        waiting_produces=manager.purgatory.waiting(name.produce_key),
        waiting_fetches=manager.purgatory.waiting(name.fetch_key),
    )


def _produced(name: TopicPartition, status: ProduceStatus) -> Produced:
    return Produced(
        topic=name.topic,
        partition=name.partition,
        error=_problem(status.error),
        base_offset=status.base_offset,
    )


def _fetched(name: TopicPartition, fetched: FetchedPartition) -> Fetched:
    return Fetched(
        topic=name.topic,
        partition=name.partition,
        error=_problem(fetched.error),
        records=[
            FetchedRecord(
                offset=record.offset, leader_epoch=record.leader_epoch, value=record.value
            )
            for record in fetched.records
        ],
        high_watermark=fetched.high_watermark,
        log_start_offset=fetched.log_start_offset,
        leader_epoch=fetched.leader_epoch,
    )


def _problem(error: BrokerError | None) -> Problem | None:
    return None if error is None else Problem.model_validate(problem(error))
