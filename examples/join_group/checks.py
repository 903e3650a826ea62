"""Validation of requests against the settings and the state of the group."""

from __future__ import annotations

from examples.join_group.errors import (
    CoordinatorDraining,
    CoordinatorNotAvailable,
    IllegalGeneration,
    InvalidAssignment,
    InvalidRebalanceTimeout,
    InvalidSessionTimeout,
    NotCoordinator,
    NotLeader,
    RebalanceInProgress,
)
from examples.join_group.group import Group
from examples.join_group.member import Member
from examples.join_group.schemas import HeartbeatRequest, JoinRequest, SyncRequest
from examples.join_group.settings import CoordinatorSettings
from examples.join_group.state_table import GroupState


def check_timeouts(settings: CoordinatorSettings, request: JoinRequest) -> None:
    """Raise InvalidSessionTimeout or InvalidRebalanceTimeout for values outside the limits."""
    minimum, maximum = settings.min_session_timeout, settings.max_session_timeout
    if not minimum <= request.session_timeout <= maximum:
        raise InvalidSessionTimeout(
            f"session_timeout is {request.session_timeout:g}: give {minimum:g} to {maximum:g} "
            "seconds",
            members={"minimum": minimum, "maximum": maximum},
        )
    if not 0 < request.rebalance_timeout <= settings.max_rebalance_timeout:
        raise InvalidRebalanceTimeout(
            f"rebalance_timeout is {request.rebalance_timeout:g}: give more than 0 and at most "
            f"{settings.max_rebalance_timeout:g} seconds",
            members={"maximum": settings.max_rebalance_timeout},
        )


def check_alive(group: Group) -> None:
    """Raise CoordinatorNotAvailable while what is stored of an expired group is being removed."""
    if group.state is GroupState.DEAD:
        raise CoordinatorNotAvailable(
            f"group {group.group_id} has just expired: repeat the request, which makes a new group",
            headers={"Retry-After": "1"},
        )


def check_generation(group: Group, request: SyncRequest | HeartbeatRequest) -> None:
    """Raise IllegalGeneration unless the request has the group's generation."""
    if request.generation != group.generation:
        raise IllegalGeneration(
            f"generation {request.generation}: group {group.group_id} is at generation "
            f"{group.generation}; join again with the same member_id",
            members={"generation": group.generation},
        )


def check_assignments(group: Group, member: Member, request: SyncRequest) -> None:
    """Raise NotLeader or InvalidAssignment unless the leader alone assigns to members."""
    if member.member_id != group.leader_id:
        _check_follower(group, member, request)
    elif request.assignments is None:
        raise InvalidAssignment(
            f"{member.member_id} leads generation {group.generation}: sync with assignments"
        )
    elif unknown := sorted(request.assignments.keys() - group.members.keys()):
        raise InvalidAssignment(
            f"{len(unknown)} of the assignments are to unknown members, such as {unknown[0]}: "
            f"assign to the {len(group.members)} members of generation {group.generation}"
        )


def rebalance_in_progress(group: Group) -> RebalanceInProgress:
    """Return the error for a group that is waiting for its members to join."""
    return RebalanceInProgress(
        f"group {group.group_id} is rebalancing for generation {group.generation + 1}: join "
        f"again with the same member_id within {group.rebalance_timeout:g} seconds"
    )


def not_coordinator(group: Group) -> NotCoordinator:
    """Return the error for a request that was parked when this worker lost its group."""
    return NotCoordinator(
        f"another worker may own group {group.group_id}, since this one could not renew its lease "
        f"with epoch {group.epoch}: join again at any worker, with the same member_id",
        headers={"Retry-After": "1"},
    )


def draining() -> CoordinatorDraining:
    """Return the error for a coordinator that is shutting down."""
    return CoordinatorDraining(
        "this coordinator is shutting down: join again at its successor",
        headers={"Connection": "close"},
    )


def _check_follower(group: Group, member: Member, request: SyncRequest) -> None:
    if request.assignments is not None:
        raise NotLeader(
            f"{group.leader_id} leads generation {group.generation}, not {member.member_id}: sync "
            "without assignments"
        )
