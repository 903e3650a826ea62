"""The routes under `/jobs`."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter

from purgatory.fastapi.http.permit import Action
from purgatory.fastapi.jobs import parameters
from purgatory.fastapi.jobs.batch_endpoint import JobBatchEndpoint
from purgatory.fastapi.jobs.endpoints import JobEndpoints
from purgatory.fastapi.jobs.schemas import (
    BatchLine,
    JobResponse,
    JobsResponse,
    job_json,
    reschedule_json,
)
from purgatory.fastapi.jobs.watch_endpoint import JobWatchEndpoint
from purgatory.fastapi.routing.endpoint_spec import EndpointSpec
from purgatory.fastapi.routing.openapi import response_header
from purgatory.fastapi.routing.raw_endpoint import TaskEndpoint
from purgatory.fastapi.routing.raw_route import add_endpoint
from purgatory.fastapi.watch.wait_registry import WaitRegistry
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
        (_GET, JobWatchEndpoint(registry, tail=_GET.tail)),
        (reschedule, TaskEndpoint(context, reschedule, endpoints.change)),
        (_CANCEL, TaskEndpoint(context, _CANCEL, endpoints.cancel)),
        (_RUN, TaskEndpoint(context, _RUN, endpoints.run)),
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
        repeat within 24 hours gets the same job, from whichever process, and adds none.""",
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
        body=reschedule_json(limits),
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
    and is sent as the jobs are stored.""",
    action=Action.DEFER,
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

    Its outcome is `expired`, as at its deadline, and `by_hand` is true.""",
    action=Action.DEFER,
    parameters=parameters.CHANGE,
    response=JobResponse,
    response_description="The job, which is due now.",
    responses={200: {"headers": _ETAG}},
    problems=(*_CHANGING, "unsupported-media-type"),
)
