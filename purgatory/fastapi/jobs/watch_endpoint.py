"""GET of a job, and the wait until it changes."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from purgatory.errors import LimitReachedError
from purgatory.fastapi.http.eager_send import send_response
from purgatory.fastapi.http.problem_mapping import problem_of_error, problem_of_exception
from purgatory.fastapi.http.raw_request import Access, Action, AsgiRequest, RawRequest
from purgatory.fastapi.http.raw_response import RawResponse, header_lines, retry_after
from purgatory.fastapi.http.request_headers import EntityTags, jittered
from purgatory.fastapi.jobs.parameters import GET, IF_NONE_MATCH, PREFER
from purgatory.fastapi.jobs.responses import entity_tag, job_response
from purgatory.fastapi.routing.raw_endpoint import path_parameter
from purgatory.fastapi.watch.interruptible_receive import (
    LEFT,
    DisconnectListener,
    may_have_body,
)
from purgatory.fastapi.watch.parked_requests import WaitRegistry
from purgatory.jobs import Job, Jobs
from purgatory.outcome import Status


class JobWatchEndpoint:
    """Responds with a job; with If-None-Match and `Prefer: wait`, once that has changed.

    While it waits, the request's task is in `receive()`, which a change interrupts; so a client
    that leaves ends the wait at once. It counts as a parked request.
    """

    max_body = 0

    def __init__(self, registry: WaitRegistry, *, path_parameter: str) -> None:
        """Serve the jobs of the purgatory of `registry`."""
        self.context = registry.context
        self.path_parameter = path_parameter
        self._registry = registry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request, now or later."""
        raw = AsgiRequest(scope, path_parameter(scope, self.path_parameter))
        try:
            answer = await self._answer(raw, scope, receive)
        except Exception as exc:
            answer = problem_of_exception(exc, "GET", raw.path).response(
                self.context.prefix, raw.path
            )
        await send_response(send, answer)

    async def _answer(self, raw: RawRequest, scope: Scope, receive: Receive) -> RawResponse:
        raw.permit = self.context.authenticate(raw)
        raw.permit.check(Access(Action.DEFER))
        purgatory = self.context.purgatory
        values = GET.parse(raw)
        tags, asked = values[IF_NONE_MATCH], values[PREFER].wait
        wait = min(asked or 0.0, self._registry.settings.max_wait)
        applied = {} if asked is None else {"Preference-Applied": f"wait={wait:g}"}
        if tags is None:
            return job_response(
                await purgatory.jobs.get(raw.path_value), raw.permit, headers=applied
            )
        clients = self._registry.clients
        client = clients.key_of_raw(raw)
        watch = _JobWatch(tags, receive, client=client[1:] or None)
        if not may_have_body(scope):
            await watch.read_empty_body()
        try:
            counted = clients.enter(client if wait and clients.is_active else "")
        except LimitReachedError as exc:
            raise problem_of_error(exc) from exc
        try:
            job, status = await watch.run(purgatory.jobs, raw.path_value, wait)
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
