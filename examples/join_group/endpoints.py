"""The endpoints of the coordinator."""

# No postponed annotations here: FastAPI reads those of the endpoints, which use local names.
# Every endpoint and dependency is `async def`, because FastAPI runs others in threads, and a
# purgatory belongs to the thread of its event loop.
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request
from starlette.exceptions import HTTPException

from examples.join_group import errors
from examples.join_group.checks import draining
from examples.join_group.coordinator import Coordinator
from examples.join_group.problems import KINDS, PREFIX, problem_responses
from examples.join_group.reply import Reply, ResponseBody
from examples.join_group.schemas import (
    GroupDescription,
    GroupId,
    HeartbeatRequest,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    ProblemKind,
    SyncRequest,
    SyncResponse,
)
from purgatory.fastapi import ParkDep


async def get_coordinator(request: Request) -> Coordinator:
    """Return the coordinator of the application. For `Depends`."""
    coordinator = request.app.state.coordinator
    assert isinstance(coordinator, Coordinator)
    return coordinator


CoordinatorDep = Annotated[Coordinator, Depends(get_coordinator)]
GroupPath = Annotated[GroupId, Path(description="A group is created by its first member.")]

router = APIRouter(prefix="/groups", tags=["groups"])

ELSEWHERE = (errors.CoordinatorDraining, errors.NotCoordinator, errors.CoordinatorNotAvailable)
STALE = (errors.UnknownMemberId, errors.IllegalGeneration, errors.RebalanceInProgress)


@router.post(
    "/{group_id}/join",
    responses=problem_responses(
        errors.UnknownMemberId,
        errors.InconsistentGroupProtocol,
        errors.GroupFull,
        errors.JoinSuperseded,
        errors.InvalidSessionTimeout,
        errors.InvalidRebalanceTimeout,
        errors.TooManyGroups,
        *ELSEWHERE,
    ),
)
async def join(
    group_id: GroupPath, body: JoinRequest, coordinator: CoordinatorDep, park: ParkDep
) -> JoinResponse:
    """Join, or join again: parks until every member has joined, up to the rebalance timeout.

    Set the client's read timeout above that. If a proxy closes the request earlier, a known member
    has to repeat it, and a new member loses its place.
    """
    reply = await coordinator.as_owner(
        group_id, lambda: coordinator.join(group_id, body), creates=True
    )
    return await _completed(reply, coordinator, park)


@router.post(
    "/{group_id}/sync",
    responses=problem_responses(
        *STALE,
        errors.JoinSuperseded,
        errors.NotLeader,
        errors.InvalidAssignment,
        *ELSEWHERE,
    ),
)
async def sync(
    group_id: GroupPath, body: SyncRequest, coordinator: CoordinatorDep, park: ParkDep
) -> SyncResponse:
    """Return the member's partitions: parks until the leader has assigned them."""
    reply = await coordinator.as_owner(group_id, lambda: coordinator.sync(group_id, body))
    return await _completed(reply, coordinator, park)


@router.post(
    "/{group_id}/heartbeat",
    status_code=204,
    responses=problem_responses(*STALE, *ELSEWHERE),
)
async def heartbeat(
    group_id: GroupPath, body: HeartbeatRequest, coordinator: CoordinatorDep
) -> None:
    """Renew the member's session; an error says what it has missed."""
    await coordinator.as_owner(group_id, lambda: coordinator.heartbeat(group_id, body))


@router.post(
    "/{group_id}/leave",
    status_code=204,
    responses=problem_responses(errors.UnknownMemberId, *ELSEWHERE),
)
async def leave(group_id: GroupPath, body: LeaveRequest, coordinator: CoordinatorDep) -> None:
    """Leave the group: the others rebalance immediately, without waiting for a session timeout."""
    await coordinator.as_owner(group_id, lambda: coordinator.leave(group_id, body))


@router.get("/problems/{slug}", responses={404: {"description": "Unknown kind of problem."}})
async def describe_problem(slug: str) -> ProblemKind:
    """Describe a kind of problem and its remedy."""
    kind = KINDS.get(slug)
    if kind is None:
        raise HTTPException(404)
    return ProblemKind(
        type=f"{PREFIX}/{slug}", title=kind.title(), status=kind.status, remedy=kind.remedy
    )


@router.get("/{group_id}", responses=problem_responses(errors.UnknownGroup, *ELSEWHERE))
async def describe(group_id: GroupPath, coordinator: CoordinatorDep) -> GroupDescription:
    """Return the group: its state, its generation, its members and their partitions."""
    return await coordinator.as_owner(group_id, lambda: coordinator.describe(group_id))


async def _completed(
    reply: Reply[ResponseBody], coordinator: Coordinator, park: ParkDep
) -> ResponseBody:
    """Park the request until `reply` is complete; withdraw it from the coordinator at the end.

    The group's operation completes it by its own deadline; the timeout here is a safeguard.
    """
    try:
        if not reply.is_complete():
            timeout = 2 * coordinator.settings.max_rebalance_timeout
            await park(reply.key, timeout=timeout, until=reply.is_complete)
    except HTTPException as exc:  # Starlette's: the base of FastAPI's and of Problem
        # One kind of error during a drain, for parked and for new requests.
        if coordinator.purgatory.is_draining:
            raise draining() from exc
        raise
    finally:
        coordinator.withdraw(reply)
    return reply.result()
