"""Jobs as responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from purgatory.fastapi.http.raw_request import Access, Action, Permit
from purgatory.fastapi.http.raw_response import RawResponse, header_lines
from purgatory.fastapi.jobs.schemas import JobResponse, ListedJob, RunJobResponse
from purgatory.fastapi.watch.schemas import CountOfKeys
from purgatory.jobs import Job
from purgatory.jobs.callbacks import CALLBACK
from purgatory.jobs.model.deadline import rfc3339, utc
from purgatory.jobs.model.job import shown_dedupe_key


def entity_tag(job: Job) -> str:
    """Return the ETag of a job: it changes with its version."""
    return f'"{job.version}"'


def job_response(
    job: Job,
    permit: Permit,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    *,
    is_paused: bool | None = None,
) -> RawResponse:
    """Return the response with a job, its ETag and `headers`.

    It says whether the handler is paused, unless `is_paused` is None. The fired value is
    for those who may wait for its key.
    """
    more = header_lines({"ETag": entity_tag(job), **(headers or {})})
    document = JobResponse(**_listed(job), **_large(job))
    if is_paused is not None:
        document = RunJobResponse(**document.model_dump(), paused=is_paused)
    if job.fired_key is not None and not permit.allows(Access(Action.WAIT, job.fired_key)):
        document.fired_value = None
    return RawResponse.from_json(status, document.model_dump_json().encode(), more)


def listed_job(job: Job) -> ListedJob:
    """Return a job as lists show it: without its payload."""
    return ListedJob(**_listed(job))


def _listed(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "handler": job.handler,
        "state": str(job.state),
        "outcome": None if job.outcome is None else str(job.outcome),
        "by_hand": job.is_by_hand,
        "version": job.version,
        "deadline": _timestamp(job.deadline_ms),
        "due": _timestamp(job.due_ms),
        "created": _timestamp(job.created_ms),
        "finished": _timestamp(job.finished_ms),
        "ceiling": _timestamp(job.ceiling_ms),
        "keys": list(job.keys),
        "until": _until(job),
        "on_fire": str(job.on_fire),
        "dedupe_key": _shown(job.dedupe_key),
        "concurrency_key": _shown(job.concurrency_key),
        "blocked_by": job.blocked_by,
        "misfire": str(job.misfire),
        "round": job.round,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "fired_key": job.fired_key,
        "fired_keys": list(job.fired_keys),
        "lateness_ms": job.lateness_ms,
        "error": job.error,
    }


def _large(job: Job) -> dict[str, Any]:
    payload, callback = job.payload, None
    if job.handler == CALLBACK and isinstance(payload, dict):
        # The values of headers may be secrets.
        callback = {
            "url": payload.get("url", ""),
            "method": payload.get("method", "POST"),
            "headers": list(payload.get("headers", ())),
        }
        payload = payload.get("payload")
    return {"payload": payload, "callback": callback, "fired_value": job.fired_value}


def _shown(key: str | None) -> str | None:
    return None if key is None else shown_dedupe_key(key)


def _until(job: Job) -> str | CountOfKeys:
    if job.needed == 1:
        return "any"
    return "all" if job.needed == len(job.keys) else CountOfKeys(count=job.needed)


def _timestamp(wall_ms: int | None) -> str | None:
    return None if wall_ms is None else rfc3339(utc(wall_ms))
