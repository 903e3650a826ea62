"""The routes of the dashboard."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from fastapi import APIRouter

from purgatory.errors import PurgatoryError
from purgatory.fastapi.dashboard.actions import Actions
from purgatory.fastapi.dashboard.page import Page
from purgatory.fastapi.dashboard.parameters import ONE_FILE, STREAM, WAITS, wait_filter
from purgatory.fastapi.dashboard.schemas import ActionsResponse, WaitsResponse
from purgatory.fastapi.dashboard.snapshots import Snapshots
from purgatory.fastapi.dashboard.stream_endpoint import StreamEndpoint
from purgatory.fastapi.dashboard.wait_list import WaitList
from purgatory.fastapi.dashboard.worker_name import WorkerName
from purgatory.fastapi.http.authorization import READ, Action
from purgatory.fastapi.http.problem_mapping import problem_of_error
from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.routing.endpoint_spec import EndpointSpec
from purgatory.fastapi.routing.raw_endpoint import RawEndpoint, TaskEndpoint
from purgatory.fastapi.routing.raw_route import add_endpoint
from purgatory.fastapi.watch.wait_registry import WaitRegistry

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
