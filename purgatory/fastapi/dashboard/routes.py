"""The routes of the dashboard: its page, the stream of snapshots, waits, and actions."""

from __future__ import annotations

import asyncio
import hashlib
import json
from contextlib import suppress
from dataclasses import replace
from importlib.resources import files
from typing import Any, Final, Literal

from fastapi import APIRouter
from starlette.types import Receive, Scope, Send

from purgatory.errors import PurgatoryClosedError, PurgatoryError
from purgatory.fastapi.dashboard.actions import Actions
from purgatory.fastapi.dashboard.snapshots import Snapshots, WorkerName
from purgatory.fastapi.dashboard.wait_list import (
    ActionsResponse,
    SortKey,
    WaitFilter,
    WaitList,
    WaitsResponse,
    parse_after,
)
from purgatory.fastapi.http.eager_send import ResponseUnreadError, send_or_give_up, sending
from purgatory.fastapi.http.parameters import (
    NO_PARAMETERS,
    Parameter,
    Parameters,
    ParameterValues,
    key_filter,
    prefix_filter,
    whole_number,
)
from purgatory.fastapi.http.problem_mapping import problem_of_error
from purgatory.fastapi.http.problems import Problem, bad_parameter, draining_problem
from purgatory.fastapi.http.raw_request import READ, Access, Action, AsgiRequest, Permit, RawRequest
from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.routing.admission import AdmittingEndpoint
from purgatory.fastapi.routing.endpoint_spec import EndpointContext, EndpointSpec
from purgatory.fastapi.routing.raw_endpoint import RawEndpoint, TaskEndpoint
from purgatory.fastapi.routing.raw_route import add_endpoint
from purgatory.fastapi.watch.interruptible_receive import DisconnectListener, may_have_body
from purgatory.fastapi.watch.parked_requests import WaitRegistry
from purgatory.fastapi.watch.settings import PerClientLimit


def _parse_order(text: str) -> str:
    if text not in ("age", "deadline"):
        raise bad_parameter("order", f"order is {text[:64]!r}", "age, deadline")
    return text


def _parse_after(text: str) -> SortKey:
    after = parse_after(text)
    if after is None:
        raise bad_parameter(
            "after",
            f"after is {text[:64]!r}, which no page ended with",
            "the `next` of the page before, as it is; left out for the first page",
        )
    return after


KEY: Final = key_filter("key", "Only waits on this key.")
PREFIX: Final = prefix_filter("Only waits on keys that begin with this.")
ORDER: Final[Parameter[str]] = Parameter(
    name="order",
    location="query",
    description="`age`: the oldest first; `deadline`: those that expire next first.",
    parse=_parse_order,
    default="age",
    documented_default="age",
    type=Literal["age", "deadline"],
)
LIMIT: Final = whole_number("limit", default=100, description="Waits in the response.")
AFTER: Final[Parameter[SortKey | None]] = Parameter(
    name="after",
    location="query",
    description="The `next` of the page before.",
    parse=_parse_after,
    default=None,
    schema={"max_length": 64, "pattern": r"^-?\d{1,18}\.[0-9a-f]{12}\.[0-9a-f]{16}$"},
)
FILE: Final[Parameter[str]] = Parameter(
    name="file",
    location="path",
    description="A file of the page.",
    parse=str,
    default="",
    schema={"examples": ["dashboard.js"]},
)

_COUNT: Final = whole_number("limit", default=1, description="")
SNAPSHOTS: Final[Parameter[int | None]] = Parameter(
    name="limit",
    location="query",
    description="End after so many snapshots.",
    parse=_COUNT.parse,
    default=None,
    type=int,
    schema=_COUNT.schema,
)

STREAM: Final = Parameters(SNAPSHOTS)
WAITS: Final = Parameters(KEY, PREFIX, ORDER, LIMIT, AFTER)
ONE_FILE: Final = Parameters(FILE)


def wait_filter(values: ParameterValues) -> WaitFilter:
    """Return the filter that the parameters of a request describe."""
    return WaitFilter(
        key=values[KEY],
        prefix=values[PREFIX],
        is_by_deadline=values[ORDER] == "deadline",
        limit=values[LIMIT],
        after=values[AFTER],
    )


PAGE: Final = "dashboard.html"
TYPES: Final = {
    PAGE: b"text/html; charset=utf-8",
    "dashboard.css": b"text/css; charset=utf-8",
    "icon.svg": b"image/svg+xml",
    **dict.fromkeys(
        (
            "action_dialogs.js",
            "charts.js",
            "dashboard.js",
            "elements.js",
            "jobs.js",
            "notices.js",
            "overview.js",
            "paused.js",
            "requests.js",
            "session.js",
            "waits.js",
        ),
        b"text/javascript; charset=utf-8",
    ),
}
"""The files, and their media types."""
# No script and no style but those files, no framing, no form that leaves: what a key or a client
# is called stays text even if the page had a fault.
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    b"require-trusted-types-for 'script'; trusted-types 'none'"
)


class Page:
    """Serves the files of the page, which contain no data."""

    def __init__(self) -> None:
        """Read the files: some 50 KB."""
        folder = files("purgatory.fastapi.dashboard") / "static"
        self._files = {name: (folder / name).read_bytes() for name in TYPES}
        self._tags = {
            name: b'"%b"' % hashlib.sha256(body).hexdigest()[:16].encode()
            for name, body in self._files.items()
        }

    async def page(self, raw: RawRequest) -> RawResponse:
        """Return the page itself."""
        NO_PARAMETERS.parse(raw)
        return self._response(raw, PAGE)

    async def file(self, raw: RawRequest) -> RawResponse:
        """Return a file of the page."""
        ONE_FILE.parse(raw)
        if raw.path_value not in self._files:
            raise Problem("not-found", f"the dashboard has no file {raw.path_value[:64]!r}")
        return self._response(raw, raw.path_value)

    def _response(self, raw: RawRequest, name: str) -> RawResponse:
        tag, body = self._tags[name], self._files[name]
        headers = [
            (b"content-type", TYPES[name]),
            (b"etag", tag),
            # Asked for each time, and sent again only if another version is installed.
            (b"cache-control", b"no-cache"),
            (b"content-security-policy", _POLICY),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cross-origin-opener-policy", b"same-origin"),
        ]
        if tag.decode() in raw.headers_named(b"if-none-match"):
            return RawResponse(304, headers, b"")
        headers.append((b"content-length", b"%d" % len(body)))
        return RawResponse(200, headers, body)


# A snapshot of many workers takes some 100 KB in memory until its viewer has read it.
MAX_VIEWERS: Final = 32
_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class StreamEndpoint(AdmittingEndpoint):
    """Streams snapshots to viewers: each gets the latest one, however many it has missed."""

    def __init__(
        self,
        context: EndpointContext,
        spec: EndpointSpec,
        snapshots: Snapshots,
        worker: WorkerName,
        groups: frozenset[str],
        max_stream: float,
        clients: PerClientLimit,
    ) -> None:
        """Stream `snapshots` for up to `max_stream` seconds, for a page that may use `groups`."""
        super().__init__(context, spec)
        self._clients = clients
        self._max_stream = max_stream
        self._snapshots = snapshots
        self._worker = worker
        self._groups = groups
        # How many each client has open. Invariant: all(self._open.values())
        self._open: dict[str, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the client leaves or the process drains."""
        raw = AsgiRequest(scope, "")
        refused, limit = self.admit(raw), None
        if refused is None:
            try:
                raw.permit.check(READ)
                limit = STREAM.parse(raw)[SNAPSHOTS]
                self._require_room(client := self._clients.key_of_raw(raw))
            except Exception as exc:
                refused = self.error_response(raw, exc)
        if refused is not None:
            await send_or_give_up(send, refused, self.context.unread)
            return
        viewer = _Viewer(self._snapshots, receive, send, self.context)
        if not may_have_body(scope):
            await viewer.read_empty_body()
        self._open[client] = self._open.get(client, 0) + 1
        try:
            with suppress(ResponseUnreadError):
                await viewer.serve(self._session(raw.permit), limit, self._max_stream)
        finally:
            self._open[client] -= 1
            if not self._open[client]:
                del self._open[client]

    def _require_room(self, client: str) -> None:
        purgatory = self.context.purgatory
        if purgatory.is_draining:
            raise draining_problem()
        if not purgatory.is_open:
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
        self, snapshots: Snapshots, receive: Receive, send: Send, context: EndpointContext
    ) -> None:
        self._snapshots = snapshots
        self._receive = receive
        self._send = send
        self._unread = context.unread
        self._task = None
        self._cancelling = 0
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


_WAITS: Final = EndpointSpec(
    name="list_waits",
    method="GET",
    path="/waits",
    summary="List waits",
    description="List what waits now, in all processes that share signals.",
    action=Action.OPERATE,
    parameters=WAITS,
    response=WaitsResponse,
    response_description="A page of waits.",
    problems=("signals-unavailable",),
)
_PAGE: Final = EndpointSpec(
    name="dashboard",
    method="GET",
    path="/dashboard",
    allows_head=True,
    summary="The dashboard",
    description="Return the page of the dashboard, for a browser.",
    action=None,
    response_description="The page.",
    responses={200: {"content": {"text/html": {}}}, 304: {"description": "As the browser has it."}},
)
_FILE: Final = EndpointSpec(
    name="dashboard_file",
    method="GET",
    path="/dashboard/static/{file}",
    allows_head=True,
    summary="A file of the dashboard",
    description="Return a script or a style of the dashboard.",
    action=None,
    parameters=ONE_FILE,
    response_description="The file.",
    responses={
        200: {
            "content": {"image/svg+xml": {}, "text/css": {}, "text/html": {}, "text/javascript": {}}
        },
        304: {"description": "As the browser has it."},
    },
    problems=("not-found",),
)
_STREAM: Final = EndpointSpec(
    name="dashboard_stream",
    method="GET",
    path="/dashboard/stream",
    summary="Live statistics",
    description="Stream a snapshot of the statistics of all workers each second.",
    action=Action.OPERATE,
    parameters=STREAM,
    response_description="Events `session` and `snapshot`; at the end `drained` if the process "
    "shuts down, else `again`.",
    responses={200: {"content": {"text/event-stream": {}}}},
    problems=("full", "draining", "not-open"),
)
_ACTIONS: Final = EndpointSpec(
    name="dashboard_actions",
    method="POST",
    path="/dashboard/actions",
    summary="Act on keys, waits or jobs",
    description="Do one action on up to 500 targets. Each is logged by `purgatory.audit`.",
    action=Action.OPERATE,
    response=ActionsResponse,
    response_description="What became of each target, whether it was refused or not.",
    problems=("bad-json", "body-too-large", "unsupported-media-type"),
)


def add_dashboard_routes(router: APIRouter, registry: WaitRegistry, groups: frozenset[str]) -> None:
    """Add the routes of the dashboard to `router`, which offers the endpoints of `groups`."""
    context = registry.context
    worker = WorkerName()
    waits = WaitList(context.purgatory, worker, context.prefix)
    snapshots = Snapshots(context.purgatory, worker, context.prefix)
    actions = Actions(context, waits, groups)
    page = Page()

    async def list_waits(raw: RawRequest) -> RawResponse:
        raw.permit.check(READ)
        where = wait_filter(WAITS.parse(raw))
        try:
            rows, following = await waits.page(where)
        except PurgatoryError as exc:
            raise problem_of_error(exc) from exc
        return RawResponse.from_document({"waits": rows, "next": following})

    add_endpoint(router, _WAITS, TaskEndpoint(context, _WAITS, list_waits))
    add_endpoint(router, _PAGE, RawEndpoint(context, _PAGE, page.page))
    stream = StreamEndpoint(
        *(context, _STREAM, snapshots, worker, groups),
        registry.settings.max_stream,
        registry.clients,
    )
    add_endpoint(router, _STREAM, stream)
    spec = replace(_ACTIONS, body=actions.body)
    acting = TaskEndpoint(context, spec, actions.respond)
    acting.needs_client = True
    add_endpoint(router, spec, acting)
    add_endpoint(router, _FILE, RawEndpoint(context, _FILE, page.file))
