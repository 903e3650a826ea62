"""The routes under `/jobs`."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter

from purgatory.fastapi.http.raw_request import Action
from purgatory.fastapi.jobs import parameters
from purgatory.fastapi.jobs.batch_endpoint import JobBatchEndpoint
from purgatory.fastapi.jobs.endpoints import JobEndpoints
from purgatory.fastapi.jobs.schemas import (
    RESCHEDULE_JSON,
    BatchLine,
    JobResponse,
    JobsResponse,
    PausedResponse,
    RetriedResponse,
    RunJobResponse,
    job_json,
)
from purgatory.fastapi.jobs.watch_endpoint import JobWatchEndpoint
from purgatory.fastapi.routing.endpoint_spec import EndpointSpec, response_header
from purgatory.fastapi.routing.raw_endpoint import TaskEndpoint
from purgatory.fastapi.routing.raw_route import add_endpoint
from purgatory.fastapi.watch.parked_requests import WaitRegistry
from purgatory.jobs import JobLimits

_JSON_LINES: Final = "application/jsonl"
_ETAG: Final = response_header("ETag", "The job's version, in quotes.")
_LOCATION: Final = response_header("Location", "The address of the job.")
_LINK: Final = response_header("Link", 'The next page, with rel="next".')
_BODY: Final = ("bad-json", "body-too-large", "unsupported-media-type")
_READING: Final = ("unknown-job", "not-open", "store-unavailable")
_CHANGING: Final = (*_READING, "job-decided", "job-changed")


def add_job_routes(router: APIRouter, registry: WaitRegistry, limits: JobLimits) -> None:
    """Add the routes of jobs to `router`; `limits` are those of the job store."""
    context = registry.context
    endpoints = JobEndpoints(context.purgatory, limits)
    add, reschedule = _add(limits), _reschedule(limits)
    for spec, raw in (
        (add, TaskEndpoint(context, add, endpoints.add)),
        (_LIST, TaskEndpoint(context, _LIST, endpoints.list_jobs)),
        (_ADD_BATCH, JobBatchEndpoint(context, limits)),
        (_GET, JobWatchEndpoint(registry, path_parameter=_GET.path_parameter)),
        (reschedule, TaskEndpoint(context, reschedule, endpoints.change)),
        (_CANCEL, TaskEndpoint(context, _CANCEL, endpoints.cancel)),
        (_RUN, TaskEndpoint(context, _RUN, endpoints.run)),
        (_RETRY, TaskEndpoint(context, _RETRY, endpoints.retry)),
        (_RETRY_BATCH, TaskEndpoint(context, _RETRY_BATCH, endpoints.retry_batch)),
        (_PAUSED, TaskEndpoint(context, _PAUSED, endpoints.paused)),
        (_PAUSE, TaskEndpoint(context, _PAUSE, endpoints.pause)),
        (_RESUME, TaskEndpoint(context, _RESUME, endpoints.resume)),
    ):
        add_endpoint(router, spec, raw)


def _add(limits: JobLimits) -> EndpointSpec:
    return EndpointSpec(
        name="add_job",
        method="POST",
        path="/jobs",
        summary="Add a job",
        description="""Do something later: at a deadline, when a key fires, or not at all if it
        fired.

        With the response the job is stored: its handler runs at least once, or its callback is
        made, and one outcome is recorded, whatever process dies. With an `Idempotency-Key`, a
        repeat gets the same job, from whichever process, and adds none.""",
        action=Action.DEFER,
        parameters=parameters.ADD,
        body=job_json(limits),
        response=JobResponse,
        response_description="The job is stored.",
        status=201,
        responses={
            200: {
                "model": JobResponse,
                "description": "A job waited with the dedupe key: it was replaced, or kept.",
                "headers": _ETAG | _LOCATION,
            },
            201: {"headers": _ETAG | _LOCATION},
        },
        problems=(
            *_BODY,
            "not-open",
            "store-unavailable",
            "duplicate-job",
            "unknown-handler",
            "idempotency-conflict",
            "jobs-full",
            "bad-cursor",
            "cursor-expired",
            "signals-unavailable",
        ),
    )


def _reschedule(limits: JobLimits) -> EndpointSpec:
    return EndpointSpec(
        name="reschedule_job",
        method="PATCH",
        path="/jobs/{id}",
        summary="Move a job's deadline",
        description="Move the deadline of a waiting job, though not beyond its ceiling.",
        action=Action.DEFER,
        parameters=parameters.CHANGE,
        body=RESCHEDULE_JSON,
        response=JobResponse,
        response_description="The job with its new deadline.",
        responses={200: {"headers": _ETAG}},
        problems=(*_CHANGING, *_BODY),
    )


_LIST: Final = EndpointSpec(
    name="list_jobs",
    method="GET",
    path="/jobs",
    summary="List jobs",
    description="List jobs, about the newest first, without their payloads.",
    action=Action.OPERATE,
    parameters=parameters.LIST,
    response=JobsResponse,
    response_description="A page of jobs.",
    responses={200: {"headers": _LINK}},
    problems=("not-open", "store-unavailable"),
)
_ADD_BATCH: Final = EndpointSpec(
    name="add_jobs",
    method="POST",
    path="/jobs:batch",
    summary="Add many jobs",
    description="""Add up to 10,000 jobs: JSON Lines, each a job as in `POST /jobs`.

    Each line is acknowledged or refused by itself; the response has a line for each, in order,
    and is sent as the jobs are stored. With an `Idempotency-Key`, a repeat of the same lines gets
    the same jobs, and adds those that are missing.

    After 100 refused lines, or too many bytes of problems, the rest is not read: the last line of
    the response has the number of the first of them as `line`, the status 424, and a problem that
    says how many to send again; with an `Idempotency-Key`, under another one.""",
    action=Action.DEFER,
    parameters=parameters.ADD,
    response_description="The result of each line.",
    responses={200: {"content": {_JSON_LINES: {"schema": BatchLine.model_json_schema()}}}},
    problems=("body-too-large", "unsupported-media-type", "not-open", "store-unavailable"),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                _JSON_LINES: {
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
_GET: Final = EndpointSpec(
    name="get_job",
    method="GET",
    path="/jobs/{id}",
    summary="Look at a job, or wait for it",
    description="Return a job; with `If-None-Match` and `Prefer: wait=25`, once it has changed.",
    action=Action.DEFER,
    parameters=parameters.GET,
    response=JobResponse,
    response_description="The job as it is.",
    responses={
        200: {"headers": _ETAG},
        304: {"description": "It has not changed.", "headers": _ETAG},
    },
    problems=(*_READING, "too-many-waits", "full", "draining"),
)
_CANCEL: Final = EndpointSpec(
    name="cancel_job",
    method="DELETE",
    path="/jobs/{id}",
    summary="Cancel a job",
    description="Cancel a waiting job: from then on it never runs. Repeating is safe.",
    action=Action.DEFER,
    parameters=parameters.CHANGE,
    response=JobResponse,
    response_description="The job, which never runs from now on.",
    responses={200: {"headers": _ETAG}},
    problems=_CHANGING,
)
_RUN: Final = EndpointSpec(
    name="run_job",
    method="POST",
    path="/jobs/{id}/run",
    summary="Run a job now",
    description="""Run a waiting job at once, in whichever process.

    Its outcome is `expired`, as at its deadline, and `by_hand` is true. If its handler is paused,
    `paused` is true, and it starts once that is resumed.""",
    action=Action.DEFER,
    parameters=parameters.CHANGE,
    response=RunJobResponse,
    response_description="The job, which is due now.",
    responses={200: {"headers": _ETAG}},
    problems=(*_CHANGING, "unsupported-media-type"),
)
_RETRY: Final = EndpointSpec(
    name="retry_job",
    method="POST",
    path="/jobs/{id}/retry",
    summary="Retry a failed job",
    description="Run a failed job again, at once and with all its attempts.",
    action=Action.OPERATE,
    parameters=parameters.CHANGE,
    response=JobResponse,
    response_description="The job, which is due now.",
    responses={200: {"headers": _ETAG}},
    problems=(*_CHANGING, "unsupported-media-type"),
)
_RETRY_BATCH: Final = EndpointSpec(
    name="retry_jobs",
    method="POST",
    path="/jobs:retry",
    summary="Retry failed jobs",
    description="""Run failed jobs again, a batch at a time, about the newest first.

    At least one of `handler`, `key` and `all=true` is needed; a body is refused. Continue with
    `next`: then each is retried once, even if it fails again meanwhile.""",
    action=Action.OPERATE,
    parameters=parameters.RETRY,
    response=RetriedResponse,
    response_description="How many run again.",
    problems=("not-open", "store-unavailable", "unsupported-media-type"),
)
_PAUSED: Final = EndpointSpec(
    name="paused_handlers",
    method="GET",
    path="/jobs:paused",
    summary="List paused handlers",
    description="Return the handlers that are paused, and how many jobs wait for that to end.",
    action=Action.OPERATE,
    response=PausedResponse,
    response_description="What is paused.",
    problems=("not-open", "store-unavailable"),
)
_PAUSE: Final = EndpointSpec(
    name="pause_handler",
    method="POST",
    path="/jobs:pause",
    summary="Pause a handler",
    description="""Start no more jobs of a handler, or of all, in any process. What runs goes on.

    Exactly one of `handler` and `all=true` is needed; a body is refused.""",
    action=Action.OPERATE,
    parameters=parameters.PAUSE,
    response=PausedResponse,
    response_description="What is paused.",
    problems=("not-open", "store-unavailable", "unsupported-media-type"),
)
_RESUME: Final = EndpointSpec(
    name="resume_handler",
    method="POST",
    path="/jobs:resume",
    summary="Resume a handler",
    description="""End the pause of that handler, or of all: what was due meanwhile runs now.

    Exactly one of `handler` and `all=true` is needed; a body is refused. A handler that is paused
    by name stays so when all are resumed.""",
    action=Action.OPERATE,
    parameters=parameters.PAUSE,
    response=PausedResponse,
    response_description="What is paused.",
    problems=("not-open", "store-unavailable", "unsupported-media-type"),
)
