"""What a request wants to do, for an `authorize` of your own."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request

from purgatory.fastapi.http.json_bodies import parse_body, parse_list
from purgatory.fastapi.http.permit import Access, Action
from purgatory.fastapi.http.problems import Problem
from purgatory.fastapi.jobs.batch_endpoint import in_turns, split_lines
from purgatory.fastapi.jobs.schemas import job_body
from purgatory.fastapi.keys.schemas import MAX_BATCH, BatchItem
from purgatory.fastapi.routing.raw_endpoint import read_body
from purgatory.fastapi.watch.schemas import watch_body
from purgatory.purgatory import Purgatory


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
    if "id" in request.path_params and action is Action.DEFER:
        return [Access(action, job=request.path_params["id"])]
    if request.method != "POST":
        return [Access(action)]
    # The keys are in the body: read as the endpoint reads it, so that both see the same.
    if not hasattr(request, "_body"):
        # Request.body() would take whatever comes, of anyone; like this it gives what is read here.
        request._body = await read_body(request.scope, request.receive, endpoint.raw.max_body)
    body = await request.body()
    if action is Action.DEFER:
        return [Access(action), *await _waits(request, endpoint.raw.context.purgatory, body)]
    if action is Action.WAIT:
        model = watch_body(endpoint.raw.context.purgatory.limits)
        return [Access(action, key) for key in parse_body(model, body).keys]
    return [Access(action, item.key) for item in parse_list(BatchItem, body, MAX_BATCH)]


async def _waits(request: Request, purgatory: Purgatory, body: bytes) -> list[Access]:
    """Return an access for each key that the jobs in a body are to wait on."""
    assert purgatory.job_limits is not None
    model = job_body(purgatory.job_limits)
    if not request.url.path.endswith(":batch"):
        keys = parse_body(model, body).keys
        return [Access(Action.WAIT, key) for key in keys]
    found: dict[str, None] = {}
    async for line in in_turns(split_lines(body)):
        try:
            found |= dict.fromkeys(parse_body(model, line).keys)
        except Problem:
            # The endpoint refuses that line by itself.
            continue
    return [Access(Action.WAIT, key) for key in found]


AccessesDep = Annotated[list[Access], Depends(get_accesses)]
