"""The route of the JavaScript client, so that a page has it without a package."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from fastapi import APIRouter

from purgatory.fastapi.http.parameters import NO_PARAMETERS
from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.routing.endpoint_context import EndpointContext
from purgatory.fastapi.routing.endpoint_spec import EndpointSpec
from purgatory.fastapi.routing.raw_endpoint import RawEndpoint
from purgatory.fastapi.routing.raw_route import add_endpoint

MODULE: Final = Path(__file__).parents[1] / "javascript" / "purgatory.js"

_JAVASCRIPT: Final = EndpointSpec(
    name="javascript",
    method="GET",
    path="/purgatory.js",
    allows_head=True,
    summary="The JavaScript client",
    description="A module for browsers and Node.js, with `follow` and `fire`.",
    action=None,
    response_description="The module.",
    responses={200: {"content": {"text/javascript": {}}}},
)


def add_javascript_route(router: APIRouter, context: EndpointContext) -> None:
    """Add the route of the module to `router`."""
    body = MODULE.read_bytes()
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'.encode()
    # A page must not run the module of another version for long.
    common = [(b"etag", etag), (b"cache-control", b"public, max-age=300")]
    headers = [
        (b"content-type", b"text/javascript; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"x-content-type-options", b"nosniff"),
        *common,
    ]

    async def javascript(raw: RawRequest) -> RawResponse:
        NO_PARAMETERS.parse(raw)
        if etag.decode() in raw.headers_named(b"if-none-match"):
            return RawResponse(304, common, b"")
        return RawResponse(200, headers, body)

    add_endpoint(router, _JAVASCRIPT, RawEndpoint(context, _JAVASCRIPT, javascript))
