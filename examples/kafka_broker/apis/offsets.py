"""OffsetCommit and OffsetFetch."""

from __future__ import annotations

from typing import Any

from examples.kafka_broker.apis.api import Broker, Call, by_topic
from examples.kafka_broker.errors import ErrorCode
from examples.kafka_broker.groups.group import CommittedOffset

_NONE = CommittedOffset(-1)


def commit(broker: Broker, call: Call) -> None:
    """Store the positions of a group."""
    request = call.request
    offsets = {
        (topic.name, each.partition_index): CommittedOffset(
            each.committed_offset,
            getattr(each, "committed_leader_epoch", -1),
            each.committed_metadata or "",
        )
        for topic in request.topics
        for each in topic.partitions
    }
    errors = broker.coordinator.commit(
        request.group_id,
        request.member_id,
        request.generation_id_or_member_epoch,
        {name: each for name, each in offsets.items() if broker.replica_manager.find(name)},
        getattr(request, "group_instance_id", None),
    )
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    found = [
        (name, {"partition_index": name[1], "error_code": errors.get(name, unknown)})
        for name in offsets
    ]
    call.respond({"topics": by_topic(found, "name", "partitions")})


def fetch(broker: Broker, call: Call) -> None:
    """Return the positions of a group; from version 8 on, of several."""
    if call.version >= 8:
        groups = [
            {"group_id": each.group_id, "topics": _topics(broker, each.group_id, each.topics)}
            for each in call.request.groups
        ]
        call.respond({"groups": groups})
        return
    call.respond({"topics": _topics(broker, call.request.group_id, call.request.topics)})


def _topics(broker: Broker, group_id: str, asked: Any) -> list[dict[str, Any]]:
    offsets = broker.coordinator.offsets(group_id)
    names = list(offsets)
    if asked is not None:
        names = [(topic.name, number) for topic in asked for number in topic.partition_indexes]
    found = [(name, _position(name, offsets.get(name, _NONE))) for name in names]
    return by_topic(found, "name", "partitions")


def _position(name: tuple[str, int], committed: CommittedOffset) -> dict[str, Any]:
    return {
        "partition_index": name[1],
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
    }
