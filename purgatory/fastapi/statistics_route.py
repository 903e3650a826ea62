"""The route of statistics."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any, Final

from fastapi import APIRouter
from pydantic import TypeAdapter

from purgatory.errors import PurgatoryError
from purgatory.fastapi.http.authorization import READ, Action
from purgatory.fastapi.http.parameters import NO_PARAMETERS
from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.routing.endpoint_context import EndpointContext
from purgatory.fastapi.routing.endpoint_spec import EndpointSpec
from purgatory.fastapi.routing.raw_endpoint import TaskEndpoint
from purgatory.fastapi.routing.raw_route import add_endpoint
from purgatory.fastapi.statistics_schemas import StatisticsResponse
from purgatory.purgatory import Purgatory

# Seconds that statistics wait for the job store.
STORE_TIMEOUT: Final = 2.0

_STATISTICS: Final = EndpointSpec(
    name="statistics",
    method="GET",
    path="/statistics",
    summary="Statistics",
    description="Return exact counts of this process, of now and since its start. Does not park.",
    action=Action.OPERATE,
    response=StatisticsResponse,
    response_description="Counts of this process, and the jobs of all.",
)
_STATISTICS_JSON: Final = TypeAdapter(dict[str, Any])


def add_statistics_route(router: APIRouter, context: EndpointContext) -> None:
    """Add the route of statistics to `router`."""
    purgatory = context.purgatory

    async def statistics(raw: RawRequest) -> RawResponse:
        raw.permit.check(READ)
        NO_PARAMETERS.parse(raw)
        document = asdict(purgatory.statistics())
        if document["jobs"] is not None:
            document["jobs"]["states"] = await _job_states(purgatory)
        return RawResponse.from_json(200, _STATISTICS_JSON.dump_json(document))

    add_endpoint(router, _STATISTICS, TaskEndpoint(context, _STATISTICS, statistics))


async def _job_states(purgatory: Purgatory) -> dict[str, int] | None:
    try:
        async with asyncio.timeout(STORE_TIMEOUT):
            return asdict(await purgatory.jobs.counts())
    except (PurgatoryError, TimeoutError):
        # The other figures matter all the more while the store is away.
        return None
