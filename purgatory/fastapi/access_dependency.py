"""The access that a request needs, for an `authorize` of your own."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from purgatory.fastapi.http.authorization import READ, Access, Action
from purgatory.fastapi.http.bodies.request_body import read_body
from purgatory.fastapi.routing.raw_route import DeclaredEndpoint
from purgatory.fastapi.routing.request_internals import cache_body, cached_body
from purgatory.fastapi.sse.endpoint import StreamEndpoint
from purgatory.fastapi.sse.parameters import split_keys


async def get_accesses(request: Request) -> list[Access]:
    """Return the access that a request to our endpoints needs, for each key. For `Depends`.

    The list is empty for the description of a problem, which anyone may read.
    Raises Problem if a body that names the keys is invalid.
    """
    endpoint = request.scope["route"].endpoint
    if not isinstance(endpoint, DeclaredEndpoint) or endpoint.spec.action is None:
        return []
    action = endpoint.spec.action
    key = request.path_params.get("key")
    if key is not None:
        return [Access(action, key)]
    if "id" in request.path_params and action in (Action.DEFER, Action.OPERATE):
        return [Access(action, job=request.path_params["id"])]
    if isinstance(endpoint.raw, StreamEndpoint):
        maximum = endpoint.raw.context.purgatory.limits.max_keys_per_operation
        keys, _ = split_keys(request.scope["query_string"], maximum)
        return [Access(action, key) for key in keys]
    # A batch, whose lines are parsed one by one, has a body that is not declared.
    accesses_of_lines = getattr(endpoint.raw, "accesses", None)
    has_body = endpoint.spec.body is not None or accesses_of_lines is not None
    if request.method != "POST" or not has_body:
        return [READ if action is Action.OPERATE and request.method == "GET" else Access(action)]
    # The keys are in the body: parsed as the endpoint parses it, so that both see the same.
    if cached_body(request) is None:
        # Request.body() has no bound: it is to return what is read here.
        limit, incoming = endpoint.raw.max_body, endpoint.raw.context.incoming
        cache_body(request, await read_body(request.scope, request.receive, limit, incoming))
    body = await request.body()
    if accesses_of_lines is not None:
        return [Access(action), *await accesses_of_lines(body)]
    assert endpoint.spec.body is not None
    parsed = await endpoint.spec.body.parse_in_turns(body)
    if hasattr(parsed, "accesses"):
        return [Access(action), *parsed.accesses()]
    if action is Action.WAIT:
        return [Access(action, key) for key in parsed.keys]
    return [Access(action, item.key) for item in parsed]


AccessesDep = Annotated[list[Access], Depends(get_accesses)]
"""The access that a request needs, as a parameter of an `authorize` of your own."""
