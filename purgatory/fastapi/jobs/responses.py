"""Jobs as responses: GET of a job, and the wait until it changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.types import Receive

from purgatory.errors import LimitReachedError
from purgatory.fastapi.http.asgi_connection import (
    LEFT,
    DisconnectListener,
    may_have_body,
)
from purgatory.fastapi.http.exception_handlers import problem_of_error
from purgatory.fastapi.http.parameters import EntityTags, jittered
from purgatory.fastapi.http.raw_request import Access, Action, AsgiRequest, Permit
from purgatory.fastapi.http.raw_response import RawResponse, header_lines, retry_after
from purgatory.fastapi.jobs.schemas import JobResponse, ListedJob, RunJobResponse
from purgatory.fastapi.watch.parked_requests import WaitRegistry
from purgatory.fastapi.watch.schemas import CountOfKeys
from purgatory.jobs import Job, Jobs
from purgatory.jobs.callbacks import CALLBACK
from purgatory.jobs.model.deadline import rfc3339, utc
from purgatory.jobs.model.job import shown_dedupe_key
from purgatory.outcome import Status


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


async def watch_job(
    registry: WaitRegistry,
    raw: AsgiRequest,
    job_id: str,
    tags: EntityTags | None,
    asked: float | None,
) -> RawResponse:
    """Return a job; with `tags`, once it has changed, for up to `asked` seconds.

    While it waits, the request's task is in `receive()`, which a change interrupts; so a client
    that leaves ends the wait at once. It counts as a parked request.
    """
    jobs, clients = registry.purgatory.jobs, registry.clients
    wait = min(asked or 0.0, registry.settings.max_wait)
    applied = {} if asked is None else {"Preference-Applied": f"wait={wait:g}"}
    if tags is None:
        return job_response(await jobs.get(job_id), raw.permit, headers=applied)
    client = clients.key_of_raw(raw)
    watch = _JobWatch(tags, raw.receive, client=client[1:] or None)
    if not may_have_body(raw.scope):
        await watch.read_empty_body()
    try:
        counted = clients.enter(client if wait and clients.is_active else "")
    except LimitReachedError as exc:
        raise problem_of_error(exc) from exc
    try:
        job, status = await watch.run(jobs, job_id, wait)
    finally:
        clients.leave(counted)
    if status is Status.CANCELLED:
        return LEFT
    if watch.is_news(job):
        return job_response(job, raw.permit, headers=applied)
    return _not_modified(job, applied, status)


class _JobWatch(DisconnectListener):
    """One request's wait, in its own task."""

    __slots__ = ("_cancelling", "_client", "_receive", "_tags", "_task")

    def __init__(self, tags: EntityTags, receive: Receive, *, client: str | None) -> None:
        self._tags = tags
        self._client = client
        self._receive = receive
        self._task = None

    def is_news(self, job: Job) -> bool:
        """Return True iff the client does not have the job as it is."""
        return not self._tags.match(entity_tag(job).encode())

    async def run(self, jobs: Jobs, job_id: str, wait: float) -> tuple[Job, Status]:
        """Return the job, and how the wait for news of it ended: CANCELLED if the client left."""
        return await jobs.watchers.wait_until(
            job_id,
            # A final job changes no more, so that waiting is of no use.
            lambda job: self.is_news(job) or job.state.is_final,
            timeout_ms=jobs.delay_ms(jittered(wait)),
            sleep=self._sleep,
            wake=self.interrupt,
            client=self._client,
        )

    async def _sleep(self) -> bool:
        return not await self.until_disconnect()


def _not_modified(job: Job, applied: dict[str, str], status: Status) -> RawResponse:
    headers = {"ETag": entity_tag(job), **applied}
    if status is Status.DRAINED:
        headers |= {**retry_after(), "Connection": "close"}
    return RawResponse.empty(304, header_lines(headers))
