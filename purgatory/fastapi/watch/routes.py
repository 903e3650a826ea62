"""The routes of waits, and the endpoint that parks requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path

from purgatory.fastapi.http.json_bodies import JsonBody
from purgatory.fastapi.http.raw_request import Access, Action, RawRequest
from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.routing.raw_endpoint import Connection, RawEndpoint
from purgatory.fastapi.routing.raw_route import add_handler, add_route, response_header
from purgatory.fastapi.watch.parked_requests import ParkedRequest, WaitRegistry
from purgatory.fastapi.watch.request_parser import (
    WAIT_ID_PATTERN,
    WatchParser,
    WatchRequest,
    owned_wait_id,
    parse_wait_id,
    watch_keys,
)
from purgatory.fastapi.watch.schemas import WatchBody, WatchManyResponse

Parse = Callable[[RawRequest], WatchRequest]


class WatchEndpoint(RawEndpoint):
    """Parks requests."""

    def __init__(
        self,
        registry: WaitRegistry,
        method: str,
        function: Callable[..., Any],
        parse: Parse,
        body: JsonBody[WatchBody] | None = None,
    ) -> None:
        """Park in `registry` what `function` declares, once `parse` has checked it."""
        super().__init__(
            registry.context,
            method,
            function,
            Access(Action.WAIT),
            body=body,
            # Without a body, `parse` checks all of it, and its cache has most of the parameters.
            admits_whole_head=body is not None,
        )
        self.needs_client = registry.clients.is_active
        self.needs_scope = registry.clients.needs_scope
        self.registry = registry
        self._parse = parse

    def begin(self, raw: RawRequest, connection: Connection) -> ParkedRequest | None:
        """Park a request, or refuse it."""
        registry = self.registry
        try:
            wait = ParkedRequest(self._parse(raw), registry, connection)
            registry.park(wait, registry.client(raw))
        except Exception as exc:
            connection.respond(self.error_response(raw, exc))
            return None
        return wait


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
_EndedWaitId = Annotated[
    str, Path(description="A Wait-Id.", json_schema_extra={"pattern": WAIT_ID_PATTERN})
]


def add_watch_routes(router: APIRouter, registry: WaitRegistry) -> None:
    """Add the routes of waits to `router`."""
    parser = WatchParser(registry.purgatory, registry.settings)
    add_route(
        router,
        "/watch",
        WatchEndpoint(registry, "POST", watch_keys, parser.parse_several, parser.body),
        response_model=WatchManyResponse,
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

    async def cancel_wait(raw: RawRequest, id: _EndedWaitId) -> RawResponse:  # noqa: A002 - as OpenAPI has it
        """End a wait.

        End the wait of that Wait-Id: its response has the reason "cancelled".
        """
        await registry.cancel(owned_wait_id(raw, parse_wait_id(id)))
        return RawResponse.empty(204)

    add_handler(
        router,
        registry.context,
        "DELETE /waits/{id}",
        cancel_wait,
        Access(Action.WAIT),
        status_code=204,
        response_description="The wait has ended, and its request has a response.",
        problems=("unknown-wait", "signals-unavailable"),
    )
