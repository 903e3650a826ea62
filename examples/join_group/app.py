"""The coordinator as a service: `uvicorn --factory examples.join_group.app:create_app`."""

# No postponed annotations here: FastAPI reads those of the endpoints, which use local names.
# Every endpoint and dependency is `async def`, because FastAPI runs others in threads, and a
# purgatory belongs to the thread of its event loop.
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, TypeVar
from uuid import uuid4

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, Field

from examples.join_group.owned_coordinator import OwnedCoordinator, OwnedElsewhere
from examples.join_group.settings import Settings, error
from examples.kafka_broker.errors import ErrorCode
from examples.kafka_broker.groups.coordinator import Coordinator
from examples.kafka_broker.groups.group import JoinRequest, JoinResult, SyncRequest, SyncResult
from purgatory import Limits, Purgatory
from purgatory.fastapi import ALLOW_ANYONE, ParkDep, PurgatoryDep, install
from purgatory.ownership import LeaseStore, Ownership

# Enough for a leader's assignment of the largest group.
MAX_BODY_BYTES: Final = 1024 * 1024
# The coordinator ends each wait by its own deadlines: this is a safeguard.
_PARK_S: Final = 24 * 3600.0

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=64)]
Metadata = Annotated[str, Field(max_length=4096, description="Opaque to the coordinator.")]
Response = TypeVar("Response", JoinResult, SyncResult)
Result = TypeVar("Result")


class JoinBody(BaseModel, extra="forbid"):
    """A member joins, or joins again."""

    member_id: str = Field("", description="The id in an earlier response; empty for a new member.")
    client_id: Name = Field("member", description="The prefix of a new member's id.")
    protocol_type: Name = "consumer"
    protocols: dict[Name, Metadata] = Field(
        min_length=1, max_length=16, description="Preferred first, with metadata for the leader."
    )
    session_timeout_ms: int = Field(10_000, description="Without a heartbeat for so long: removed.")
    rebalance_timeout_ms: int = Field(60_000, gt=0, lt=2**31, description="To join again in time.")


class MemberBody(BaseModel, extra="forbid"):
    """A member, which is alive or leaves."""

    member_id: str
    generation: int = Field(-1, description="As in the join response; not to leave.")


class SyncBody(MemberBody):
    """A member asks for its assignment; the leader also brings those of all, by member id."""

    assignments: dict[str, Metadata] = {}


class MemberDescription(BaseModel):
    """A member, to anybody."""

    client_id: str
    assignment: str
    is_waiting: bool = Field(description="Whether a join or sync of the member is parked.")


class GroupDescription(BaseModel):
    """A group, to anybody."""

    group_id: str
    state: str = Field(description="In Kafka's words, such as Stable.")
    generation: int
    epoch: int = Field(description="Of the worker that owns the group; 0 for a single worker.")
    protocol_type: str | None
    protocol: str | None
    leader_id: str | None
    members: dict[str, MemberDescription]


@dataclass
class Call:
    """A request about a group."""

    group_id: str
    coordinator: Coordinator
    park: ParkDep
    purgatory: Purgatory

    async def as_owner(self, action: Callable[[], Result], *, creates: bool = False) -> Result:
        """Return `action()`, by the worker that owns the group; raise OwnedElsewhere elsewhere."""
        if isinstance(self.coordinator, OwnedCoordinator):
            return await self.coordinator.as_owner(self.group_id, action, creates=creates)
        return action()

    async def parked(
        self,
        action: Callable[[Callable[[Response], object]], object],
        *,
        creates: bool = False,
    ) -> Response:
        """Return what `action(respond)` responds with, now or later; raise its error."""
        responses: list[Response] = []
        key = f"reply:{uuid4()}"

        def respond(response: Response) -> None:
            responses.append(response)
            _ = self.purgatory.check(key)

        await self.as_owner(lambda: action(respond), creates=creates)
        try:
            if not responses:
                await self.park(key, timeout=_PARK_S, until=lambda: bool(responses))
        finally:
            if not responses:
                self.coordinator.withdraw(self.group_id, respond)
        require(responses[0].error)
        return responses[0]


async def get_call(
    group_id: Name, request: Request, park: ParkDep, purgatory: PurgatoryDep
) -> Call:
    """Return the call. For `Depends`."""
    return Call(group_id, request.app.state.coordinator, park, purgatory)


def require(code: ErrorCode) -> None:
    """Raise HTTPException unless there is no error."""
    if code is not ErrorCode.NONE:
        raise error(code)


CallDep = Annotated[Call, Depends(get_call)]
router = APIRouter(prefix="/groups/{group_id}", tags=["groups"])


@router.post("/join")
async def join(body: JoinBody, call: CallDep) -> JoinResult:
    """Join, or join again: parks until every member has joined, up to the rebalance timeout.

    Set the client's read timeout above that. If a proxy closes the request earlier, a known member
    has to repeat it, and a new member loses its place.
    """
    request = JoinRequest(
        group_id=call.group_id,
        **body.model_dump(exclude={"protocols"}),
        protocols=[(name, metadata.encode()) for name, metadata in body.protocols.items()],
    )
    return await call.parked(partial(call.coordinator.join, request), creates=True)


@router.post("/sync")
async def sync(body: SyncBody, call: CallDep) -> SyncResult:
    """Return the member's assignment: parks until the leader has brought it."""
    request = SyncRequest(
        group_id=call.group_id,
        member_id=body.member_id,
        generation=body.generation,
        assignments={member_id: each.encode() for member_id, each in body.assignments.items()},
    )
    return await call.parked(partial(call.coordinator.sync, request))


@router.post("/heartbeat", status_code=204)
async def heartbeat(body: MemberBody, call: CallDep) -> None:
    """Renew the member's session; an error says what it has missed."""
    beat = partial(call.coordinator.heartbeat, call.group_id, body.member_id, body.generation)
    require(await call.as_owner(beat))


@router.post("/leave", status_code=204)
async def leave(body: MemberBody, call: CallDep) -> None:
    """Leave the group: the others rebalance immediately, without waiting for a session timeout."""
    require(await call.as_owner(partial(call.coordinator.leave, call.group_id, body.member_id)))


@router.get("", response_model=GroupDescription)
async def describe(call: CallDep) -> Any:
    """Return the group: its state, its generation, its members and their assignments."""
    group = await call.as_owner(lambda: call.coordinator.groups.get(call.group_id))
    if group is None:
        raise error(ErrorCode.GROUP_ID_NOT_FOUND)
    return group


def create_app(
    settings: Settings | None = None,
    *,
    purgatory: Purgatory | None = None,
    lease_store: LeaseStore | None = None,
) -> FastAPI:
    """Return a coordinator without groups, by default with the settings of the environment.

    A group is kept in the memory of one process: of the only one, or, with `redis_url` or a
    `lease_store`, of the worker that owns it. When that worker stops, parked members get an error
    that tells them to join again.
    """
    settings = Settings.from_environment() if settings is None else settings
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
    if lease_store is None:
        app.state.coordinator = Coordinator(purgatory, purgatory, settings)
    else:
        app.state.ownership = Ownership(
            lease_store,
            settings.address,
            lease_ms=settings.lease_ms,
            # A worker that is cut off says so before its clients give up waiting for it.
            timeout=settings.lease_ms / 2000,
            clock=purgatory.clock,
        )
        app.state.coordinator = OwnedCoordinator(purgatory, settings, app.state.ownership)
    app.include_router(router)
    app.add_exception_handler(OwnedElsewhere, _redirect)
    install(app, purgatory, endpoints={"statistics"}, authorize=ALLOW_ANYONE, problem_details="app")
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Own groups while the application runs; release them, so that others need not wait."""
    async with app.state.ownership:
        yield


async def _redirect(request: Request, exc: Exception) -> RedirectResponse:
    # 307: with the same method and body.
    return RedirectResponse(f"{exc}{request.url.path}", status_code=307)
