"""The handlers of delayed jobs: add, get, change, cancel, run, list, pause."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any, Final, cast
from urllib.parse import parse_qsl, urlencode

from fastapi import Header, Path, Query

from purgatory.errors import BadCursorError, PurgatoryError
from purgatory.fastapi.http.asgi import LEFT, DisconnectListener, may_have_body
from purgatory.fastapi.http.errors import problem_of_error
from purgatory.fastapi.http.idempotency import request_name
from purgatory.fastapi.http.json_bodies import KeyText, bad_field
from purgatory.fastapi.http.parameters import (
    EntityTags,
    Flag,
    IdempotencyKeyText,
    IfMatchTags,
    IfNoneMatchTags,
    PreferText,
    WholeNumber,
    jittered,
)
from purgatory.fastapi.http.requests import Access, Action, AsgiRequest, Permit, RawRequest
from purgatory.fastapi.http.responses import (
    Problem,
    RawResponse,
    bad_parameter,
    header_lines,
    release_frames,
    retry_after,
)
from purgatory.fastapi.jobs.schemas import (
    JobBody,
    PausedResponse,
    RescheduleBody,
    RetriedResponse,
    State,
    entity_tag,
    job_response,
    listed_job,
)
from purgatory.fastapi.watch.parked_requests import WaitRegistry
from purgatory.jobs import DuplicateJobError, InvalidPayloadError, Job, JobNotFoundError, JobState
from purgatory.jobs.callbacks import CALLBACK, Callback
from purgatory.jobs.model.job import owned_dedupe_key, owner_of, shown_dedupe_key
from purgatory.jobs.model.spec import JobOptions, JobSpec
from purgatory.jobs.model.steps import Added, AddStatus
from purgatory.outcome import Status
from purgatory.purgatory import Purgatory
from purgatory.turn_budget import TurnBudget

# As `new_job_id` makes them.
_JOB_ID: Final = re.compile("[0-9a-f]{32}")
_OPTIONS: Final = JobOptions.__annotations__.keys() & JobBody.model_fields.keys()


JobId = Annotated[
    str,
    Path(
        description="A job's id.",
        examples=["019aa6d0f48b3f6c2e9d1a7b4c5d6e7f"],
        # Any text may be an id: a job that does not exist is another problem.
        json_schema_extra={"maxLength": 64},
    ),
]
IdempotencyKey = Annotated[
    IdempotencyKeyText,
    Header(
        description="Names this request: a repeat of it gets the same job, and adds none, for as "
        "long as the job is kept."
    ),
]
IfMatch = Annotated[
    IfMatchTags, Header(description="ETags of the job: only if it is still at one of them.")
]
IfNoneMatch = Annotated[
    IfNoneMatchTags, Header(description="The ETag of the job as the client has it.")
]
Prefer = Annotated[PreferText, Header(description="`wait=25`: park while the job has that ETag.")]
OfHandler = Annotated[KeyText | None, Query(description="Only jobs of this handler.")]
OfKey = Annotated[KeyText | None, Query(description="Only jobs with this watch key.")]
PausedHandler = Annotated[
    KeyText | None,
    Query(
        description="The handler. Its name is not checked, as another service may have it: see "
        "`unknown`. Exactly one of `handler` and `all=true` is needed."
    ),
]
AllHandlers = Annotated[Flag, Query(description="`true`: all handlers.")]
Limit = Annotated[WholeNumber, Query(description="Jobs in the response.")]
After = Annotated[
    str | None,
    Query(
        description="Continues the page before: use its `next` as it is.",
        json_schema_extra={"maxLength": 64},
    ),
]


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

    def is_news(job: Job) -> bool:
        return not tags.match(entity_tag(job).encode())

    listener = DisconnectListener(raw.receive)

    async def sleep() -> bool:
        return not await listener.until_disconnect()

    if not may_have_body(raw.scope):
        await listener.read_empty_body()
    client = clients.key_of_raw(raw)
    counted = clients.enter(client if wait and clients.is_active else "")
    try:
        job, status = await jobs.watchers.wait_until(
            job_id,
            # A final job changes no more, so that waiting is of no use.
            lambda job: is_news(job) or job.state.is_final,
            timeout_ms=jobs.delay_ms(jittered(wait)),
            sleep=sleep,
            wake=listener.interrupt,
            client=client[1:] or None,
        )
    finally:
        clients.leave(counted)
    if status is Status.CANCELLED:
        return LEFT
    if is_news(job):
        return job_response(job, raw.permit, headers=applied)
    headers = {"ETag": entity_tag(job), **applied}
    if status is Status.DRAINED:
        headers |= {**retry_after(), "Connection": "close"}
    return RawResponse.empty(304, header_lines(headers))


async def joined_in_turns(rows: Iterable[bytes]) -> bytes:
    """Return encoded rows with commas between them: by pydantic, a thousand would be one turn."""
    budget = TurnBudget()
    found: list[bytes] = []
    for row in rows:
        found.append(row)
        await budget.yield_if_spent()
    return b",".join(found)


class JobEndpoints:
    """The handlers under `/jobs`, except that of batches."""

    def __init__(self, registry: WaitRegistry) -> None:
        """Work on the jobs of the purgatory of `registry`, which counts those who wait."""
        self._registry = registry
        self._purgatory = registry.purgatory

    async def add_job(
        self, raw: RawRequest, body: JobBody, idempotency_key: IdempotencyKey = None
    ) -> RawResponse:
        """Add a job.

        Do something later: at a deadline, when a key fires, or not at all if it fired.

        With the response the job is stored: its handler runs at least once, or its callback is
        made, and one outcome is recorded, whatever process dies. With an `Idempotency-Key`, a
        repeat gets the same job, from whichever process, and adds none.
        """
        check_access(raw.permit, body)
        spec = job_spec(self._purgatory, body, raw.permit)
        if idempotency_key is not None:
            spec = spec.of_request(*request_name(raw, idempotency_key))
        [added] = await self._purgatory.jobs.add([spec])
        if not isinstance(added, Added):
            raise add_problem(added, raw.address)
        location = {"Location": f"{raw.address}/{added.job.id}"}
        status = 201 if added.status is AddStatus.ADDED else 200
        return job_response(added.job, raw.permit, status, location)

    async def get_job(
        self, raw: AsgiRequest, id: JobId, if_none_match: IfNoneMatch = None, prefer: Prefer = None
    ) -> RawResponse:
        """Look at a job, or wait for it.

        Return a job; with `If-None-Match` and `Prefer: wait=25`, once it has changed.
        """
        wait = None if prefer is None else prefer.wait
        return await watch_job(self._registry, raw, id, if_none_match, wait)

    async def reschedule_job(
        self, raw: RawRequest, id: JobId, body: RescheduleBody, if_match: IfMatch = None
    ) -> RawResponse:
        """Move a job's deadline.

        Move the deadline of a waiting job, though not beyond its ceiling.
        """
        if_version = await self._version(id, if_match)
        job = await self._purgatory.jobs.reschedule(
            id, delay=body.delay, at=body.at, if_version=if_version
        )
        return job_response(job, raw.permit)

    async def run_job(self, raw: RawRequest, id: JobId, if_match: IfMatch = None) -> RawResponse:
        """Run a job now.

        Run a waiting job at once, in whichever process.

        Its outcome is `expired`, as at its deadline, and `by_hand` is true. If its handler is
        paused, `paused` is true, and it starts once that is resumed.
        """
        if_version = await self._version(id, if_match)
        # Before the change: a store that fails in between must not hide that the job is due.
        paused = await self._purgatory.jobs.paused()
        job = await self._purgatory.jobs.run_now(id, if_version=if_version)
        return job_response(job, raw.permit, is_paused=paused.covers(job.handler))

    async def retry_job(self, raw: RawRequest, id: JobId, if_match: IfMatch = None) -> RawResponse:
        """Retry a failed job.

        Run a failed job again, at once and with all its attempts.
        """
        if_version = await self._version(id, if_match)
        job = await self._purgatory.jobs.retry(id, if_version=if_version)
        return job_response(job, raw.permit)

    async def cancel_job(self, raw: RawRequest, id: JobId, if_match: IfMatch = None) -> RawResponse:
        """Cancel a job.

        Cancel a waiting job: from then on it never runs. Repeating is safe.
        """
        if_version = await self._version(id, if_match)
        job = await self._purgatory.jobs.cancel(id, if_version=if_version)
        return job_response(job, raw.permit)

    async def retry_jobs(
        self,
        raw: RawRequest,
        handler: OfHandler = None,
        key: OfKey = None,
        all: Annotated[
            Flag,
            Query(
                description="`true`: all failed jobs, or all that match. One of `handler`, `key` "
                "and `all=true` is needed."
            ),
        ] = False,
        limit: Limit = 100,
        after: After = None,
    ) -> RetriedResponse:
        """Retry failed jobs.

        Run failed jobs again, a batch at a time, about the newest first.

        At least one of `handler`, `key` and `all=true` is needed; a body is refused. Continue with
        `next`: then each is retried once, even if it fails again meanwhile.
        """
        _refuse_body(raw, "?handler=NAME, ?key=KEY or ?all=true")
        if handler is None and key is None and not all:
            raise bad_parameter(
                "handler",
                "nothing says which failed jobs",
                "?handler=NAME, ?key=KEY, both, ?all=true",
            )
        await self._check_after(after)
        page = await self._purgatory.jobs.retry_all(
            handler=handler, key=key, after=after, limit=limit
        )
        return RetriedResponse(retried=page.retried, next=_following(raw, page.next))

    async def pause_handler(
        self, raw: RawRequest, handler: PausedHandler = None, all: AllHandlers = False
    ) -> PausedResponse:
        """Pause a handler.

        Start no more jobs of a handler, or of all, in any process. What runs goes on.

        Exactly one of `handler` and `all=true` is needed; a body is refused.
        """
        _check_choice(raw, handler, is_all=all)
        await self._purgatory.jobs.pause(handler)
        return await self.paused_handlers()

    async def resume_handler(
        self, raw: RawRequest, handler: PausedHandler = None, all: AllHandlers = False
    ) -> PausedResponse:
        """Resume a handler.

        End the pause of that handler, or of all: what was due meanwhile runs now.

        Exactly one of `handler` and `all=true` is needed; a body is refused. A handler that is
        paused by name stays so when all are resumed.
        """
        _check_choice(raw, handler, is_all=all)
        await self._purgatory.jobs.resume(handler)
        return await self.paused_handlers()

    async def paused_handlers(self) -> PausedResponse:
        """List paused handlers.

        Return the handlers that are paused, and how many jobs wait for that to end.
        """
        return await paused_response(self._purgatory)

    async def list_jobs(
        self,
        raw: RawRequest,
        state: Annotated[State | None, Query(description="Only jobs in this state.")] = None,
        handler: OfHandler = None,
        key: OfKey = None,
        concurrency_key: Annotated[
            KeyText | None,
            Query(description="Only jobs with this concurrency key, whichever client added them."),
        ] = None,
        blocked: Annotated[
            Flag,
            Query(
                description="`true`: only jobs that are due and wait for a slot of their handler, "
                "or until it is resumed: `blocked_by` is not null."
            ),
        ] = False,
        limit: Limit = 100,
        after: After = None,
    ) -> RawResponse:
        """List jobs.

        List jobs, about the newest first, without their payloads.
        """
        await self._check_after(after)
        # On a turn of its own, most of which a store in memory may take.
        await asyncio.sleep(0)
        page = await self._purgatory.jobs.list(
            state=None if state is None else JobState(state),
            handler=handler,
            key=key,
            concurrency_key=concurrency_key,
            blocked=blocked,
            after=after,
            limit=limit,
        )
        following = _following(raw, page.next)
        more = b"" if following is None else f'link: <{following}>; rel="next"\r\n'.encode("ascii")
        rows = (listed_job(job).model_dump_json().encode() for job in page.jobs)
        fields = await joined_in_turns(rows), json.dumps(following).encode()
        return RawResponse.from_json(200, b'{"jobs":[%b],"next":%b}' % fields, more)

    async def _check_after(self, after: str | None) -> None:
        """Raise Problem unless a page can have ended with that job."""
        if after is None or _JOB_ID.fullmatch(after):
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

    async def _version(self, job_id: str, tags: EntityTags | None) -> int | None:
        """Return the version that If-Match names; raise Problem if the job has another one."""
        if tags is None or tags.is_any:
            return None
        if len(tags.strong_tags) == 1:
            version = _version_of(*tags.strong_tags)
            if version is not None:
                return version
        # One of several, or a tag that is no version.
        job = await self._purgatory.jobs.get(job_id)
        if not tags.match_strongly(entity_tag(job).encode()):
            raise changed(job, b", ".join(sorted(tags.opaque_tags)).decode("latin-1"))
        return job.version


async def paused_response(purgatory: Purgatory) -> PausedResponse:
    """Return the handlers that are paused, and which of them this process does not know."""
    paused = await purgatory.jobs.paused()
    return PausedResponse(
        handlers=list(paused.handlers),
        all=paused.is_all,
        jobs=paused.jobs,
        unknown=[name for name in paused.handlers if not purgatory.handlers.knows(name)],
    )


def _following(raw: RawRequest, after: str | None) -> str | None:
    """Return the address of the page that follows; None after the last one."""
    if after is None:
        return None
    query = dict(parse_qsl(raw.query_string.decode()))
    return f"{raw.address}?{urlencode({**query, 'after': after})}"


def _check_choice(raw: RawRequest, handler: str | None, *, is_all: bool) -> None:
    """Raise Problem unless either one handler is chosen, or all."""
    _refuse_body(raw, "?handler=NAME or ?all=true")
    if is_all == (handler is not None):
        given = "neither is" if handler is None else "both are"
        raise bad_parameter(
            "handler",
            f"exactly one of handler and all=true is needed, and {given} given",
            "?handler=NAME, ?all=true",
        )


def _refuse_body(raw: RawRequest, parameters: str) -> None:
    """Raise Problem for a request with a body: ignored, it would not choose what it names."""
    lengths = raw.headers_named(b"content-length")
    if raw.headers_named(b"transfer-encoding") or any(length.strip("0") for length in lengths):
        raise bad_parameter(
            "body",
            f"the request has a body, which this endpoint does not read: choose with {parameters}",
            "no body",
        )


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
    callback, handler, payload = body.callback, body.handler or CALLBACK, body.payload
    try:
        if callback is not None:
            payload = Callback.of(
                callback.url, method=callback.method, headers=callback.headers, payload=payload
            )
        purgatory.handlers.require_http(handler)
        spec = purgatory.jobs.spec(handler, payload, since=body.since, **_options(body, permit))
    except BadCursorError as exc:
        raise problem_of_error(exc, "since") from exc
    except InvalidPayloadError as exc:
        # By the client's name: to the library a callback is a payload.
        if exc.param != "payload":
            exc.param = f"callback.{exc.param}"
        raise
    identity = permit.identity
    return spec if identity is None else replace(spec, owner=owner_of(identity))


def _options(body: JobBody, permit: Permit) -> JobOptions:
    """Return the options of a job: the fields of the same names."""
    options: Any = {name: getattr(body, name) for name in _OPTIONS}
    if "max_attempts" not in body.model_fields_set:
        # That of the handler, if it has one.
        del options["max_attempts"]
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
