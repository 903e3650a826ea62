"""The route of metrics for Prometheus."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from fastapi import APIRouter

from purgatory.fastapi.http.authorization import Access, Action
from purgatory.fastapi.http.parameters import NO_PARAMETERS
from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.routing.endpoint_context import EndpointContext
from purgatory.fastapi.routing.endpoint_spec import EndpointSpec
from purgatory.fastapi.routing.raw_endpoint import TaskEndpoint
from purgatory.fastapi.routing.raw_route import add_endpoint
from purgatory.fastapi.servers.workers import running_workers
from purgatory.purgatory import Purgatory

if TYPE_CHECKING:
    from purgatory.metrics import PurgatoryCollector

logger = logging.getLogger("purgatory.fastapi")

DIRECTORY_VARIABLE: Final = "PURGATORY_METRICS_DIR"

_METRICS: Final = EndpointSpec(
    name="metrics",
    method="GET",
    path="/metrics",
    summary="Metrics",
    description="Return the metrics of all workers at this address, for Prometheus. Does not park.",
    action=Action.METRICS,
    response_description="Prometheus's text format or, if accepted, OpenMetrics.",
    responses={200: {"content": {"text/plain": {}}}},
)


def metrics_collector(
    purgatory: Purgatory, metrics: bool | PurgatoryCollector
) -> PurgatoryCollector | None:
    """Return the collector that `install(metrics=)` stands for; None without metrics.

    Raises TypeError for anything else, and ImportError without the extra `metrics`.
    """
    if metrics is False:
        return None
    # Imported here: only who has metrics needs prometheus-client.
    from purgatory.metrics import PurgatoryCollector

    if isinstance(metrics, PurgatoryCollector):
        return metrics
    if metrics is not True:
        raise TypeError(f"metrics is {metrics!r}: give True, or a PurgatoryCollector")
    return PurgatoryCollector(purgatory, directory=os.environ.get(DIRECTORY_VARIABLE) or None)


def collecting(collector: PurgatoryCollector | None) -> AbstractAsyncContextManager[Any]:
    """Return what to enter around the purgatory; where the server starts the application."""
    if collector is None:
        return nullcontext()
    workers = running_workers(sys._getframe(), sys.argv, os.environ)
    if workers > 1 and not collector.is_of_all_workers:
        logger.warning(
            "metrics are those of one of %d workers, whichever is asked: set %s to an empty "
            "directory that they share",
            workers,
            DIRECTORY_VARIABLE,
            extra={"action": "metrics-of-one-worker"},
        )
    return collector


def add_metrics_route(
    router: APIRouter, context: EndpointContext, collector: PurgatoryCollector
) -> None:
    """Add the route of metrics to `router`."""

    async def metrics(raw: RawRequest) -> RawResponse:
        raw.permit.check(Access(Action.METRICS))
        NO_PARAMETERS.parse(raw)
        accept = ", ".join(raw.headers_named(b"accept"))
        body, content_type = await collector.text(accept)
        headers = [
            (b"content-type", content_type.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
        ]
        return RawResponse(200, headers, body)

    add_endpoint(router, _METRICS, TaskEndpoint(context, _METRICS, metrics))
