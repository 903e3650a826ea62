"""What can be done with delayed jobs: add, ask, change, cancel, run, list."""

from __future__ import annotations

import json
import re
from typing import Any, Final
from urllib.parse import urlencode

from purgatory.errors import InvalidKeyError
from purgatory.fastapi.http.body_schema import Location
from purgatory.fastapi.http.idempotency import RepeatedRequests, request_name, used_otherwise
from purgatory.fastapi.http.json_bodies import bad_field, parse_body
from purgatory.fastapi.http.permit import Access, Action
from purgatory.fastapi.http.preferences import parse_entity_tags
from purgatory.fastapi.http.problems import ALLOWED_KEY, Problem, bad_parameter, problem_of_error
from purgatory.fastapi.http.raw_request import RawRequest, read_query, whole_number
from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.http.validation_errors import ParameterErrors
from purgatory.fastapi.jobs.responses import entity_tag, job_response, listed_job
from purgatory.fastapi.jobs.schemas import (
    CallbackBody,
    JobBody,
    JobsResponse,
    RescheduleBody,
    job_body,
)
from purgatory.jobs import (
    CALLBACK,
    AddStatus,
    Callback,
    DuplicateJobError,
    InvalidPayloadError,
    Job,
    JobError,
    JobFilter,
    JobLimits,
    JobNotFoundError,
    JobSpec,
    JobState,
)
from purgatory.operations.watch_key import check_key
from purgatory.purgatory import Purgatory

NO_QUERY: Final = frozenset[str]()
LIST_QUERY: Final = frozenset({"state", "handler", "key", "limit", "after"})
DEFAULT_LIST_LIMIT: Final = 100
# As `new_job_id` makes them.
_JOB_ID: Final = re.compile("[0-9a-f]{32}")


class JobEndpoints:
    """The handlers under `/jobs`, but for those that wait or stream."""

    def __init__(self, purgatory: Purgatory, limits: JobLimits) -> None:
        """Work on the jobs of `purgatory`, whose store has `limits`."""
        self._purgatory = purgatory
        self._limits = limits
        self._model = job_body(limits)
        self._repeats = RepeatedRequests(purgatory.clock)

    async def add(self, raw: RawRequest) -> RawResponse:
        """Add a job."""
        raw.permit.check(Access(Action.DEFER))
        raw.query(NO_QUERY)
        # Before anything is remembered: those who may not are told so, whatever was done before.
        body = parse_body(self._model, raw.body)
        raw.permit.check_keys(Action.WAIT, body.keys)
        # A repeat that comes to this process soon is given the very same answer. Others are told of
        # the job that the store has.
        return await self._repeats.respond(raw, lambda: self._add(body, raw))

    async def _add(self, body: JobBody, raw: RawRequest) -> RawResponse:
        spec = job_spec(self._purgatory, body)
        name = request_name(raw)
        if name is not None:
            wall_ms = self._purgatory.clock.wall_ms()
            spec = spec.of_request(json.dumps(["POST jobs", *name]), wall_ms=wall_ms)
        [added] = await self._purgatory.add_jobs([spec])
        if isinstance(added, JobError):
            raise refusal(added, raw.path)
        is_repeat = added.status is AddStatus.KEPT and added.job.id in spec.ids
        if name is not None and is_repeat and not spec.may_be(added.job, self._limits):
            raise used_otherwise(name)
        is_new = is_repeat or added.status is AddStatus.ADDED
        location = {"Location": f"{raw.path}/{added.job.id}"}
        return job_response(added.job, 201 if is_new else 200, location)

    async def change(self, raw: RawRequest) -> RawResponse:
        """Move a job's deadline."""
        raw.permit.check(Access(Action.DEFER, job=raw.tail))
        raw.query(NO_QUERY)
        body = parse_body(RescheduleBody, raw.body)
        job = await self._purgatory.reschedule(
            raw.tail, delay=body.delay, at=body.at, if_version=await self._if_version(raw)
        )
        return job_response(job)

    async def run(self, raw: RawRequest) -> RawResponse:
        """Have a job run now."""
        raw.permit.check(Access(Action.DEFER, job=raw.tail))
        raw.query(NO_QUERY)
        if_version = await self._if_version(raw)
        return job_response(await self._purgatory.run_now(raw.tail, if_version=if_version))

    async def cancel(self, raw: RawRequest) -> RawResponse:
        """Cancel a job."""
        raw.permit.check(Access(Action.DEFER, job=raw.tail))
        raw.query(NO_QUERY)
        if_version = await self._if_version(raw)
        return job_response(await self._purgatory.cancel_job(raw.tail, if_version=if_version))

    async def list_jobs(self, raw: RawRequest) -> RawResponse:
        """List jobs, a page at a time."""
        raw.permit.check(Access(Action.OPERATE))
        wrong = ParameterErrors()
        query = read_query(raw.query_string, LIST_QUERY, wrong)
        limit = wrong.read(whole_number, query, "limit", DEFAULT_LIST_LIMIT)
        where = _filter(query, wrong)
        wrong.refuse()
        assert limit
        after = query.get("after")
        if after is not None:
            await self._check_after(after)
        page = await self._purgatory.jobs(
            state=where.state, handler=where.handler, key=where.key, after=after, limit=limit
        )
        following, more = None, b""
        if page.next is not None:
            following = f"{raw.path}?{urlencode({**query, 'after': page.next})}"
            more = f'link: <{following}>; rel="next"\r\n'.encode("ascii")
        document = JobsResponse(jobs=[listed_job(job) for job in page.jobs], next=following)
        return RawResponse.from_json(200, document.model_dump_json().encode(), more)

    async def _check_after(self, after: str) -> None:
        """Raise Problem for what no page can have had as its last job."""
        if _JOB_ID.fullmatch(after):
            return
        try:
            # Who adds jobs in Python may give them ids of their own.
            await self._purgatory.job(after).get()
        except JobNotFoundError as exc:
            raise bad_parameter(
                "after",
                f"after is {after[:64]!r}, which no page ended with",
                "that of a `next` address, as it is; none for the first page",
            ) from exc

    async def _if_version(self, raw: RawRequest) -> int | None:
        """Return the version that If-Match names; raise Problem where the job is not at it."""
        headers = raw.headers_named(b"if-match")
        tags = parse_entity_tags(headers, "If-Match")
        if tags is None or tags.is_any:
            return None
        if len(tags.strong_tags) == 1:
            version = _version_of(*tags.strong_tags)
            if version is not None:
                return version
        # One of several, or none of ours.
        job = await self._purgatory.job(raw.tail).get()
        if not tags.match_strongly(entity_tag(job).encode()):
            raise changed(job, ", ".join(headers))
        return job.version


def _version_of(tag: bytes) -> int | None:
    """Return the version that has this ETag; None where none has."""
    digits = tag[1:-1]
    is_version = digits.isdigit() and len(digits) < 16 and not digits.startswith(b"0")
    return int(digits) if is_version else None


def job_spec(purgatory: Purgatory, body: JobBody) -> JobSpec:
    """Return what `body` asks for, checked; raise Problem or PurgatoryError."""
    if (body.handler is None) == (body.callback is None):
        given = "neither is" if body.handler is None else "both are"
        raise bad_parameter(
            "handler",
            f"a job has a handler or a callback, and {given} given",
            "exactly one of handler and callback",
        )
    _check_keys(body)
    handler: str = CALLBACK
    payload: Any = body.payload
    if body.callback is not None:
        payload = _callback(body.callback, body.payload)
    else:
        assert body.handler is not None
        handler = body.handler
    return purgatory.job_spec(
        handler,
        payload,
        delay=body.delay,
        at=body.at,
        keys=body.keys,
        on_fire=body.on_fire,
        dedupe_key=body.dedupe_key,
        on_conflict=body.on_conflict,
        max_attempts=body.max_attempts,
        misfire=body.misfire,
        ceiling=body.ceiling,
    )


def _callback(body: CallbackBody, payload: Any) -> Callback:
    try:
        return Callback.of(body.url, method=body.method, headers=body.headers, payload=payload)
    except InvalidPayloadError as exc:
        # As the client calls it: to the library a callback is a payload.
        exc.param = f"callback.{exc.param}"
        raise


def _check_keys(body: JobBody) -> None:
    """Raise Problem that says which of the keys of a job is none."""
    named: list[tuple[Location, str]] = [
        (("keys", index), key) for index, key in enumerate(body.keys)
    ]
    if body.dedupe_key is not None:
        named.append((("dedupe_key",), body.dedupe_key))
    for path, key in named:
        try:
            check_key(key)
        except InvalidKeyError as exc:
            raise bad_field(path, exc.detail, ALLOWED_KEY) from exc


def refusal(error: JobError, path: str) -> Problem:
    """Return why a job was not added, with the address of the one that is in its way."""
    problem = problem_of_error(error)
    if isinstance(error, DuplicateJobError):
        address = f"{path}/{error.job.id}"
        problem.members |= {"job": address}
        problem.headers = {"Location": address}
    return problem


def changed(job: Job, header: str) -> Problem:
    """Return the refusal of an If-Match that is not the job's ETag."""
    return Problem(
        "job-changed",
        f"job {job.id} is at {entity_tag(job)}, not {header[:64]}: read it and decide anew",
        etag=entity_tag(job),
    )


def _check_name(param: str, text: str) -> None:
    try:
        check_key(text)
    except InvalidKeyError as exc:
        raise bad_parameter(param, f"{param}: {exc.detail}", ALLOWED_KEY) from exc


def _filter(query: dict[str, str], wrong: ParameterErrors) -> JobFilter:
    """Return which jobs to list; keep in `wrong` what names none."""
    for name in ("handler", "key"):
        if name in query:
            wrong.read(_check_name, name, query[name])
    return JobFilter(
        state=wrong.read(_state, query.get("state")),
        handler=query.get("handler"),
        key=query.get("key"),
    )


def _state(name: str | None) -> JobState | None:
    states = [str(known) for known in JobState]
    if name is not None and name not in states:
        raise bad_parameter("state", f"state is {name[:64]!r}", ", ".join(states))
    return None if name is None else JobState(name)
