"""The coordinator as a service: `uvicorn --factory examples.join_group.app:create_app`."""

# No postponed annotations here: FastAPI reads those of the endpoints, which use local names.
# Every endpoint and dependency is `async def`, because FastAPI runs others in threads, and a
# purgatory belongs to the thread of its event loop.
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Annotated, Any, Final, Generic, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Path, Request
from fastapi.responses import JSONResponse, RedirectResponse
from starlette.exceptions import HTTPException

from examples.join_group.owned_coordinator import OwnedCoordinator
from examples.join_group.schemas import (
    KINDS,
    MAX_BODY_BYTES,
    GroupDescription,
    GroupError,
    GroupId,
    HeartbeatBody,
    JoinBody,
    JoinResponse,
    LeaveBody,
    MemberDescription,
    MemberMetadata,
    OwnedElsewhere,
    ProblemKind,
    ProblemResponse,
    SyncBody,
    SyncResponse,
    partitions_of,
)
from examples.join_group.settings import CoordinatorSettings
from examples.kafka_broker.errors import ErrorCode
from examples.kafka_broker.groups.coordinator import Coordinator
from examples.kafka_broker.groups.group import (
    GroupState,
    JoinRequest,
    JoinResult,
    SyncRequest,
    SyncResult,
)
from purgatory import Limits, Purgatory
from purgatory.fastapi import ALLOW_ANYONE, ParkDep, install
from purgatory.ownership import LeaseStore, Ownership

PREFIX: Final = "/groups/problems"
# The coordinator ends each wait by its own deadlines: this is a safeguard.
_PARK_S: Final = 24 * 3600.0

Response = TypeVar("Response", JoinResult, SyncResult)
Result = TypeVar("Result")


class Groups:
    """The coordinator as the endpoints use it: a parked request of its own for each response."""

    def __init__(self, coordinator: Coordinator, purgatory: Purgatory) -> None:
        """Park in `purgatory`."""
        self.coordinator = coordinator
        self.purgatory = purgatory
        self._numbers = count()

    @property
    def address(self) -> str | None:
        """The address of this worker; None for a single one."""
        if isinstance(self.coordinator, OwnedCoordinator):
            return self.coordinator.ownership.address
        return None

    async def as_owner(
        self, group_id: str, action: Callable[[], Result], *, creates: bool = False
    ) -> Result:
        """Return `action()`, by the worker that owns the group; raise OwnedElsewhere elsewhere."""
        if self.purgatory.is_draining:
            raise GroupError(ErrorCode.BROKER_NOT_AVAILABLE)
        if isinstance(self.coordinator, OwnedCoordinator):
            return await self.coordinator.as_owner(group_id, action, creates=creates)
        return action()

    async def parked(
        self,
        group_id: str,
        action: Callable[[Callable[[Response], object]], object],
        park: ParkDep,
        *,
        creates: bool = False,
    ) -> Response:
        """Return what `action(respond)` responds with, now or later."""
        reply: _Reply[Response] = _Reply(f"reply:{next(self._numbers)}", self.purgatory)
        await self.as_owner(group_id, lambda: action(reply.complete), creates=creates)
        try:
            if not reply.is_complete():
                await park(reply.key, timeout=_PARK_S, until=reply.is_complete)
        except HTTPException as exc:  # Starlette's: the base of FastAPI's and of Problem
            # One kind of error during a drain, for parked and for new requests.
            if self.purgatory.is_draining:
                raise GroupError(ErrorCode.BROKER_NOT_AVAILABLE) from exc
            raise
        finally:
            if not reply.is_complete():
                self.coordinator.withdraw(group_id, reply.complete)
        result = reply.response
        assert result is not None
        require(result.error)
        return result


class _Reply(Generic[Response]):
    """The response that a parked request waits for."""

    def __init__(self, key: str, purgatory: Purgatory) -> None:
        self.key = key
        self.response: Response | None = None
        self._purgatory = purgatory

    def is_complete(self) -> bool:
        return self.response is not None

    def complete(self, response: Response) -> None:
        self.response = response
        _ = self._purgatory.check(self.key)


def require(error: ErrorCode) -> None:
    """Raise GroupError unless there is no error."""
    if error is not ErrorCode.NONE:
        raise GroupError(error)


async def get_groups(request: Request) -> Groups:
    """Return the groups of the application. For `Depends`."""
    groups = request.app.state.groups
    assert isinstance(groups, Groups)
    return groups


GroupsDep = Annotated[Groups, Depends(get_groups)]
GroupPath = Annotated[GroupId, Path(description="A group is created by its first member.")]


def problems(*codes: ErrorCode) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI descriptions of these errors, and of those everywhere, by status."""
    everywhere = (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
    )
    responses: dict[int | str, dict[str, Any]] = {}
    for kind in (KINDS[code] for code in (*codes, *everywhere)):
        text = f"`{kind.slug}`: {kind.title}."
        known = responses.get(kind.status)
        text = f"{known['description']} {text}" if known else text
        responses[kind.status] = {"model": ProblemResponse, "description": text}
    return responses


STALE: Final = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
)

router = APIRouter(prefix="/groups", tags=["groups"])


@router.post(
    "/{group_id}/join",
    responses=problems(
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.INVALID_SESSION_TIMEOUT,
    ),
)
async def join(
    group_id: GroupPath, body: JoinBody, groups: GroupsDep, park: ParkDep
) -> JoinResponse:
    """Join, or join again: parks until every member has joined, up to the rebalance timeout.

    Set the client's read timeout above that. If a proxy closes the request earlier, a known member
    has to repeat it, and a new member loses its place.
    """
    request = JoinRequest(
        group_id=group_id,
        member_id=body.member_id or "",
        client_id=body.client_id,
        protocol_type=body.protocol_type,
        protocols=[(each.name, each.metadata.encode()) for each in body.protocols],
        session_timeout_ms=groups.purgatory.delay_ms(body.session_timeout),
        rebalance_timeout_ms=groups.purgatory.delay_ms(body.rebalance_timeout),
    )
    coordinator = groups.coordinator

    def act(respond: Callable[[JoinResult], object]) -> None:
        coordinator.join(request, respond)

    joined = await groups.parked(group_id, act, park, creates=True)
    return JoinResponse(
        member_id=joined.member_id,
        generation=joined.generation,
        protocol=joined.protocol or "",
        leader=joined.leader_id,
        members=[
            MemberMetadata(member_id=member_id, metadata=metadata.decode())
            for member_id, _, metadata in joined.members
        ],
        epoch=joined.epoch,
    )


@router.post("/{group_id}/sync", responses=problems(*STALE))
async def sync(
    group_id: GroupPath, body: SyncBody, groups: GroupsDep, park: ParkDep
) -> SyncResponse:
    """Return the member's partitions: parks until the leader has assigned them."""
    request = SyncRequest(
        group_id=group_id,
        member_id=body.member_id,
        generation=body.generation,
        assignments={
            member_id: json.dumps(partitions).encode()
            for member_id, partitions in body.assignments.items()
        },
    )
    coordinator = groups.coordinator

    def act(respond: Callable[[SyncResult], object]) -> None:
        coordinator.sync(request, respond)

    synced = await groups.parked(group_id, act, park)
    return SyncResponse(
        generation=body.generation,
        protocol=synced.protocol or "",
        partitions=partitions_of(synced.assignment),
    )


@router.post("/{group_id}/heartbeat", status_code=204, responses=problems(*STALE))
async def heartbeat(group_id: GroupPath, body: HeartbeatBody, groups: GroupsDep) -> None:
    """Renew the member's session; an error says what it has missed."""
    coordinator, member_id = groups.coordinator, body.member_id
    require(
        await groups.as_owner(
            group_id, lambda: coordinator.heartbeat(group_id, member_id, body.generation)
        )
    )


@router.post("/{group_id}/leave", status_code=204, responses=problems(ErrorCode.UNKNOWN_MEMBER_ID))
async def leave(group_id: GroupPath, body: LeaveBody, groups: GroupsDep) -> None:
    """Leave the group: the others rebalance immediately, without waiting for a session timeout."""
    coordinator = groups.coordinator
    require(await groups.as_owner(group_id, lambda: coordinator.leave(group_id, body.member_id)))


@router.get("/problems/{slug}", responses={404: {"description": "Unknown kind of problem."}})
async def describe_problem(slug: str) -> ProblemKind:
    """Describe a kind of problem and its remedy."""
    for kind in KINDS.values():
        if kind.slug == slug:
            return kind
    raise HTTPException(404)


@router.get("/{group_id}", responses=problems(ErrorCode.GROUP_ID_NOT_FOUND))
async def describe(group_id: GroupPath, groups: GroupsDep) -> GroupDescription:
    """Return the group: its state, its generation, its members and their partitions."""
    group = await groups.as_owner(group_id, lambda: groups.coordinator.groups.get(group_id))
    if group is None:
        raise GroupError(ErrorCode.GROUP_ID_NOT_FOUND)
    if group.state is GroupState.DEAD:
        raise GroupError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return GroupDescription(
        group_id=group_id,
        state=group.state,
        generation=group.generation,
        epoch=group.epoch,
        coordinator=groups.address,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        leader=group.leader_id,
        members=[
            MemberDescription(
                member_id=member.member_id,
                client_id=member.client_id,
                partitions=partitions_of(member.assignment),
                is_waiting=member.is_waiting,
            )
            for member in group.members.values()
        ],
    )


def create_app(
    settings: CoordinatorSettings | None = None,
    *,
    purgatory: Purgatory | None = None,
    lease_store: LeaseStore | None = None,
) -> FastAPI:
    """Return a coordinator without groups, by default with the settings of the environment.

    A group is kept in the memory of one process: of the only one, or, with `redis_url` or a
    `lease_store`, of the worker that owns it. When that worker stops, parked members get an error
    that tells them to join again.
    """
    settings = CoordinatorSettings.from_environment() if settings is None else settings
    if purgatory is None:
        # Two operations of a member, and two of a group.
        purgatory = Purgatory("join-group", limits=Limits(max_parked=200_000))
    if lease_store is None and settings.redis_url:
        # Not at the top: a single worker needs no redis-py.
        from purgatory.ownership.redis import RedisLeaseStore

        lease_store = RedisLeaseStore(settings.redis_url, "join-group")
    app = FastAPI(
        title="Group coordinator",
        max_body_size=MAX_BODY_BYTES,
        lifespan=None if lease_store is None else _lifespan,
    )
    coordinator = Coordinator(purgatory, purgatory, settings.group_settings())
    if lease_store is not None:
        app.state.ownership = Ownership(
            lease_store,
            settings.address,
            lease_ms=round(settings.lease * 1000),
            # A worker that is cut off says so before its clients give up waiting for it.
            timeout=settings.lease / 2,
            clock=purgatory.clock,
        )
        coordinator = OwnedCoordinator(purgatory, coordinator.settings, app.state.ownership)
    app.state.groups = Groups(coordinator, purgatory)
    app.include_router(router)
    app.add_exception_handler(GroupError, _on_group_error)
    app.add_exception_handler(OwnedElsewhere, _on_owned_elsewhere)
    install(app, purgatory, endpoints={"statistics"}, authorize=ALLOW_ANYONE, problem_details="app")
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Own groups while the application runs; release them, so that others need not wait."""
    async with app.state.ownership:
        yield


async def _on_owned_elsewhere(request: Request, exc: Exception) -> RedirectResponse:
    # 307: with the same method and body.
    assert isinstance(exc, OwnedElsewhere)
    return RedirectResponse(exc.address + request.url.path, status_code=307)


async def _on_group_error(request: Request, exc: Exception) -> JSONResponse:
    assert isinstance(exc, GroupError)
    document = {
        "type": f"{PREFIX}/{exc.kind.slug}",
        "title": exc.kind.title,
        "status": exc.kind.status,
        "detail": exc.detail,
        "instance": request.url.path,
    }
    return JSONResponse(
        document, exc.kind.status, exc.headers, media_type="application/problem+json"
    )
