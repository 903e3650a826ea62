"""The route of the descriptions of problems, which the `type` of a problem leads to."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter

from purgatory.fastapi.http.parameters import Parameter, Parameters
from purgatory.fastapi.http.problem_kinds import KINDS
from purgatory.fastapi.http.problems import Problem
from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.routing.endpoint_context import EndpointContext
from purgatory.fastapi.routing.endpoint_spec import EndpointSpec
from purgatory.fastapi.routing.raw_endpoint import RawEndpoint
from purgatory.fastapi.routing.raw_route import add_endpoint

_SLUG: Final[Parameter[str]] = Parameter(
    name="slug",
    location="path",
    description="The last part of a `type`.",
    parse=str,
    default="",
    schema={"examples": ["cursor-expired"]},
)
_DESCRIBE: Final = Parameters(_SLUG)
_PROBLEM: Final = EndpointSpec(
    name="problem",
    method="GET",
    path="/problems/{slug}",
    summary="A kind of problem",
    description="Describe a kind of problem, and what to do about it.",
    action=None,
    parameters=_DESCRIBE,
    response_description="What it is and what to do, in a few sentences.",
    responses={200: {"content": {"text/plain": {}}}},
    problems=("not-found",),
)


def add_problem_route(router: APIRouter, context: EndpointContext) -> None:
    """Add the route of the descriptions of problems to `router`."""
    add_endpoint(router, _PROBLEM, RawEndpoint(context, _PROBLEM, _describe_problem))


async def _describe_problem(raw: RawRequest) -> RawResponse:
    _DESCRIBE.parse(raw)
    kind = KINDS.get(raw.path_value)
    if kind is None:
        raise Problem("not-found", f"there is no kind of problem called {raw.path_value[:64]!r}")
    body = f"{kind.title} ({kind.status} {kind.slug})\n\n{kind.remedy}\n".encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
    ]
    return RawResponse(200, headers, body)
