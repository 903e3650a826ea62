"""Adding many jobs at once: JSON Lines in, JSON Lines out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final

from starlette.types import Receive, Scope, Send

from purgatory.errors import PurgatoryError
from purgatory.fastapi.access.content_headers import check_content
from purgatory.fastapi.http.asgi_request import AsgiRequest
from purgatory.fastapi.http.authorization import Access, Action
from purgatory.fastapi.http.bodies.request_body import read_body
from purgatory.fastapi.http.eager_send import ResponseUnreadError, send_response, sending
from purgatory.fastapi.http.idempotency import request_name
from purgatory.fastapi.http.problem_mapping import problem_of_exception
from purgatory.fastapi.http.problems import Problem, bad_parameter
from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.fastapi.jobs import parameters
from purgatory.fastapi.jobs.endpoints import add_problem, check_access, job_spec
from purgatory.fastapi.jobs.schemas import (
    BatchLine,
    JobBody,
    job_json,
    max_batch_bytes,
)
from purgatory.fastapi.routing.endpoint_context import EndpointContext
from purgatory.jobs import JobLimits
from purgatory.jobs.model import Added, AddStatus, JobSpec

MAX_JOB_LINES: Final = 10_000
# Lines that are stored and reported together: one step of a store.
CHUNK = 250
# Of large lines, fewer than a chunk are parsed in one turn of the event loop.
TURN_BYTES = 64 * 1024


class JobBatchEndpoint:
    """Acknowledges or refuses each line by itself, in order, as soon as it is stored.

    The whole body, which is bounded, is read before the first result is sent: most clients send all
    of it before they read anything.
    """

    def __init__(self, context: EndpointContext, limits: JobLimits) -> None:
        """Add to the jobs of the purgatory of `context`, whose store has `limits`."""
        self.context = context
        self.max_body = max_batch_bytes(limits)
        self.job = job_json(limits)
        self.path_parameter = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request, a chunk of lines at a time."""
        raw = AsgiRequest(scope, "")
        try:
            lines, key = await self._lines(raw, scope, receive)
        except Exception as exc:
            await send_response(
                send,
                problem_of_exception(exc, "POST", raw.path).response(self.context.prefix, raw.path),
            )
            return
        headers = [(b"content-type", b"application/jsonl"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        with suppress(ResponseUnreadError):
            async for results in self._results(raw, lines, key):
                body = b"".join(
                    result.model_dump_json(exclude_none=True).encode() + b"\n" for result in results
                )
                # The lines that are left wait as long as the client reads no results.
                with sending(len(body), self.context.unread):
                    await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    async def _lines(
        self, raw: RawRequest, scope: Scope, receive: Receive
    ) -> tuple[list[bytes], str | None]:
        # Before the body: a client without a token need not send one.
        raw.permit = self.context.authenticate(raw)
        check_content(raw)
        raw.permit.check(Access(Action.DEFER))
        key = parameters.ADD.parse(raw)[parameters.IDEMPOTENCY_KEY]
        # A closed purgatory or an unavailable store is reported before the body is read.
        self.context.purgatory.job_service().ready()
        body = await read_body(scope, receive, self.max_body, self.context.incoming)
        return split_lines(body), key

    async def _results(
        self, raw: RawRequest, lines: list[bytes], key: str | None
    ) -> AsyncIterator[list[BatchLine]]:
        for start in range(0, len(lines), CHUNK):
            results: dict[int, BatchLine] = {}
            specs: dict[int, JobSpec] = {}
            number = start
            async for line in in_turns(lines[start : start + CHUNK]):
                number += 1
                try:
                    spec = self._spec(raw, line)
                    if key is not None:
                        # Each line is stored by itself, and so each may be a repeat.
                        spec = spec.of_request(*request_name(raw, key), number)
                    specs[number] = spec
                except Exception as exc:
                    results[number] = self._refused(
                        raw, number, problem_of_exception(exc, "POST", raw.path)
                    )
            if specs:
                results |= await self._add(raw, specs)
            yield [results[number] for number in sorted(results)]

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

    async def _add(self, raw: RawRequest, specs: dict[int, JobSpec]) -> dict[int, BatchLine]:
        results: dict[int, BatchLine] = {}
        try:
            added = await self.context.purgatory.add_jobs(list(specs.values()))
        except (PurgatoryError, Problem) as exc:
            # None is acknowledged; whether any is stored is unknown.
            problem = problem_of_exception(exc, "POST", raw.path)
            return {number: self._refused(raw, number, problem) for number in specs}
        path = raw.address.removesuffix(":batch")
        for number, result in zip(specs, added, strict=True):
            if not isinstance(result, Added):
                results[number] = self._refused(raw, number, add_problem(result, path))
            else:
                status = 201 if result.status is AddStatus.ADDED else 200
                results[number] = BatchLine(line=number, status=status, id=result.job.id)
        return results

    def _refused(self, raw: RawRequest, number: int, problem: Problem) -> BatchLine:
        document = json.loads(problem.response(self.context.prefix, raw.path).body)
        return BatchLine(line=number, status=problem.status, problem=document)


def split_lines(body: bytes) -> list[bytes]:
    """Return the lines of a body, without empty ones at its end; raise Problem for too many."""
    # At line feeds only: JSON may contain other line separators of Unicode.
    body = body.rstrip(b" \t\r\n")
    # Counted first: a body of line feeds would be millions of lines.
    count = body.count(b"\n") + 1 if body else 0
    if not 0 < count <= MAX_JOB_LINES:
        raise bad_parameter(
            "body", f"the body has {count} lines", f"1 to {MAX_JOB_LINES} lines of JSON"
        )
    return [line.strip(b" \t\r") for line in body.split(b"\n")]


async def in_turns(lines: Sequence[bytes]) -> AsyncIterator[bytes]:
    """Yield lines that take time to parse, and give way to the event loop between them."""
    read = 0
    for line in lines:
        yield line
        read += max(len(line), TURN_BYTES // CHUNK)
        if read >= TURN_BYTES:
            read = 0
            await asyncio.sleep(0)
