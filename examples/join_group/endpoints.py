"""The endpoints of the coordinator."""

# No postponed annotations here: FastAPI reads those of the endpoints, which name local things.
# Every endpoint and dependency is `async def`, awaiting or not: FastAPI runs others in threads, and
# a purgatory belongs to the thread of its event loop.
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request
from starlette.exceptions import HTTPException

from examples.join_group import errors
from examples.join_group.checks import draining
from examples.join_group.coordinator import Coordinator
from examples.join_group.problems import KINDS, PREFIX, refusals
from examples.join_group.reply import Answer, Reply
from examples.join_group.schemas import (
    GroupDescription,
    GroupId,
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    LeaveRequest,
    ProblemKind,
    SyncAnswer,
    SyncRequest,
)
from purgatory.fastapi import ParkDep


async def get_coordinator(request: Request) -> Coordinator:
    """Return the coordinator of the application. For `Depends`."""
    coordinator = request.app.state.coordinator
    assert isinstance(coordinator, Coordinator)
    return coordinator


CoordinatorDep = Annotated[Coordinator, Depends(get_coordinator)]
GroupPath = Annotated[GroupId, Path(description="It begins to exist with its first member.")]

router = APIRouter(prefix="/groups", tags=["groups"])

STALE = (errors.UnknownMemberId, errors.IllegalGeneration, errors.RebalanceInProgress)


@router.post(
    "/{group_id}/join",
    responses=refusals(
        errors.UnknownMemberId,
        errors.InconsistentGroupProtocol,
        errors.GroupFull,
        errors.JoinSuperseded,
        errors.InvalidSessionTimeout,
        errors.InvalidRebalanceTimeout,
        errors.TooManyGroups,
        errors.CoordinatorDraining,
    ),
)
async def join(
    group_id: GroupPath, body: JoinRequest, coordinator: CoordinatorDep, park: ParkDep
) -> JoinAnswer:
    """Join, or join again: parks until every member has, at most for the rebalance timeout.

    Set the client's read timeout above that. A proxy that cuts the wait short costs a known member
    a repeated request, and a new one its place.
    """
    return await _answered(coordinator.join(group_id, body), coordinator, park)


@router.post(
    "/{group_id}/sync",
    responses=refusals(
        *STALE,
        errors.JoinSuperseded,
        errors.NotLeader,
        errors.InvalidAssignment,
        errors.CoordinatorDraining,
    ),
)
async def sync(
    group_id: GroupPath, body: SyncRequest, coordinator: CoordinatorDep, park: ParkDep
) -> SyncAnswer:
    """Ask for the member's partitions: parks until the leader has assigned them."""
    return await _answered(coordinator.sync(group_id, body), coordinator, park)


@router.post(
    "/{group_id}/heartbeat",
    status_code=204,
    responses=refusals(*STALE, errors.CoordinatorDraining),
)
async def heartbeat(
    group_id: GroupPath, body: HeartbeatRequest, coordinator: CoordinatorDep
) -> None:
    """Say that the member is alive; the refusals say what it has missed."""
    coordinator.heartbeat(group_id, body)


@router.post(
    "/{group_id}/leave",
    status_code=204,
    responses=refusals(errors.UnknownMemberId, errors.CoordinatorDraining),
)
async def leave(group_id: GroupPath, body: LeaveRequest, coordinator: CoordinatorDep) -> None:
    """Leave the group: the others share the partitions anew, without waiting for a session."""
    coordinator.leave(group_id, body)


@router.get("/problems/{slug}", responses={404: {"description": "There is no such kind."}})
async def describe_problem(slug: str) -> ProblemKind:
    """Say what a kind of problem means, and what to do about it."""
    kind = KINDS.get(slug)
    if kind is None:
        raise HTTPException(404)
    return ProblemKind(
        type=f"{PREFIX}/{slug}", title=kind.title(), status=kind.status, remedy=kind.remedy
    )


@router.get("/{group_id}", responses=refusals(errors.UnknownGroup))
async def describe(group_id: GroupPath, coordinator: CoordinatorDep) -> GroupDescription:
    """Describe the group: its state, its generation, its members and their partitions."""
    return coordinator.describe(group_id)


async def _answered(reply: Reply[Answer], coordinator: Coordinator, park: ParkDep) -> Answer:
    """Park the request until `reply` is answered; tell the coordinator where that fails.

    The operation of the group has a deadline and answers by it; the one here is only a net.
    """
    try:
        if not reply.is_answered():
            timeout = 2 * coordinator.settings.max_rebalance_timeout
            await park(reply.key, timeout=timeout, until=reply.is_answered)
    except HTTPException as exc:  # Starlette's, which FastAPI's and the library's Problem are
        # One kind for all who meet a drain, whether they were parked or came later.
        if coordinator.purgatory.is_draining:
            raise draining() from exc
        raise
    finally:
        coordinator.withdraw(reply)
    return reply.result()
