"""The routes of the dashboard: its page, the stream of snapshots, waits, and actions."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.resources import files
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path, Query
from starlette.types import Receive, Send

from purgatory.errors import PurgatoryClosedError, PurgatoryError
from purgatory.fastapi.dashboard.snapshots import Snapshots, WorkerName
from purgatory.fastapi.dashboard.wait_list import (
    AFTER_PATTERN,
    ActionResult,
    ActionsBody,
    ActionsResponse,
    SortKey,
    WaitFilter,
    WaitList,
    WaitsResponse,
    actions_json,
    parse_after,
)
from purgatory.fastapi.http.asgi import (
    DisconnectListener,
    ResponseUnreadError,
    may_have_body,
    sending,
)
from purgatory.fastapi.http.bounds import UnreadResponses
from purgatory.fastapi.http.errors import problem_of_error
from purgatory.fastapi.http.parameters import KeyText, Prefix, WholeNumber
from purgatory.fastapi.http.requests import READ, Access, Action, AsgiRequest, Permit, RawRequest
from purgatory.fastapi.http.responses import (
    Problem,
    RawResponse,
    bad_parameter,
    draining_problem,
    release_frames,
)
from purgatory.fastapi.routing.endpoints import (
    EndpointContext,
    Sending,
    file_response,
    joined_in_turns,
)
from purgatory.fastapi.routing.routes import Responses, add_handler
from purgatory.fastapi.watch.parked_requests import WaitRegistry
from purgatory.log_text import escaped
from purgatory.turn_budget import TurnBudget

audit = logging.getLogger("purgatory.audit")

# The group of endpoints that an action is of; without it, the action does not exist here either.
_GROUPS: Final = {
    "fire": "keys",
    "drop-key": "keys",
    "cancel-job": "jobs",
    "run-job": "jobs",
    "retry-job": "jobs",
    "pause": "jobs",
    "resume": "jobs",
    "resume-all": "jobs",
}
# Characters of a target in a line of the log.
_MAX_LOGGED: Final = 300


class Actions:
    """Performs actions of operators, on one target after the other, and logs each.

    Every action needs OPERATE, and in addition the permission that the same action needs at its
    own endpoint: FIRE on the key, DEFER for jobs. Actions of a group of endpoints that the
    application does not offer are refused.
    """

    def __init__(self, context: EndpointContext, waits: WaitList, groups: frozenset[str]) -> None:
        """Act on the purgatory of `context`, of which the endpoints of `groups` are offered."""
        self._purgatory = context.purgatory
        self._waits = waits
        self._groups = groups

    async def dashboard_actions(self, raw: RawRequest, body: ActionsBody) -> ActionsResponse:
        """Act on keys, waits or jobs.

        Do one action on up to 500 targets. Each is logged by `purgatory.audit`.
        """
        # A refusal of one target does not keep the action from the others.
        for access in body.accesses():
            raw.permit.check(access)
        self._require_group(body.action)
        if body.action == "cancel-wait":
            results = await self._cancel_waits(raw, body.targets)
        else:
            results = []
            budget = TurnBudget()
            for target in body.targets:
                results.append(await self._act(raw, body, target))
                await budget.yield_if_spent()
        return ActionsResponse(results=results)

    def _require_group(self, action: str) -> None:
        group = _GROUPS.get(action)
        if group is not None and group not in self._groups:
            raise Problem(
                "forbidden",
                f"{action} is of the endpoints of {group}, which this application does not offer: "
                f"add {group!r} to install(endpoints=...)",
            )

    async def _act(self, raw: RawRequest, body: ActionsBody, target: str) -> ActionResult:
        act: Callable[[str, Any, str | None], Awaitable[str]] = {
            "fire": self._fire,
            "drop-key": self._drop_key,
            "cancel-job": self._cancel_job,
            "run-job": self._run_job,
            "retry-job": self._retry_job,
            "pause": self._pause,
            "resume": self._resume,
            "resume-all": self._resume_all,
        }[body.action]
        try:
            detail, is_done = await act(target, body.value, raw.permit.identity), True
        except (PurgatoryError, Problem) as exc:
            problem = exc if isinstance(exc, Problem) else problem_of_error(exc)
            detail, is_done = problem.detail, False
            release_frames(exc)
        return _reported(raw, body.action, target, detail, is_done=is_done)

    async def _cancel_waits(self, raw: RawRequest, targets: Sequence[str]) -> list[ActionResult]:
        """End waits: all at once, as finding one looks at all that wait on its key."""
        otherwise = "the wait is over"
        ended = await self._waits.cancel_here(targets)
        try:
            async for each in self._waits.cancel_elsewhere(targets):
                ended |= each
        except PurgatoryError as exc:
            otherwise = problem_of_error(exc).detail
        results = []
        budget = TurnBudget()
        for target in targets:
            await budget.yield_if_spent()
            is_done = target in ended
            # A target that is given twice was ended once.
            ended.discard(target)
            detail = "the wait has ended as cancelled" if is_done else otherwise
            results.append(_reported(raw, "cancel-wait", target, detail, is_done=is_done))
        return results

    async def _fire(self, key: str, value: Any, owner: str | None) -> str:
        fired = await self._purgatory.fire(key, value, owner=owner)
        jobs = f", and decided {fired.jobs} jobs" if fired.jobs else ""
        return f"ended {fired.completed} waits of this worker{jobs}"

    async def _drop_key(self, key: str, value: Any, owner: str | None) -> str:
        return f"cancelled {await self._purgatory.cancel(key)} waits of this worker"

    async def _cancel_job(self, job_id: str, value: Any, owner: str | None) -> str:
        return f"it is {(await self._purgatory.jobs.cancel(job_id)).state}"

    async def _run_job(self, job_id: str, value: Any, owner: str | None) -> str:
        job = await self._purgatory.jobs.run_now(job_id)
        if (await self._purgatory.jobs.paused()).covers(job.handler):
            return f"its handler {job.handler} is paused: it starts once that is resumed"
        return "it is due now"

    async def _retry_job(self, job_id: str, value: Any, owner: str | None) -> str:
        await self._purgatory.jobs.retry(job_id)
        return "it is due now, with all its attempts"

    async def _pause(self, handler: str, value: Any, owner: str | None) -> str:
        await self._purgatory.jobs.pause(handler)
        return "no more of its jobs are started, in any worker"

    async def _resume(self, handler: str, value: Any, owner: str | None) -> str:
        return f"{await self._purgatory.jobs.resume(handler)} jobs had waited for that"

    async def _resume_all(self, target: str, value: Any, owner: str | None) -> str:
        return f"{await self._purgatory.jobs.resume()} jobs had waited for that"


def _reported(
    raw: RawRequest, action: str, target: str, detail: str, *, is_done: bool
) -> ActionResult:
    """Return the result of an action on one target, with a line of it in the audit log."""
    audit.info(
        "%s: %s %s: %s",
        escaped(raw.permit.identity or raw.client or "anyone"),
        action,
        escaped(target[:_MAX_LOGGED]),
        escaped(detail),
        extra={
            "action": action,
            "identity": raw.permit.identity,
            "target": target[:_MAX_LOGGED],
            "is_done": is_done,
        },
    )
    return ActionResult(target=target, done=is_done, detail=detail)


PAGE: Final = "dashboard.html"
_FOLDER: Final = files("purgatory.fastapi.dashboard") / "static"
_MEDIA_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
TYPES: Final = {
    each.name: _MEDIA_TYPES[suffix]
    for each in _FOLDER.iterdir()
    if (suffix := each.name.rpartition(".")[2]) in _MEDIA_TYPES
}
"""The files, and their media types."""
# No script and no style but those files, no framing, no form that leaves: what a key or a client
# is called stays text even if the page had a fault.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


class Page:
    """Serves the files of the page, which contain no data."""

    def __init__(self) -> None:
        """Read the files: some 50 KB."""
        self._files = {name: (_FOLDER / name).read_bytes() for name in TYPES}
        self._tags = {
            name: f'"{hashlib.sha256(body).hexdigest()[:16]}"' for name, body in self._files.items()
        }

    async def dashboard(self, raw: RawRequest) -> RawResponse:
        """The dashboard.

        Return the page of the dashboard, for a browser.
        """
        return self._response(raw, PAGE)

    async def dashboard_file(
        self,
        raw: RawRequest,
        file: Annotated[str, Path(description="A file of the page.", examples=["dashboard.js"])],
    ) -> RawResponse:
        """A file of the dashboard.

        Return a script or a style of the dashboard.
        """
        if file not in self._files:
            raise Problem("not-found", f"the dashboard has no file {file[:64]!r}")
        return self._response(raw, file)

    def _response(self, raw: RawRequest, name: str) -> RawResponse:
        headers = {
            "Content-Type": TYPES[name],
            "ETag": self._tags[name],
            # Asked for each time, and sent again only if another version is installed.
            "Cache-Control": "no-cache",
            "Content-Security-Policy": _POLICY,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Opener-Policy": "same-origin",
        }
        return file_response(raw, self._files[name], headers)


# A snapshot of many workers takes some 100 KB in memory until its viewer has read it.
MAX_VIEWERS: Final = 32
_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class Streams:
    """Streams snapshots to viewers: each gets the latest one, however many it has missed."""

    def __init__(
        self,
        registry: WaitRegistry,
        snapshots: Snapshots,
        worker: WorkerName,
        groups: frozenset[str],
    ) -> None:
        """Stream `snapshots` for a page that may use `groups`, as long as `registry` allows."""
        self._max_stream = registry.settings.max_stream
        self._unread = registry.context.unread
        self._snapshots = snapshots
        self._purgatory = registry.purgatory
        self._clients = registry.clients
        self._worker = worker
        self._groups = groups
        # How many each client has open. Invariant: all(self._open.values())
        self._open: dict[str, int] = {}

    async def dashboard_stream(
        self,
        raw: AsgiRequest,
        limit: Annotated[
            WholeNumber | None, Query(description="End after so many snapshots.")
        ] = None,
    ) -> Sending:
        """Live statistics.

        Stream a snapshot of the statistics of all workers each second.
        """
        client = self._clients.key_of_raw(raw)
        self._require_room(client)
        return partial(self._stream, raw, client, limit)

    async def _stream(self, raw: AsgiRequest, client: str, limit: int | None, send: Send) -> None:
        """Send the session, then snapshots, until the client leaves or the process drains."""
        viewer = _Viewer(self._snapshots, raw.receive, send, self._unread)
        if not may_have_body(raw.scope):
            await viewer.read_empty_body()
        with self._opened(client), suppress(ResponseUnreadError):
            await viewer.serve(self._session(raw.permit), limit, self._max_stream)

    @contextmanager
    def _opened(self, client: str) -> Iterator[None]:
        """Count a stream of `client` meanwhile."""
        self._open[client] = self._open.get(client, 0) + 1
        try:
            yield
        finally:
            self._open[client] -= 1
            if not self._open[client]:
                del self._open[client]

    def _require_room(self, client: str) -> None:
        if self._purgatory.is_draining:
            raise draining_problem()
        if not self._purgatory.is_open:
            raise PurgatoryClosedError
        own, total = self._open.get(client, 0), sum(self._open.values())
        # As many as are left for others: one client cannot keep everyone else out.
        if own >= MAX_VIEWERS - total:
            raise Problem(
                "full",
                f"you have {own} dashboards open at this process, and everyone together {total} "
                f"(limit {MAX_VIEWERS}, of which a client may have as many as it leaves): "
                "close one",
                headers={"Retry-After": "5"},
            )

    def _session(self, permit: Permit) -> dict[str, Any]:
        """Return what the page may show: the first event."""
        may_operate, has_keys = permit.allows(Access(Action.OPERATE)), "keys" in self._groups
        return {
            "identity": permit.identity,
            "worker": self._worker.name,
            "groups": sorted(self._groups),
            "may": {
                "operate": may_operate,
                "fire": may_operate and has_keys and permit.allows(Access(Action.FIRE)),
                "drop": may_operate and has_keys,
                "jobs": may_operate and permit.allows(Access(Action.DEFER)),
                "read_jobs": permit.allows(Access(Action.DEFER)),
            },
        }


class _Viewer(DisconnectListener):
    """One open dashboard. It waits in `receive()`, so that its leaving is seen at once."""

    def __init__(
        self, snapshots: Snapshots, receive: Receive, send: Send, unread: UnreadResponses
    ) -> None:
        super().__init__(receive)
        self._snapshots = snapshots
        self._send = send
        self._unread = unread
        self._sent: bytes | None = None

    async def serve(self, session: dict[str, Any], limit: int | None, max_stream: float) -> None:
        """Send the session, then up to `limit` snapshots for `max_stream` seconds."""
        snapshots = self._snapshots
        end = "again"
        await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await self._send_event("session", json.dumps(session).encode())
        # As a name: each access to the method makes another object.
        wake = self.interrupt
        snapshots.enter(wake)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(max_stream, wake)
        until_s = loop.time() + max_stream
        try:
            while limit != 0 and loop.time() < until_s:
                latest = snapshots.latest
                if latest is not None and latest is not self._sent:
                    self._sent = latest
                    await self._send_event("snapshot", latest)
                    limit = None if limit is None else limit - 1
                elif snapshots.is_over:
                    end = "drained"
                    break
                elif await self.until_disconnect():
                    return
        finally:
            timer.cancel()
            snapshots.leave(wake)
        await self._send_event(end, b"{}")
        await self._send({"type": "http.response.body", "body": b""})

    async def _send_event(self, name: str, data: bytes) -> None:
        body = b"event: %b\ndata: %b\n\n" % (name.encode(), data)
        with sending(len(body), self._unread):
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
        await asyncio.sleep(0)


def _after(text: str) -> SortKey:
    after = parse_after(text)
    if after is None:
        raise bad_parameter(
            "after",
            f"after is {text[:64]!r}, which no page ended with",
            "the `next` of the page before, as it is; left out for the first page",
        )
    return after


def add_dashboard_routes(router: APIRouter, registry: WaitRegistry, groups: frozenset[str]) -> None:
    """Add the routes of the dashboard to `router`, which offers the endpoints of `groups`."""
    context = registry.context
    worker = WorkerName()
    waits = WaitList(context.purgatory, worker, context.prefix)
    snapshots = Snapshots(context.purgatory, worker, context.prefix)
    page = Page()
    add = partial(add_handler, router, context)

    async def list_waits(
        key: Annotated[KeyText | None, Query(description="Only waits on this key.")] = None,
        prefix: Annotated[
            Prefix, Query(description="Only waits on keys that begin with this.")
        ] = "",
        order: Annotated[
            Literal["age", "deadline"],
            Query(description="`age`: the oldest first; `deadline`: those that expire next first."),
        ] = "age",
        limit: Annotated[WholeNumber, Query(description="Waits in the response.")] = 100,
        after: Annotated[
            str | None,
            Query(
                description="The `next` of the page before.",
                json_schema_extra={"maxLength": 64, "pattern": AFTER_PATTERN},
            ),
        ] = None,
    ) -> RawResponse:
        """List waits.

        List what waits now, in all processes that share signals.
        """
        where = WaitFilter(
            key=key,
            prefix=prefix,
            is_by_deadline=order == "deadline",
            limit=limit,
            after=None if after is None else _after(after),
        )
        rows, following = await waits.page(where)
        encoded = await joined_in_turns(json.dumps(row).encode() for row in rows)
        fields = encoded, json.dumps(following).encode()
        return RawResponse.from_json(200, b'{"waits":[%b],"next":%b}' % fields)

    add(
        "GET /waits",
        list_waits,
        READ,
        response_model=WaitsResponse,
        problems=("signals-unavailable",),
    )
    add(
        "GET /dashboard",
        page.dashboard,
        None,
        allows_head=True,
        response_description="The page.",
        responses={200: {"content": {"text/html": {}}}, **_NOT_MODIFIED},
    )
    add(
        "GET /dashboard/stream",
        Streams(registry, snapshots, worker, groups).dashboard_stream,
        READ,
        response_description="Events `session` and `snapshot`; at the end `drained` if the process "
        "shuts down, else `again`.",
        responses={200: {"content": {"text/event-stream": {}}}},
        problems=("full", "draining", "not-open"),
    )
    add(
        "POST /dashboard/actions",
        Actions(context, waits, groups).dashboard_actions,
        Access(Action.OPERATE),
        body=actions_json(context.purgatory.limits.max_value_bytes),
    )
    types = (each.partition(";")[0] for each in _MEDIA_TYPES.values())
    add(
        "GET /dashboard/static/{file}",
        page.dashboard_file,
        None,
        allows_head=True,
        response_description="The file.",
        responses={200: {"content": {each: {} for each in types}}, **_NOT_MODIFIED},
        problems=("not-found",),
    )


_NOT_MODIFIED: Final[Responses] = {304: {"description": "As the browser has it."}}
