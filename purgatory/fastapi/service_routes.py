"""Routes of the service itself: statistics, metrics, problems, and the JavaScript client."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import sys
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter
from fastapi import Path as InPath
from pydantic import ConfigDict, RootModel

from purgatory.errors import PurgatoryError
from purgatory.fastapi.http.requests import READ, Access, Action, RawRequest
from purgatory.fastapi.http.responses import KINDS, Problem, RawResponse
from purgatory.fastapi.routing.endpoints import EndpointContext, file_response
from purgatory.fastapi.routing.routes import add_handler
from purgatory.fastapi.servers.server_process import running_workers
from purgatory.purgatory import Purgatory, Statistics

if TYPE_CHECKING:
    from purgatory.metrics import PurgatoryCollector

logger = logging.getLogger("purgatory.fastapi")

MODULE: Final = Path(__file__).parents[1] / "javascript" / "purgatory.js"


def add_javascript_route(router: APIRouter, context: EndpointContext) -> None:
    """Add the route of the module to `router`."""
    body = MODULE.read_bytes()
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {
        "Content-Type": "text/javascript; charset=utf-8",
        "X-Content-Type-Options": "nosniff",
        "ETag": etag,
        # A page must not run the module of another version for long.
        "Cache-Control": "public, max-age=300",
    }

    async def javascript(raw: RawRequest) -> RawResponse:
        """The JavaScript client.

        A module for browsers and Node.js, with `follow` and `fire`.
        """
        return file_response(raw, body, headers)

    add_handler(
        router,
        context,
        "GET /purgatory.js",
        javascript,
        None,
        allows_head=True,
        response_description="The module.",
        responses={200: {"content": {"text/javascript": {}}}},
    )


DIRECTORY_VARIABLE: Final = "PURGATORY_METRICS_DIR"


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
        """Metrics.

        Return the metrics of all workers at this address, for Prometheus. Does not park.
        """
        body, content_type = await collector.text(", ".join(raw.headers_named(b"accept")))
        return RawResponse.of(
            200, body, {"Content-Type": content_type, "Cache-Control": "no-store"}
        )

    add_handler(
        router,
        context,
        "GET /metrics",
        metrics,
        Access(Action.METRICS),
        response_description="Prometheus's text format or, if accepted, OpenMetrics.",
        responses={200: {"content": {"text/plain": {}}}},
    )


_Slug = Annotated[
    str, InPath(description="The last part of a `type`.", examples=["cursor-expired"])
]


def add_problem_route(router: APIRouter, context: EndpointContext) -> None:
    """Add the route of the descriptions of problems to `router`."""
    add_handler(
        router,
        context,
        "GET /problems/{slug}",
        problem,
        None,
        response_description="What it is and what to do, in a few sentences.",
        responses={200: {"content": {"text/plain": {}}}},
        problems=("not-found",),
    )


async def problem(slug: _Slug) -> RawResponse:
    """A kind of problem.

    Describe a kind of problem, and what to do about it.
    """
    kind = KINDS.get(slug)
    if kind is None:
        raise Problem("not-found", f"there is no kind of problem called {slug[:64]!r}")
    body = f"{kind.title} ({kind.status} {kind.slug})\n\n{kind.remedy}\n".encode()
    return RawResponse.of(200, body, {"Content-Type": "text/plain; charset=utf-8"})


class StatisticsResponse(RootModel[Statistics]):
    """This process now and since its start."""

    # Described when it is first asked for: parsing the sources is a tenth of the service's start.
    model_config = ConfigDict(defer_build=True)


# OpenAPI describes the attributes of these dataclasses by their docstrings. Set afterwards, as
# pydantic would look for those of the model itself at once, in the sources of all modules.
StatisticsResponse.model_config["use_attribute_docstrings"] = True


# Seconds that statistics wait for the job store.
STORE_TIMEOUT: Final = 2.0


def add_statistics_route(router: APIRouter, context: EndpointContext) -> None:
    """Add the route of statistics to `router`."""
    purgatory = context.purgatory

    async def statistics() -> StatisticsResponse:
        """Statistics.

        Return exact counts of this process, of now and since its start. Does not park.
        """
        found = purgatory.statistics()
        if found.jobs is not None:
            jobs = replace(found.jobs, states=await job_states(purgatory))
            found = replace(found, jobs=jobs)
        return StatisticsResponse(found)

    add_handler(router, context, "GET /statistics", statistics, READ)


async def job_states(purgatory: Purgatory) -> dict[str, int] | None:
    """Return how many jobs are in each state; None if the store does not respond in time."""
    try:
        async with asyncio.timeout(STORE_TIMEOUT):
            return asdict(await purgatory.jobs.counts())
    except (PurgatoryError, TimeoutError):
        # The other figures matter all the more while the store is away.
        return None
