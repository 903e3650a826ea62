"""What a request wants to do, for an `authorize` of your own."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request

from purgatory.fastapi.access import Access, Action
from purgatory.fastapi.bodies import parse_batch, parse_body
from purgatory.fastapi.endpoint import read_body
from purgatory.fastapi.schemas import BatchItem, WatchBody


async def get_accesses(request: Request) -> list[Access]:
    """Return what a request to one of our endpoints wants to do, for each key. For `Depends`.

    Nothing, for the description of a problem, which anyone may read.
    Raises Problem where a body that names the keys is no good.
    """
    endpoint: Any = request.scope["route"].endpoint
    action: Action | None = getattr(endpoint, "action", None)
    if action is None:
        return []
    key = request.path_params.get("key")
    if key is not None:
        return [Access(action, key)]
    if request.method != "POST":
        return [Access(action)]
    # The keys are in the body: read as the endpoint reads it, so that both see the same.
    if not hasattr(request, "_body"):
        # Request.body() would take whatever comes, of anyone; like this it gives what is read here.
        request._body = await read_body(request.scope, request.receive, endpoint.raw.max_body)
    body = await request.body()
    if action is Action.WAIT:
        return [Access(action, key) for key in parse_body(WatchBody, body).keys]
    return [Access(action, item.key) for item in parse_batch(BatchItem, body)]


AccessesDep = Annotated[list[Access], Depends(get_accesses)]
