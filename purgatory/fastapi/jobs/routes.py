"""The routes under `/jobs`, and adding many jobs at once: JSON Lines in, JSON Lines out."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from functools import partial
from io import BytesIO
from itertools import islice
from typing import Any, Final

from fastapi import APIRouter
from starlette.types import Send

from purgatory.errors import PurgatoryError
from purgatory.fastapi.http.asgi import ResponseUnreadError, sending
from purgatory.fastapi.http.errors import problem_of_exception
from purgatory.fastapi.http.idempotency import request_name
from purgatory.fastapi.http.requests import READ, Access, Action, RawRequest
from purgatory.fastapi.http.responses import Problem, bad_parameter
from purgatory.fastapi.jobs.endpoints import (
    IdempotencyKey,
    JobEndpoints,
    add_problem,
    check_access,
    job_spec,
)
from purgatory.fastapi.jobs.schemas import (
    RESCHEDULE_JSON,
    BatchLine,
    JobBody,
    JobResponse,
    JobsResponse,
    RunJobResponse,
    job_json,
    max_batch_bytes,
)
from purgatory.fastapi.routing.endpoints import EndpointContext, Sending
from purgatory.fastapi.routing.routes import add_handler, response_header
from purgatory.fastapi.watch.parked_requests import WaitRegistry
from purgatory.jobs import JobLimits
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import Added, AddStatus
from purgatory.turn_budget import TurnBudget

MAX_JOB_LINES: Final = 10_000
# Lines that are stored and reported together: one step of a store.
CHUNK: Final = 100
# Refused lines after which no more are read: a program that makes one makes them all, as a rule.
MAX_REFUSED: Final = 100
# Bytes of what is said of refused lines, and for each byte of the request.
REFUSAL_BYTES: Final = 64 * 1024
REFUSAL_FACTOR: Final = 4
# Bytes whose line feeds are counted by one call.
_COUNTED: Final = 64 * 1024
_SPACE: Final = b" \t\r\n"


class JobBatch:
    """The handler of `/jobs:batch`, which acknowledges or refuses each line by itself."""

    def __init__(self, context: EndpointContext, limits: JobLimits) -> None:
        """Add to the jobs of the purgatory of `context`, whose store has `limits`."""
        self.context = context
        self.max_body = max_batch_bytes(limits)
        self.job = job_json(limits)

    async def add_jobs(self, raw: RawRequest, idempotency_key: IdempotencyKey = None) -> Sending:
        """Add many jobs.

        Add up to 10,000 jobs: JSON Lines, each a job as in `POST /jobs`.

        Each line is acknowledged or refused by itself; the response has a line for each, in order,
        and is sent as the jobs are stored. With an `Idempotency-Key`, a repeat of the same lines
        gets the same jobs, and adds those that are missing.

        After 100 refused lines, or too many bytes of problems, the rest is not read: the last line
        of the response has the number of the first of them as `line`, the status 424, and a problem
        that says how many to send again; with an `Idempotency-Key`, under another one.
        """
        count, lines = split_lines(raw.body)
        refusals = _Refusals(self.context.prefix, raw.path, len(raw.body), idempotency_key)
        results = self._results(raw, count, lines, refusals, idempotency_key)
        return partial(self._send, len(raw.body), results)

    async def _send(self, held_bytes: int, results: AsyncIterator[bytes], send: Send) -> None:
        """Send results as soon as they are there.

        The whole body, which is bounded, is read before the first one is sent: most clients send
        all of it before they read anything.
        """
        headers = [(b"content-type", b"application/jsonl"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        with suppress(ResponseUnreadError):
            async for part in results:
                # The lines wait, and are held, for as long as the client reads no results.
                with sending(held_bytes + len(part), self.context.unread):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    async def _results(
        self,
        raw: RawRequest,
        count: int,
        lines: Iterator[bytes],
        refusals: _Refusals,
        key: str | None,
    ) -> AsyncIterator[bytes]:
        """Yield the results of `count` lines, a chunk at a time."""
        budget = TurnBudget()
        numbered = enumerate(lines, 1)
        number = 0
        while not refusals.are_enough() and (chunk := list(islice(numbered, CHUNK))):
            results: dict[int, bytes] = {}
            specs: dict[int, JobSpec] = {}
            for number, line in chunk:
                await budget.yield_if_spent()
                try:
                    spec = self._spec(raw, line)
                    if key is not None:
                        # Each line is stored by itself, and so each may be a repeat.
                        spec = spec.of_request(*request_name(raw, key), number)
                    specs[number] = spec
                except Exception as exc:
                    problem = problem_of_exception(exc, "POST", raw.path)
                    results[number] = refusals.result(number, problem)
                    if refusals.are_enough():
                        break
            if specs:
                results |= await self._add(raw, specs, refusals)
            yield b"".join(results[each] for each in sorted(results))
        if number < count:
            yield refusals.end(number, count - number)

    async def accesses(self, body: bytes) -> list[Access]:
        """Return the access that the jobs of a batch need besides DEFER, each once."""
        _, lines = split_lines(body)
        found: dict[Access, None] = {}
        refused = 0
        budget = TurnBudget()
        for line in lines:
            await budget.yield_if_spent()
            try:
                found |= dict.fromkeys(self.parse(line).accesses())
            except Problem:
                # It is refused when the batch is read, which ends here.
                refused += 1
                if refused == MAX_REFUSED:
                    break
        return list(found)

    def _spec(self, raw: RawRequest, line: bytes) -> JobSpec:
        body = self.parse(line)
        check_access(raw.permit, body)
        return job_spec(self.context.purgatory, body, raw.permit)

    def parse(self, line: bytes) -> JobBody:
        """Return the job of a line; raise Problem.

        A line beyond the limit is not parsed: one of 16 MiB would stop the event loop for seconds.
        """
        if len(line) > self.job.max_bytes:
            raise Problem(
                "body-too-large",
                f"the line has {len(line)} bytes, more than the {self.job.max_bytes} of one job",
                limit=self.job.max_bytes,
            )
        return self.job.parse(line)

    async def _add(
        self, raw: RawRequest, specs: dict[int, JobSpec], refusals: _Refusals
    ) -> dict[int, bytes]:
        results: dict[int, bytes] = {}
        try:
            added = await self.context.purgatory.jobs.add(list(specs.values()))
        except (PurgatoryError, Problem) as exc:
            # None is acknowledged; whether any is stored is unknown.
            problem = problem_of_exception(exc, "POST", raw.path)
            return {number: refusals.result(number, problem) for number in specs}
        path = raw.address.removesuffix(":batch")
        for number, result in zip(specs, added, strict=True):
            if not isinstance(result, Added):
                results[number] = refusals.result(number, add_problem(result, path))
            else:
                status = 201 if result.status is AddStatus.ADDED else 200
                job_id = result.job.id.encode()
                results[number] = b'{"line":%d,"status":%d,"id":"%b"}\n' % (number, status, job_id)
        return results


class _Refusals:
    """The results of refused lines, in proportion to the request."""

    def __init__(self, prefix: str, path: str, request_bytes: int, key: str | None) -> None:
        """Begin without any, for a request of so many bytes to `path`, with a `key` or without."""
        self._prefix, self._path = prefix, path
        # A line is known by its number, too.
        self._again = "" if key is None else " under another Idempotency-Key"
        self._room = REFUSAL_BYTES + REFUSAL_FACTOR * request_bytes
        self._count = 0
        # {problem: the first line with it}
        self._lines: dict[bytes, int] = {}

    def are_enough(self) -> bool:
        """True iff no more lines are to be read."""
        return self._count >= MAX_REFUSED or self._room < 0

    def result(self, number: int, problem: Problem) -> bytes:
        """Return the result of a line: a problem, or the line that has the same one."""
        is_duplicate = problem.kind.slug == "duplicate-job"
        # A batch that is sent again may have any number of duplicates.
        self._count += not is_duplicate
        body = problem.response(self._prefix, self._path).body
        # They differ in the job only.
        first = self._lines.setdefault(b"duplicate" if is_duplicate else body, number)
        if first == number:
            result = b'{"line":%d,"status":%d,"problem":%b}\n' % (number, problem.status, body)
        else:
            job = (
                b',"job":%b' % json.dumps(problem.members["job"]).encode() if is_duplicate else b""
            )
            found = number, problem.status, first, job
            result = b'{"line":%d,"status":%d,"same_as":%d%b}\n' % found
        self._room -= len(result)
        return result

    def end(self, number: int, left: int) -> bytes:
        """Return the last result, which stands for the `left` lines after line `number`."""
        refused = f"{self._count} lines" if self._count >= MAX_REFUSED else "too many lines"
        return self.result(
            number + 1,
            Problem(
                "lines-not-read",
                f"{refused} were refused, so the {left} lines from {number + 1} on were not read: "
                f"send them again{self._again}, once it is clear why",
                unread=left,
            ),
        )


def split_lines(body: bytes) -> tuple[int, Iterator[bytes]]:
    """Return how many lines there are, without empty ones at the end, and these.

    Raises Problem for too many.
    """
    body = body.rstrip(_SPACE)
    count = min(len(body), 1)
    # In pieces: of a body of line feeds, only so many are looked at.
    for start in range(0, len(body), _COUNTED):
        if count <= MAX_JOB_LINES:
            count += body.count(b"\n", start, start + _COUNTED)
    if not 0 < count <= MAX_JOB_LINES:
        shown = f"more than {MAX_JOB_LINES}" if count else "no"
        raise bad_parameter(
            "body", f"the body has {shown} lines", f"1 to {MAX_JOB_LINES} lines of JSON"
        )
    # At line feeds only: JSON may contain other line separators of Unicode.
    return count, (line.strip(_SPACE) for line in BytesIO(body))


_JSON_LINES: Final = "application/jsonl"
_ETAG: Final = response_header("ETag", "The job's version, in quotes.")
_LOCATION: Final = response_header("Location", "The address of the job.")
_LINK: Final = response_header("Link", 'The next page, with rel="next".')
_STORE: Final = ("not-open", "store-unavailable")
_READING: Final = ("unknown-job", *_STORE)
_CHANGING: Final = (*_READING, "job-decided", "job-changed")
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
        responses={
            200: {
                "model": JobResponse,
                "description": "A job waited with the dedupe key: it was replaced, or kept.",
                "headers": _ETAG | _LOCATION,
            },
            201: {"headers": _ETAG | _LOCATION},
        },
        problems=(
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
        problems=_STORE,
        openapi_extra={"requestBody": _LINES},
    )
    added.accesses_of_lines = batch.accesses
    added.check_ready = registry.purgatory.jobs.ready
    add(
        "GET /jobs/{id}",
        jobs.get_job,
        _DEFER,
        response_model=JobResponse,
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
        problems=_CHANGING,
    )
    add("DELETE /jobs/{id}", jobs.cancel_job, _DEFER, **_JOB, problems=_CHANGING)
    add(
        "POST /jobs/{id}/run",
        jobs.run_job,
        _DEFER,
        **{**_JOB, "response_model": RunJobResponse},
        problems=_CHANGING,
    )
    add("POST /jobs/{id}/retry", jobs.retry_job, _OPERATE, **_JOB, problems=_CHANGING)
    add("POST /jobs:retry", jobs.retry_jobs, _OPERATE, problems=_STORE)
    add("GET /jobs:paused", jobs.paused_handlers, READ, problems=_STORE)
    add("POST /jobs:pause", jobs.pause_handler, _OPERATE, problems=_STORE)
    add("POST /jobs:resume", jobs.resume_handler, _OPERATE, problems=_STORE)
