"""FindCoordinator; JoinGroup, SyncGroup, Heartbeat and LeaveGroup; reading and deleting groups."""

from __future__ import annotations

from typing import Any, Final

from examples.kafka_broker.apis.api import Broker, Call
from examples.kafka_broker.errors import ErrorCode
from examples.kafka_broker.groups.group import (
    Group,
    GroupState,
    JoinRequest,
    JoinResult,
    SyncRequest,
    SyncResult,
)
from examples.kafka_broker.log.partition import BROKER_ID
from examples.kafka_broker.wire.codec import milliseconds

_GROUP: Final = 0
# From this version on, a new member joins twice (KIP-394).
_KNOWN_ID_VERSION: Final = 4
_SKIP_VERSION: Final = 9


def find_coordinator(broker: Broker, call: Call) -> None:
    """Return this broker, for groups; there are no transactions."""
    error = ErrorCode.NONE
    if getattr(call.request, "key_type", _GROUP) != _GROUP:
        error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    found = {
        "error_code": error,
        "node_id": BROKER_ID,
        "host": broker.host,
        "port": broker.port,
    }
    keys = getattr(call.request, "coordinator_keys", ())
    call.respond({**found, "coordinators": [{"key": key, **found} for key in keys]})


def join(broker: Broker, call: Call) -> None:
    """Join a group: the response comes when all its members have joined."""
    request = call.request
    session_ms = milliseconds(request.session_timeout)
    rebalance_ms = session_ms
    if call.version >= 1:
        rebalance_ms = milliseconds(request.rebalance_timeout)

    def respond(result: JoinResult) -> None:
        # Before version 7 it may not be null.
        protocol = result.protocol if call.version >= 7 else result.protocol or ""
        call.respond(
            {
                "error_code": result.error,
                "generation_id": result.generation,
                "protocol_type": result.protocol_type,
                "protocol_name": protocol,
                "leader": result.leader_id,
                "skip_assignment": result.skip_assignment,
                "member_id": result.member_id,
                "members": [
                    {"member_id": member, "group_instance_id": instance, "metadata": metadata}
                    for member, instance, metadata in result.members
                ],
            }
        )

    broker.coordinator.join(
        JoinRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            instance_id=getattr(request, "group_instance_id", None),
            client_id=call.client_id,
            client_host=call.client_host,
            protocol_type=request.protocol_type,
            protocols=[(each.name, each.metadata) for each in request.protocols],
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            requires_known_id=call.version >= _KNOWN_ID_VERSION,
            can_skip_assignment=call.version >= _SKIP_VERSION,
        ),
        respond,
    )


def sync(broker: Broker, call: Call) -> None:
    """Return the assignment of a member, once the leader has brought it."""
    request = call.request

    def respond(result: SyncResult) -> None:
        call.respond(
            {
                "error_code": result.error,
                "protocol_type": result.protocol_type,
                "protocol_name": result.protocol,
                "assignment": result.assignment,
            }
        )

    broker.coordinator.sync(
        SyncRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            generation=request.generation_id,
            instance_id=getattr(request, "group_instance_id", None),
            protocol_type=getattr(request, "protocol_type", None),
            protocol=getattr(request, "protocol_name", None),
            assignments={each.member_id: each.assignment for each in request.assignments},
        ),
        respond,
    )


def heartbeat(broker: Broker, call: Call) -> None:
    """Renew the session of a member."""
    request = call.request
    error = broker.coordinator.heartbeat(
        request.group_id,
        request.member_id,
        request.generation_id,
        getattr(request, "group_instance_id", None),
    )
    call.respond({"error_code": error})


def leave(broker: Broker, call: Call) -> None:
    """Remove members: before version 3 one, then any number (KIP-345)."""
    request = call.request
    if call.version < 3:
        call.respond({"error_code": broker.coordinator.leave(request.group_id, request.member_id)})
        return
    results = [
        {
            "member_id": each.member_id,
            "group_instance_id": each.group_instance_id,
            "error_code": broker.coordinator.leave(
                request.group_id, each.member_id, each.group_instance_id
            ),
        }
        for each in request.members
    ]
    call.respond({"members": results})


def describe(broker: Broker, call: Call) -> None:
    """Return the state and the members of groups."""
    groups = broker.coordinator.groups
    described = [
        {"group_id": name, **_description(groups.get(name))} for name in call.request.groups
    ]
    call.respond({"groups": described})


def _description(group: Group | None) -> dict[str, Any]:
    if group is None:
        return {"group_state": GroupState.DEAD.value}
    is_stable = group.state is GroupState.STABLE
    return {
        "group_state": group.state.value,
        "protocol_type": group.protocol_type or "",
        "protocol_data": (group.protocol or "") if is_stable else "",
        "members": [
            {
                "member_id": each.member_id,
                "group_instance_id": each.instance_id,
                "client_id": each.client_id,
                "client_host": each.client_host,
                "member_metadata": each.protocols.get(group.protocol or "", b""),
                "member_assignment": each.assignment if is_stable else b"",
            }
            for each in group.members.values()
        ],
    }


def list_groups(broker: Broker, call: Call) -> None:
    """Return all groups, or those in some states."""
    states = getattr(call.request, "states_filter", ())
    call.respond(
        {
            "groups": [
                {
                    "group_id": group.group_id,
                    "protocol_type": group.protocol_type or "",
                    "group_state": group.state.value,
                    "group_type": "classic",
                }
                for group in broker.coordinator.groups.values()
                if not states or group.state.value in states
            ]
        }
    )


def delete(broker: Broker, call: Call) -> None:
    """Delete groups that have no members."""
    results = [
        {"group_id": name, "error_code": broker.coordinator.delete(name)}
        for name in call.request.groups_names
    ]
    call.respond({"results": results})
