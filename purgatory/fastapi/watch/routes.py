"""The routes of waits for several keys, and of ending a wait."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter

from purgatory.fastapi.http.authorization import Access, Action
from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.routing.endpoint_spec import EndpointSpec
from purgatory.fastapi.routing.openapi import response_header
from purgatory.fastapi.routing.raw_endpoint import RawEndpoint
from purgatory.fastapi.routing.raw_route import add_endpoint
from purgatory.fastapi.watch.endpoint import WatchEndpoint
from purgatory.fastapi.watch.parameters import END_WAIT, WATCH_SEVERAL
from purgatory.fastapi.watch.request_parser import WatchParser, parse_ended_wait
from purgatory.fastapi.watch.schemas import WatchManyResponse
from purgatory.fastapi.watch.wait_registry import WaitRegistry

ETAG: Final = response_header("ETag", "The cursor, in quotes: for If-None-Match of the next wait.")
PREFERENCE_APPLIED: Final = response_header(
    "Preference-Applied", "The applied preferences, or the maximum for a longer wait."
)
PURGATORY_CURSOR: Final = response_header("Purgatory-Cursor", "The cursor for the next wait.")
PROBLEMS: Final = (
    "bad-cursor",
    "superseded",
    "cursor-expired",
    "too-many-waits",
    "full",
    "draining",
    "not-open",
    "signals-unavailable",
)
_END_WAIT: Final = EndpointSpec(
    name="cancel_wait",
    method="DELETE",
    path="/waits/{id}",
    summary="End a wait",
    description='End the wait of that Wait-Id: its response has the reason "cancelled".',
    action=Action.WAIT,
    parameters=END_WAIT,
    response_description="The wait has ended, and its request has a response.",
    status=204,
    problems=("unknown-wait", "signals-unavailable"),
)


def add_watch_routes(router: APIRouter, registry: WaitRegistry) -> None:
    """Add the routes of waits to `router`."""
    parser = WatchParser(registry.purgatory, registry.settings)
    several = _watch_several(parser)
    add_endpoint(router, several, WatchEndpoint(registry, several, parser.parse_several))

    async def end_wait(raw: RawRequest) -> RawResponse:
        raw.permit.check(Access(Action.WAIT))
        END_WAIT.parse(raw)
        await registry.cancel(parse_ended_wait(raw))
        return RawResponse.empty(204)

    add_endpoint(router, _END_WAIT, RawEndpoint(registry.context, _END_WAIT, end_wait))


def _watch_several(parser: WatchParser) -> EndpointSpec:
    return EndpointSpec(
        name="watch_keys",
        method="POST",
        path="/watch",
        summary="Wait for several keys",
        description="Park until any, all or some number of several keys have fired, or the wait "
        "is over.",
        action=Action.WAIT,
        parameters=WATCH_SEVERAL,
        body=parser.body,
        response=WatchManyResponse,
        response_description="How the wait ended, with an entry for each key that fired.",
        responses={
            200: {"headers": PREFERENCE_APPLIED},
            204: {
                "description": "Nothing fired, with `Prefer: return=minimal`.",
                "headers": PREFERENCE_APPLIED | PURGATORY_CURSOR,
            },
        },
        problems=("bad-json", *PROBLEMS, "body-too-large", "unsupported-media-type"),
    )
