"""Asking for a job, and waiting until it changes."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from purgatory.fastapi.http.asgi_request import AsgiRequest
from purgatory.fastapi.http.eager_send import send_response
from purgatory.fastapi.http.etag import EntityTags
from purgatory.fastapi.http.permit import Access, Action
from purgatory.fastapi.http.preferences import Preferences, parse_entity_tags, parse_preferences
from purgatory.fastapi.http.problems import draining_problem, retry_after
from purgatory.fastapi.http.raw_request import RawRequest, read_query
from purgatory.fastapi.http.raw_response import RawResponse, header_lines
from purgatory.fastapi.http.validation_errors import ParameterErrors
from purgatory.fastapi.jobs.responses import entity_tag, job_response
from purgatory.fastapi.routing.raw_endpoint import path_parameter, problem_of_exception
from purgatory.fastapi.watch.asgi_wait import is_disconnect
from purgatory.fastapi.watch.interruptible_receive import InterruptibleReceive
from purgatory.fastapi.watch.request import jittered
from purgatory.fastapi.watch.wait_registry import WaitRegistry
from purgatory.jobs import Job
from purgatory.purgatory import Purgatory
from purgatory.status import Status
from purgatory.timer.clock import NS_PER_MS

NS_PER_SECOND = 1_000_000_000


class JobWatchEndpoint:
    """Answers with a job; with If-None-Match and `Prefer: wait`, once it is another than that.

    A wait is the request's own task in `receive()`, which a change interrupts; so the client's
    leaving ends it at once. It counts as a parked request.
    """

    max_body = 0

    def __init__(self, registry: WaitRegistry, *, tail: str) -> None:
        """Serve the jobs of the purgatory of `registry`."""
        self.context = registry.context
        self.tail = tail
        self._registry = registry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, now or later."""
        raw = AsgiRequest(scope, path_parameter(scope, self.tail))
        try:
            answer = await self._answer(raw, receive)
        except Exception as exc:
            answer = problem_of_exception(exc).response(self.context.prefix, raw.path)
        if answer is not None:
            await send_response(send, answer)

    async def _answer(self, raw: RawRequest, receive: Receive) -> RawResponse | None:
        """Return the answer; None where the client has left."""
        raw.permit = self.context.authenticate(raw)
        raw.permit.check(Access(Action.DEFER, job=raw.tail))
        tags, asked = _conditions(raw)
        wait = min(asked or 0.0, self._registry.settings.max_wait)
        applied = {} if asked is None else {"Preference-Applied": f"wait={wait:g}"}
        if tags is None:
            return job_response(await self._registry.purgatory.job(raw.tail).get(), headers=applied)
        client = self._registry.client(raw) if wait else ""
        watch = _JobWatch(self._registry.purgatory, raw.tail, tags, wait, receive)
        self._registry.enter(client)
        try:
            status = await watch.run()
        finally:
            self._registry.leave(client)
        if watch.has_left:
            return None
        assert watch.job is not None
        if not watch.is_known(watch.job):
            return job_response(watch.job, headers=applied)
        return _not_modified(watch.job, applied, status)


def _conditions(raw: RawRequest) -> tuple[EntityTags | None, float | None]:
    """Return what the client has, and how long it would wait; raise Problem."""
    wrong = ParameterErrors()
    read_query(raw.query_string, frozenset(), wrong)
    tags = wrong.read(parse_entity_tags, raw.headers_named(b"if-none-match"), "If-None-Match")
    preferences = wrong.read(parse_preferences, raw.headers_named(b"prefer")) or Preferences()
    wrong.refuse()
    return tags, preferences.wait


class _JobWatch:
    """One request's wait."""

    def __init__(
        self, purgatory: Purgatory, job_id: str, tags: EntityTags, wait: float, receive: Receive
    ) -> None:
        self.job: Job | None = None
        self.has_left = False
        self._purgatory = purgatory
        self._job_id = job_id
        self._tags = tags
        self._receive = InterruptibleReceive(receive)
        self._end_ns = purgatory.clock.now_ns() + round(jittered(wait) * NS_PER_SECOND)
        self._status = Status.PENDING

    def is_known(self, job: Job) -> bool:
        """Return True iff the client has the job as it is."""
        return self._tags.match(entity_tag(job).encode())

    async def run(self) -> Status:
        """Return how it ended, once the job is not known any more, or the wait is over."""
        desk = self._purgatory.job_desk()
        while True:
            wait = desk.listen(self._job_id, self._on_end)
            try:
                self._status = Status.PENDING
                job = self.job = await desk.get(self._job_id)
                left_ms = -(-(self._end_ns - self._purgatory.clock.now_ns()) // NS_PER_MS)
                # A final job changes no more, so that waiting is of no use.
                if not self.is_known(job) or job.state.is_final or left_ms <= 0:
                    return Status.EXPIRED
                if self._purgatory.is_draining:
                    raise draining_problem()
                desk.park(wait, left_ms)
                if not await self._until_ended() or self._status is Status.DRAINED:
                    return self._status
            finally:
                desk.leave(wait)

    async def _until_ended(self) -> bool:
        """Return True once the wait has ended, False where the client has left."""
        while self._status is Status.PENDING:
            message = await self._receive()
            if message is not None and is_disconnect(message):
                self.has_left = True
                return False
        return True

    def _on_end(self, status: Status) -> None:
        self._status = status
        self._receive.interrupt()


def _not_modified(job: Job, applied: dict[str, str], status: Status) -> RawResponse:
    headers = {"ETag": entity_tag(job), **applied}
    if status is Status.DRAINED:
        headers |= {**retry_after(), "Connection": "close"}
    return RawResponse.empty(304, header_lines(headers))
