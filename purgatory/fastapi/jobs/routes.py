"""The routes under `/jobs`."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from fastapi import APIRouter

from purgatory.fastapi.http.raw_request import READ, Access, Action
from purgatory.fastapi.jobs.batch_endpoint import JobBatch
from purgatory.fastapi.jobs.endpoints import JobEndpoints
from purgatory.fastapi.jobs.schemas import (
    RESCHEDULE_JSON,
    BatchLine,
    JobResponse,
    JobsResponse,
    RunJobResponse,
    job_json,
)
from purgatory.fastapi.routing.raw_route import add_handler, response_header
from purgatory.fastapi.watch.parked_requests import WaitRegistry
from purgatory.jobs import JobLimits

_JSON_LINES: Final = "application/jsonl"
_ETAG: Final = response_header("ETag", "The job's version, in quotes.")
_LOCATION: Final = response_header("Location", "The address of the job.")
_LINK: Final = response_header("Link", 'The next page, with rel="next".')
_BODY: Final = ("bad-json", "body-too-large", "unsupported-media-type")
_STORE: Final = ("not-open", "store-unavailable")
_READING: Final = ("unknown-job", *_STORE)
_CHANGING: Final = (*_READING, "job-decided", "job-changed")
_WITHOUT_BODY: Final = (*_STORE, "unsupported-media-type")
_DEFER: Final = Access(Action.DEFER)
_OPERATE: Final = Access(Action.OPERATE)
_JOB: Final[dict[str, Any]] = {
    "response_model": JobResponse,
    "responses": {200: {"headers": _ETAG}},
}
# Made once: it takes a millisecond.
_RESULTS: Final = {_JSON_LINES: {"schema": BatchLine.model_json_schema()}}
_LINES: Final = {
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


def add_job_routes(router: APIRouter, registry: WaitRegistry, limits: JobLimits) -> None:
    """Add the routes of jobs to `router`; `limits` are those of the job store."""
    add = partial(add_handler, router, registry.context)
    jobs, batch = JobEndpoints(registry), JobBatch(registry.context, limits)
    add(
        "POST /jobs",
        jobs.add_job,
        _DEFER,
        body=job_json(limits),
        status_code=201,
        response_model=JobResponse,
        response_description="The job is stored.",
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
            *_STORE,
            "duplicate-job",
            "unknown-handler",
            "idempotency-conflict",
            "jobs-full",
            "bad-cursor",
            "cursor-expired",
            "signals-unavailable",
        ),
    )
    add(
        "GET /jobs",
        jobs.list_jobs,
        READ,
        response_model=JobsResponse,
        response_description="A page of jobs.",
        responses={200: {"headers": _LINK}},
        problems=_STORE,
    )
    added = add(
        "POST /jobs:batch",
        batch.add_jobs,
        _DEFER,
        max_body=batch.max_body,
        response_description="The result of each line.",
        responses={200: {"content": _RESULTS}},
        problems=("body-too-large", *_WITHOUT_BODY),
        openapi_extra={"requestBody": _LINES},
    )
    added.accesses_of_lines = batch.accesses
    added.check_ready = registry.purgatory.jobs.ready
    add(
        "GET /jobs/{id}",
        jobs.get_job,
        _DEFER,
        response_model=JobResponse,
        response_description="The job as it is.",
        responses={
            200: {"headers": _ETAG},
            304: {"description": "It has not changed.", "headers": _ETAG},
        },
        problems=(*_READING, "too-many-waits", "full", "draining"),
    )
    add(
        "PATCH /jobs/{id}",
        jobs.reschedule_job,
        _DEFER,
        body=RESCHEDULE_JSON,
        **_JOB,
        response_description="The job with its new deadline.",
        problems=(*_CHANGING, *_BODY),
    )
    add(
        "DELETE /jobs/{id}",
        jobs.cancel_job,
        _DEFER,
        **_JOB,
        response_description="The job, which never runs from now on.",
        problems=_CHANGING,
    )
    add(
        "POST /jobs/{id}/run",
        jobs.run_job,
        _DEFER,
        **{**_JOB, "response_model": RunJobResponse},
        response_description="The job, which is due now.",
        problems=(*_CHANGING, "unsupported-media-type"),
    )
    add(
        "POST /jobs/{id}/retry",
        jobs.retry_job,
        _OPERATE,
        **_JOB,
        response_description="The job, which is due now.",
        problems=(*_CHANGING, "unsupported-media-type"),
    )
    add(
        "POST /jobs:retry",
        jobs.retry_jobs,
        _OPERATE,
        response_description="How many run again.",
        problems=_WITHOUT_BODY,
    )
    for route, handler, access, problems in (
        ("GET /jobs:paused", jobs.paused_handlers, READ, _STORE),
        ("POST /jobs:pause", jobs.pause_handler, _OPERATE, _WITHOUT_BODY),
        ("POST /jobs:resume", jobs.resume_handler, _OPERATE, _WITHOUT_BODY),
    ):
        add(route, handler, access, response_description="What is paused.", problems=problems)
