"""The broker's endpoints."""

# No postponed annotations here: FastAPI reads those of the endpoints.
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Path, Request
from starlette.responses import Response

from examples.acks_all.problems import KINDS, MEDIA_TYPE
from examples.acks_all.replica_manager import ReplicaManager
from examples.acks_all.responses import (
    fetch_request,
    fetch_response,
    partition_state,
    produce_response,
)
from examples.acks_all.schemas import (
    FetchBody,
    FetchResponseBody,
    LeaderBody,
    PartitionState,
    Problem,
    ProduceBody,
    ProduceResponseBody,
)
from examples.acks_all.topic_partition import TopicPartition
from purgatory.fastapi import DelayedResponse


# Both are async because FastAPI calls plain functions in another thread.
async def replica_manager(request: Request) -> ReplicaManager:
    """Return the broker's replica manager. For `Depends`."""
    manager: ReplicaManager = request.app.state.replica_manager
    return manager


async def topic_partition(
    topic: Annotated[str, Path(max_length=100)], partition: Annotated[int, Path(ge=0)]
) -> TopicPartition:
    """Return the partition that a path names. For `Depends`."""
    return TopicPartition(topic, partition)


Manager = Annotated[ReplicaManager, Depends(replica_manager)]
Name = Annotated[TopicPartition, Depends(topic_partition)]

PROBLEM = {"content": {MEDIA_TYPE: {"schema": Problem.model_json_schema()}}}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    "4XX": {**PROBLEM, "description": "Client error"},
    "5XX": {**PROBLEM, "description": "Server error, or not acknowledged"},
}

router = APIRouter(responses=PROBLEMS)


@router.post(
    "/produce",
    response_model=ProduceResponseBody,
    responses={207: {"model": ProduceResponseBody, "description": "Some partitions failed"}},
)
async def produce(body: ProduceBody, request: Request, manager: Manager) -> Response:
    """Append records; with acks=all, respond when every in-sync replica has them."""
    return DelayedResponse(
        lambda respond: manager.produce(
            {batch.topic_partition: batch.records for batch in body.partitions},
            acks_all=body.acks == "all",
            timeout_ms=body.timeout_ms,
            respond=lambda results: respond(produce_response(results, request.url.path)),
        )
    )


@router.post(
    "/fetch",
    response_model=FetchResponseBody,
    responses={207: {"model": FetchResponseBody, "description": "Some partitions failed"}},
)
async def fetch(body: FetchBody, request: Request, manager: Manager) -> Response:
    """Read records; respond when `min_bytes` are available, or after `max_wait_ms`."""
    return DelayedResponse(
        lambda respond: manager.fetch(
            fetch_request(body),
            respond=lambda results: respond(fetch_response(results, request.url.path)),
        )
    )


@router.get("/topics/{topic}/partitions/{partition}")
async def describe(name: Name, manager: Manager) -> PartitionState:
    """Describe a partition."""
    return partition_state(manager.partition(name), manager)


@router.put("/topics/{topic}/partitions/{partition}/leader")
async def change_leader(name: Name, body: LeaderBody, manager: Manager) -> PartitionState:
    """Set the leader of a partition, as Kafka's controller does."""
    return partition_state(manager.change_leader(name, body.leader, body.leader_epoch), manager)


@router.post("/topics/{topic}/partitions/{partition}/storage-failure")
async def fail_storage(name: Name, manager: Manager) -> PartitionState:
    """Take a partition offline, as a disk failure would."""
    return partition_state(manager.fail_storage(name), manager)


@router.get("/problems/{slug}")
async def describe_problem(slug: str) -> dict[str, str | int]:
    """Describe a kind of problem."""
    kind = KINDS.get(slug)
    if kind is None:
        raise HTTPException(404)
    return {"title": kind().title, "status": kind.status}
