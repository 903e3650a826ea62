"""The handlers of delayed jobs: add, change, cancel, run, list."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, Final, cast
from urllib.parse import urlencode

from purgatory.errors import BadCursorError, InvalidKeyError, PurgatoryError
from purgatory.fastapi.http.idempotency import request_name
from purgatory.fastapi.http.json_bodies import bad_field
from purgatory.fastapi.http.parameters import NO_PARAMETERS, ParameterValues
from purgatory.fastapi.http.problem_mapping import problem_of_error
from purgatory.fastapi.http.problems import ALLOWED_KEY, Problem, bad_parameter, release_frames
from purgatory.fastapi.http.raw_request import READ, Access, Action, Permit, RawRequest
from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.http.request_headers import EntityTags
from purgatory.fastapi.http.schemas import Location
from purgatory.fastapi.jobs import parameters
from purgatory.fastapi.jobs.schemas import (
    RESCHEDULE_JSON,
    CallbackBody,
    JobBody,
    PausedResponse,
    RetriedResponse,
    job_json,
)
from purgatory.fastapi.jobs.watch_endpoint import entity_tag, job_response, listed_job
from purgatory.jobs import DuplicateJobError, InvalidPayloadError, Job, JobLimits, JobNotFoundError
from purgatory.jobs.callbacks import CALLBACK, Callback
from purgatory.jobs.model import Added, AddStatus, JobOptions, JobSpec
from purgatory.jobs.model.job import owned_dedupe_key, owner_of, shown_dedupe_key
from purgatory.operations.watch_key import check_key
from purgatory.purgatory import Purgatory
from purgatory.turn_budget import TurnBudget

# As `new_job_id` makes them.
_JOB_ID: Final = re.compile("[0-9a-f]{32}")
_OPTIONS: Final = JobOptions.__annotations__.keys() & JobBody.model_fields.keys()


class JobEndpoints:
    """The handlers under `/jobs`, except those that wait or stream."""

    def __init__(self, purgatory: Purgatory, limits: JobLimits) -> None:
        """Work on the jobs of `purgatory`, whose store has `limits`."""
        self._purgatory = purgatory
        self._job = job_json(limits)

    async def add(self, raw: RawRequest) -> RawResponse:
        """Add a job."""
        raw.permit.check(Access(Action.DEFER))
        key = parameters.ADD.parse(raw)[parameters.IDEMPOTENCY_KEY]
        body = await self._job.parse_in_turns(raw.body)
        check_access(raw.permit, body)
        spec = job_spec(self._purgatory, body, raw.permit)
        if key is not None:
            spec = spec.of_request(*request_name(raw, key))
        [added] = await self._purgatory.jobs.add([spec])
        if not isinstance(added, Added):
            raise add_problem(added, raw.address)
        location = {"Location": f"{raw.address}/{added.job.id}"}
        status = 201 if added.status is AddStatus.ADDED else 200
        return job_response(added.job, raw.permit, status, location)

    async def change(self, raw: RawRequest) -> RawResponse:
        """Move a job's deadline."""
        raw.permit.check(Access(Action.DEFER))
        tags = parameters.CHANGE.parse(raw)[parameters.IF_MATCH]
        body = RESCHEDULE_JSON.parse(raw.body)
        job = await self._purgatory.jobs.reschedule(
            raw.path_value, delay=body.delay, at=body.at, if_version=await self._version(raw, tags)
        )
        return job_response(job, raw.permit)

    async def run(self, raw: RawRequest) -> RawResponse:
        """Have a job run now."""
        raw.permit.check(Access(Action.DEFER))
        tags = parameters.CHANGE.parse(raw)[parameters.IF_MATCH]
        if_version = await self._version(raw, tags)
        # Before the change: a store that fails in between must not hide that the job is due.
        paused = await self._purgatory.jobs.paused()
        job = await self._purgatory.jobs.run_now(raw.path_value, if_version=if_version)
        return job_response(job, raw.permit, is_paused=paused.covers(job.handler))

    async def retry(self, raw: RawRequest) -> RawResponse:
        """Have a failed job run again."""
        raw.permit.check(Access(Action.OPERATE))
        tags = parameters.CHANGE.parse(raw)[parameters.IF_MATCH]
        if_version = await self._version(raw, tags)
        job = await self._purgatory.jobs.retry(raw.path_value, if_version=if_version)
        return job_response(job, raw.permit)

    async def retry_batch(self, raw: RawRequest) -> RawResponse:
        """Have a batch of the failed jobs run again."""
        raw.permit.check(Access(Action.OPERATE))
        values = parameters.parse_retry(raw)
        after = values[parameters.AFTER]
        if after is not None:
            await self._check_after(after)
        page = await self._purgatory.jobs.retry_all(
            handler=values[parameters.HANDLER],
            key=values[parameters.KEY],
            after=after,
            limit=values[parameters.LIMIT],
        )
        following = None
        if page.next is not None:
            following = f"{raw.address}?{urlencode(_chosen(values, page.next))}"
        document = RetriedResponse(retried=page.retried, next=following)
        return RawResponse.from_json(200, document.model_dump_json().encode())

    async def pause(self, raw: RawRequest) -> RawResponse:
        """Pause a handler, or all."""
        raw.permit.check(Access(Action.OPERATE))
        await self._purgatory.jobs.pause(parameters.parse_paused_handler(raw))
        return await self._paused()

    async def resume(self, raw: RawRequest) -> RawResponse:
        """Resume a handler, or all."""
        raw.permit.check(Access(Action.OPERATE))
        await self._purgatory.jobs.resume(parameters.parse_paused_handler(raw))
        return await self._paused()

    async def paused(self, raw: RawRequest) -> RawResponse:
        """Show which handlers are paused."""
        raw.permit.check(READ)
        NO_PARAMETERS.parse(raw)
        return await self._paused()

    async def _paused(self) -> RawResponse:
        paused = await self._purgatory.jobs.paused()
        document = PausedResponse(
            handlers=list(paused.handlers),
            all=paused.is_all,
            parked=paused.parked,
            unknown=[name for name in paused.handlers if not self._purgatory.handlers.knows(name)],
        )
        return RawResponse.from_json(200, document.model_dump_json().encode())

    async def cancel(self, raw: RawRequest) -> RawResponse:
        """Cancel a job."""
        raw.permit.check(Access(Action.DEFER))
        tags = parameters.CHANGE.parse(raw)[parameters.IF_MATCH]
        if_version = await self._version(raw, tags)
        job = await self._purgatory.jobs.cancel(raw.path_value, if_version=if_version)
        return job_response(job, raw.permit)

    async def list_jobs(self, raw: RawRequest) -> RawResponse:
        """List jobs, a page at a time."""
        raw.permit.check(READ)
        values = parameters.LIST.parse(raw)
        after = values[parameters.AFTER]
        if after is not None:
            await self._check_after(after)
        page = await self._purgatory.jobs.list(
            state=values[parameters.STATE],
            handler=values[parameters.HANDLER],
            key=values[parameters.KEY],
            concurrency_key=values[parameters.CONCURRENCY_KEY],
            blocked=values[parameters.BLOCKED],
            after=after,
            limit=values[parameters.LIMIT],
        )
        following, more = None, b""
        if page.next is not None:
            following = f"{raw.address}?{urlencode(_chosen(values, page.next))}"
            more = f'link: <{following}>; rel="next"\r\n'.encode("ascii")
        budget = TurnBudget()
        rows: list[bytes] = []
        for job in page.jobs:
            rows.append(listed_job(job).model_dump_json().encode())
            await budget.yield_if_spent()
        fields = b",".join(rows), json.dumps(following).encode()
        return RawResponse.from_json(200, b'{"jobs":[%b],"next":%b}' % fields, more)

    async def _check_after(self, after: str) -> None:
        """Raise Problem unless a page can have ended with that job."""
        if _JOB_ID.fullmatch(after):
            return
        try:
            # Jobs that are added in Python may have ids of their own.
            await self._purgatory.jobs.get(after)
        except JobNotFoundError as exc:
            raise bad_parameter(
                "after",
                f"after is {after[:64]!r}, which no page ended with",
                "the `after` of a `next` address, as it is; left out for the first page",
            ) from exc

    async def _version(self, raw: RawRequest, tags: EntityTags | None) -> int | None:
        """Return the version that If-Match names; raise Problem if the job has another one."""
        if tags is None or tags.is_any:
            return None
        if len(tags.strong_tags) == 1:
            version = _version_of(*tags.strong_tags)
            if version is not None:
                return version
        # One of several, or a tag that is no version.
        job = await self._purgatory.jobs.get(raw.path_value)
        if not tags.match_strongly(entity_tag(job).encode()):
            raise changed(job, ", ".join(raw.headers_named(b"if-match")))
        return job.version


def _chosen(values: ParameterValues, after: str) -> dict[str, Any]:
    """Return the parameters of the page that follows."""
    chosen = {**values.by_name(), "after": after}
    return {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in chosen.items()
    }


def _version_of(tag: bytes) -> int | None:
    """Return the version that has this ETag; None if no version has it."""
    digits = tag[1:-1]
    is_version = digits.isdigit() and len(digits) < 16 and not digits.startswith(b"0")
    return int(digits) if is_version else None


def check_access(permit: Permit, body: JobBody) -> None:
    """Raise Problem unless the client may wait on the keys of a job and use its dedupe key."""
    permit.check_keys(Action.WAIT, body.keys)
    if body.dedupe_key is not None:
        permit.check(Access(Action.DEFER, dedupe_key=body.dedupe_key))


def job_spec(purgatory: Purgatory, body: JobBody, permit: Permit) -> JobSpec:
    """Return the job that `body` describes, with the client as its owner.

    Raises Problem or PurgatoryError.
    """
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
    purgatory.handlers.require_http(handler)
    try:
        spec = purgatory.jobs.spec(handler, payload, since=body.since, **_options(body, permit))
    except BadCursorError as exc:
        raise problem_of_error(exc, "since") from exc
    except InvalidPayloadError as exc:
        _name_as_in_body(exc)
        raise
    identity = permit.identity
    return spec if identity is None else replace(spec, owner=owner_of(identity))


def _options(body: JobBody, permit: Permit) -> JobOptions:
    """Return the options of a job: the fields of the same names."""
    options: Any = {name: getattr(body, name) for name in _OPTIONS}
    for name in ("dedupe_key", "concurrency_key"):
        options[name] = _owned_key(name, options[name], permit)
    if not isinstance(body.until, str):
        options["until"] = body.until.count
    return cast(JobOptions, options)


def _owned_key(name: str, key: str | None, permit: Permit) -> str | None:
    """Return a key as it is stored: that of the client, apart from equal keys of others."""
    if key is None:
        return None
    owner = permit.dedupe_owner(key)
    if owner is not None:
        return owned_dedupe_key(key, owner)
    if shown_dedupe_key(key) != key:
        raise bad_field(
            (name,),
            "it begins like the stored key of another client",
            "a key that does not begin with ~, 16 hexadecimal digits and ~",
        )
    return key


def _callback(body: CallbackBody, payload: Any) -> Callback:
    try:
        return Callback.of(body.url, method=body.method, headers=body.headers, payload=payload)
    except InvalidPayloadError as exc:
        _name_as_in_body(exc)
        raise


def _name_as_in_body(error: InvalidPayloadError) -> None:
    # By the client's name: to the library a callback is a payload.
    if error.param != "payload":
        error.param = f"callback.{error.param}"


def _check_keys(body: JobBody) -> None:
    """Raise Problem that names the first invalid key of a job, or its handler."""
    named: list[tuple[Location, str]] = [
        (("keys", index), key) for index, key in enumerate(body.keys)
    ]
    for name, key in (
        ("dedupe_key", body.dedupe_key),
        ("concurrency_key", body.concurrency_key),
        ("handler", body.handler),
    ):
        if key is not None:
            named.append(((name,), key))
    for path, key in named:
        try:
            check_key(key)
        except InvalidKeyError as exc:
            raise bad_field(path, exc.detail, ALLOWED_KEY) from exc


def add_problem(error: PurgatoryError, path: str) -> Problem:
    """Return the problem of a job that was not added, with the address of its duplicate."""
    problem = problem_of_error(error)
    release_frames(error)
    if isinstance(error, DuplicateJobError):
        address = f"{path}/{error.job.id}"
        problem.members |= {"job": address}
        problem.headers = {"Location": address}
    return problem


def changed(job: Job, header: str) -> Problem:
    """Return the problem of an If-Match that is not the job's ETag."""
    return Problem(
        "job-changed",
        f"job {job.id} has the ETag {entity_tag(job)}, not {header[:64]}: read it and decide again",
        etag=entity_tag(job),
    )
