"""The routes under `/jobs`, with what OpenAPI says of them."""

# No postponed annotations here: FastAPI reads those of the endpoints, which name local things.
from collections.abc import Callable
from typing import Annotated

from fastapi import Body, Header, Path, Query

from purgatory.fastapi.http.etag import ENTITY_TAGS_PATTERN
from purgatory.fastapi.http.openapi_headers import idempotency_key, response_header
from purgatory.fastapi.http.permit import Action
from purgatory.fastapi.jobs import schemas as job_schemas
from purgatory.fastapi.jobs.batch_endpoint import JobBatchEndpoint
from purgatory.fastapi.jobs.endpoints import JobEndpoints
from purgatory.fastapi.jobs.watch_endpoint import JobWatchEndpoint
from purgatory.fastapi.routing.raw_endpoint import TaskEndpoint
from purgatory.fastapi.watch.wait_registry import WaitRegistry
from purgatory.jobs import JobLimits

JSON_LINES = "application/jsonl"

JobId = Annotated[
    str,
    Path(description="A job's id.", max_length=64, examples=["019aa6d0f48b3f6c2e9d1a7b4c5d6e7f"]),
]
IfMatch = Annotated[
    str | None,
    Header(
        description="ETags of the job: only if it is still at one of them.",
        pattern=ENTITY_TAGS_PATTERN,
    ),
]
IdempotencyKey = Annotated[
    str | None,
    idempotency_key("a repeat of it within 24 hours is told of the same job, and adds none."),
]

AddRoute = Callable[..., None]

ETAG = response_header("ETag", "The job's version, in quotes.")
LOCATION = response_header("Location", "The address of the job.")
BODY = ("bad-json", "body-too-large", "unsupported-media-type")
WRITING = (*BODY, "not-open", "store-unavailable")


def add_job_routes(add: AddRoute, registry: WaitRegistry, limits: JobLimits) -> None:
    """Add the routes through `add(method, path, endpoint, raw, ...)`."""
    job, max_body = job_schemas.job_body(limits), job_schemas.max_job_body(limits)
    context = registry.context
    endpoints = JobEndpoints(context.purgatory, limits)
    asking = ("unknown-job", "not-open", "store-unavailable")
    changing = (*asking, "job-decided", "job-changed")

    def add_job(
        body: Annotated[job, Body()],  # type: ignore[valid-type] # a type made at run time
        idempotency_key: IdempotencyKey = None,
    ) -> None:
        """Do something later: at a deadline, or when a key fires, or not at all because it fired.

        Once this is answered the job is stored: its handler runs at least once, or its callback is
        made, and one outcome is recorded, whatever process dies. With an `Idempotency-Key`, a
        repeat within 24 hours is told of the same job, by whichever process, and adds none.
        """

    add(
        "POST",
        "/jobs",
        add_job,
        TaskEndpoint(context, endpoints.add, max_body=max_body),
        summary="Add a job",
        answered="The job is stored.",
        action=Action.DEFER,
        answer=job_schemas.JobResponse,
        status=201,
        refusals=(
            *WRITING,
            "duplicate-job",
            "unknown-handler",
            "idempotency-conflict",
            "jobs-full",
        ),
        responses={
            200: {
                "model": job_schemas.JobResponse,
                "description": "A job waited with the dedupe key: it was replaced, or kept.",
                "headers": ETAG | LOCATION,
            },
            201: {"headers": ETAG | LOCATION},
        },
    )

    def list_jobs(
        state: Annotated[job_schemas.State | None, Query(description="Only jobs in it.")] = None,
        handler: Annotated[str | None, Query(description="Only jobs of this handler.")] = None,
        key: Annotated[str | None, Query(description="Only jobs with this watch key.")] = None,
        limit: Annotated[int, Query(ge=1, le=1000, description="Jobs in the answer.")] = 100,
        after: Annotated[
            str | None,
            Query(max_length=64, description="Behind the page before: use its `next` as it is."),
        ] = None,
    ) -> None:
        """List jobs, about the newest first, without their payloads."""

    add(
        "GET",
        "/jobs",
        list_jobs,
        TaskEndpoint(context, endpoints.list_jobs),
        summary="List jobs",
        answered="A page of jobs.",
        action=Action.OPERATE,
        answer=job_schemas.JobsResponse,
        refusals=("not-open", "store-unavailable"),
        responses={200: {"headers": response_header("Link", 'The next page, with rel="next".')}},
    )

    def add_jobs() -> None:
        """Add up to 10,000 jobs: JSON Lines, each a job as in `POST /jobs`.

        Each line is acknowledged or refused by itself; the answer has a line for each, in order,
        and is sent as the jobs are stored.
        """

    add(
        "POST",
        "/jobs:batch",
        add_jobs,
        JobBatchEndpoint(context, limits),
        summary="Add many jobs",
        answered="What became of each line.",
        action=Action.DEFER,
        refusals=("body-too-large", "unsupported-media-type", "not-open", "store-unavailable"),
        responses={
            200: {
                "content": {JSON_LINES: {"schema": job_schemas.BatchLine.model_json_schema()}},
            }
        },
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {
                    JSON_LINES: {
                        "schema": {
                            "type": "string",
                            "description": "A job a line, each as in `POST /jobs`.",
                            "examples": [
                                '{"handler":"cancel-order","delay":900}\n'
                                '{"callback":{"url":"https://shop.example/hook"},"delay":900}\n'
                            ],
                        }
                    }
                },
            }
        },
    )

    def get_job(
        id: JobId,  # noqa: A002 - the parameter's name in the interface
        if_none_match: Annotated[
            str | None,
            Header(
                description="The ETag of the job as the client has it.",
                pattern=ENTITY_TAGS_PATTERN,
            ),
        ] = None,
        prefer: Annotated[
            str | None, Header(description="`wait=25`: park while it is still that.")
        ] = None,
    ) -> None:
        """Return a job; with `If-None-Match` and `Prefer: wait=25`, once it has changed."""

    add(
        "GET",
        "/jobs/{id}",
        get_job,
        JobWatchEndpoint(registry, tail="id"),
        summary="Look at a job, or wait for it",
        answered="The job as it is.",
        action=Action.DEFER,
        answer=job_schemas.JobResponse,
        refusals=(*asking, "too-many-waits", "full", "draining"),
        responses={
            200: {"headers": ETAG},
            304: {"description": "It has not changed.", "headers": ETAG},
        },
    )

    def reschedule_job(
        id: JobId,  # noqa: A002 - the parameter's name in the interface
        body: Annotated[job_schemas.RescheduleBody, Body()],
        if_match: IfMatch = None,
    ) -> None:
        """Move the deadline of a job that waits, though not beyond its ceiling."""

    add(
        "PATCH",
        "/jobs/{id}",
        reschedule_job,
        TaskEndpoint(context, endpoints.change, tail="id", max_body=max_body),
        summary="Move a job's deadline",
        answered="The job with its new deadline.",
        action=Action.DEFER,
        answer=job_schemas.JobResponse,
        refusals=(*changing, *BODY),
        responses={200: {"headers": ETAG}},
    )

    def cancel_job(
        id: JobId,  # noqa: A002 - the parameter's name in the interface
        if_match: IfMatch = None,
    ) -> None:
        """Cancel a job that waits: from then on it never runs. Repeating is safe."""

    add(
        "DELETE",
        "/jobs/{id}",
        cancel_job,
        TaskEndpoint(context, endpoints.cancel, tail="id"),
        summary="Cancel a job",
        answered="The job, which never runs from now on.",
        action=Action.DEFER,
        answer=job_schemas.JobResponse,
        refusals=changing,
        responses={200: {"headers": ETAG}},
    )

    def run_job(
        id: JobId,  # noqa: A002 - the parameter's name in the interface
        if_match: IfMatch = None,
    ) -> None:
        """Have a job that waits run at once, in whichever process.

        Its outcome is `expired`, as if its deadline had come, and `by_hand` is true.
        """

    add(
        "POST",
        "/jobs/{id}/run",
        run_job,
        TaskEndpoint(context, endpoints.run, tail="id", checks_content=True),
        summary="Run a job now",
        answered="The job, which is due now.",
        action=Action.DEFER,
        answer=job_schemas.JobResponse,
        refusals=(*changing, "unsupported-media-type"),
        responses={200: {"headers": ETAG}},
    )
