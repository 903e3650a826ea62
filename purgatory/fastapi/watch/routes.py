"""The routes under `/watch` and `/waits`."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter

from purgatory.fastapi.http.permit import Access, Action
from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.routing.endpoint_spec import EndpointSpec
from purgatory.fastapi.routing.openapi import response_header
from purgatory.fastapi.routing.raw_endpoint import RawEndpoint
from purgatory.fastapi.routing.raw_route import add_endpoint
from purgatory.fastapi.watch.endpoint import WatchEndpoint
from purgatory.fastapi.watch.parameters import END_WAIT, WATCH_SEVERAL
from purgatory.fastapi.watch.request_parser import WatchParser, parse_ended_wait
from purgatory.fastapi.watch.schemas import WatchManyResponse, WatchResponse
from purgatory.fastapi.watch.wait_registry import WaitRegistry

_ETAG: Final = response_header("ETag", "The cursor, in quotes: for If-None-Match of the next wait.")
_PREFERENCE_APPLIED: Final = response_header(
    "Preference-Applied", "What was made of Prefer, or of a longer wait."
)
_PURGATORY_CURSOR: Final = response_header("Purgatory-Cursor", "The cursor for the next wait.")
_PROBLEMS: Final = (
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
    one, several = _watch_one(parser), _watch_several(parser)
    add_endpoint(router, one, WatchEndpoint(registry, one, parser.parse))
    add_endpoint(router, several, WatchEndpoint(registry, several, parser.parse_several))

    async def end_wait(raw: RawRequest) -> RawResponse:
        raw.permit.check(Access(Action.WAIT))
        END_WAIT.parse(raw)
        await registry.cancel(parse_ended_wait(raw))
        return RawResponse.empty(204)

    add_endpoint(router, _END_WAIT, RawEndpoint(registry.context, _END_WAIT, end_wait))


def _watch_one(parser: WatchParser) -> EndpointSpec:
    return EndpointSpec(
        name="watch_key",
        method="GET",
        path="/watch/{key:watch_key}",
        summary="Wait for a key",
        description="""Park until the key fires, or the wait is over.

        The response is 200 however the wait ended. It comes after 90-100 % of a wait of 5 s and
        more, and never before a shorter one is over. Continue with the cursor of the response:
        what fires between two requests is in the next response.""",
        action=Action.WAIT,
        parameters=parser.parameters.all,
        response=WatchResponse,
        response_description="How the wait ended: always this, whatever ended it.",
        responses={
            200: {"headers": _ETAG | _PREFERENCE_APPLIED},
            204: {
                "description": "Nothing fired, with `Prefer: return=minimal`.",
                "headers": _ETAG | _PREFERENCE_APPLIED | _PURGATORY_CURSOR,
            },
            304: {
                "description": "Nothing fired, with `If-None-Match`.",
                "headers": _ETAG | _PREFERENCE_APPLIED,
            },
        },
        problems=_PROBLEMS,
    )


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
            200: {"headers": _PREFERENCE_APPLIED},
            204: {
                "description": "Nothing fired, with `Prefer: return=minimal`.",
                "headers": _PREFERENCE_APPLIED | _PURGATORY_CURSOR,
            },
        },
        problems=("bad-json", *_PROBLEMS, "body-too-large", "unsupported-media-type"),
    )
