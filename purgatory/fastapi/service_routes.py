"""Routes of the service itself: statistics, metrics, problems, and the JavaScript client."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import sys
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter
from fastapi import Path as InPath
from pydantic import BaseModel, ConfigDict, Field

from purgatory.errors import PurgatoryError
from purgatory.fastapi.http.requests import READ, Access, Action, RawRequest
from purgatory.fastapi.http.responses import KINDS, Problem, RawResponse
from purgatory.fastapi.routing.endpoints import EndpointContext
from purgatory.fastapi.routing.routes import add_handler
from purgatory.fastapi.servers.server_process import running_workers
from purgatory.purgatory import LevelStatistics, Purgatory
from purgatory.signals import SignalStatistics
from purgatory.signals.model import SharedSignalStatistics

if TYPE_CHECKING:
    from purgatory.metrics import PurgatoryCollector

logger = logging.getLogger("purgatory.fastapi")

MODULE: Final = Path(__file__).parents[1] / "javascript" / "purgatory.js"


def add_javascript_route(router: APIRouter, context: EndpointContext) -> None:
    """Add the route of the module to `router`."""
    body = MODULE.read_bytes()
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    # A page must not run the module of another version for long.
    common = {"ETag": etag, "Cache-Control": "public, max-age=300"}
    headers = {
        "Content-Type": "text/javascript; charset=utf-8",
        "X-Content-Type-Options": "nosniff",
        **common,
    }

    async def javascript(raw: RawRequest) -> RawResponse:
        """The JavaScript client.

        A module for browsers and Node.js, with `follow` and `fire`.
        """
        if etag in raw.headers_named(b"if-none-match"):
            return RawResponse.of(304, b"", common)
        return RawResponse.of(200, body, headers)

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


class LatenessStatistics(BaseModel):
    """How late this process started jobs after they were due."""

    p50_ms: int = Field(description="The median of the last 1,024.")
    p99_ms: int = Field(description="The 99th percentile of the last 1,024.")
    longest_ms: int = Field(
        description="The longest since the start, without jobs that were due while no process ran."
    )


class RecoveryStatistics(BaseModel):
    """The recovery of jobs that were due while no process ran."""

    is_finished: bool = Field(description="All of them have been claimed.")
    overdue: int = Field(description="Jobs claimed so far that were due before the start.")
    missed: int = Field(description='Of those, the ones that were skipped: `"misfire": "skip"`.')
    spread: int = Field(description='Of those, the ones that were put off: `"misfire": "spread"`.')


class JobStatisticsResponse(BaseModel):
    """The delayed jobs of this process since its start, and the jobs of all processes."""

    held: int = Field(description="Claimed by this process: due soon, or running.")
    running: int = Field(description="Of those, the ones that are running now.")
    waiting: int = Field(description="Of those, the ones that are due and wait for a slot.")
    done: int = Field(description="Runs that succeeded.")
    failed: int = Field(description="Jobs that failed and are not retried.")
    retried: int = Field(description="Runs that failed and are retried.")
    again: int = Field(description="Runs after which the job waits again.")
    given_back: int = Field(description="Jobs left to other processes, on shutdown.")
    put_off: int = Field(
        description="Jobs that were due and found no room to wait for a slot: they are claimed "
        "again a little later, and no attempt is counted."
    )
    lost: int = Field(
        description="Runs whose result the store refused, as a rule because another process had "
        "the lease."
    )
    lateness: LatenessStatistics
    recovery: RecoveryStatistics
    outages: int = Field(description="How often the job store was unavailable.")
    store_error: str | None = Field(
        description="The last error of the store if it is failing now, else null."
    )
    states: dict[str, int] | None = Field(
        description="Jobs in each state, in all processes; null if the store does not respond. "
        "`blocked` are those of them that are due and wait for a place or until their handler is "
        "resumed, and `quarantined` records that are not jobs.",
        examples=[
            {
                "waiting": 3,
                "running": 1,
                "done": 9,
                "failed": 0,
                "cancelled": 2,
                "quarantined": 0,
                "blocked": 1,
            }
        ],
    )


class StatisticsResponse(BaseModel):
    """This process now and since its start."""

    # Also of the dataclasses in it: OpenAPI describes their attributes by their docstrings.
    model_config = ConfigDict(use_attribute_docstrings=True)

    parked: int = Field(description="Operations that are waiting now: parked requests, as a rule.")
    keys: int = Field(description="Keys that are watched now.")
    watched: int = Field(description="Watches now: an operation counts once for each of its keys.")
    parked_bytes: int = Field(
        description="Bytes that the keys of operations with several keys take, about."
    )
    fires: int = Field(description="Signals that this process has fired.")
    fired: int = Field(description="Operations that a key completed.")
    expired: int = Field(description="Operations that reached their deadline.")
    cancelled: int = Field(description="Operations that were cancelled, or whose client left.")
    drained: int = Field(description="Operations that ended because the process shuts down.")
    outdated: int = Field(
        description="Operations that ended, with 410, because signals were lost or are no longer "
        "kept."
    )
    is_draining: bool = Field(description="The process is shutting down.")
    signals: SignalStatistics
    shared_signals: SharedSignalStatistics | None = Field(
        description="Signals exchanged with other processes; null if they are in memory."
    )
    timers: int = Field(
        description="Timers that are pending now; one of them ages the signals that are kept."
    )
    levels: list[LevelStatistics] = Field(description="The timing wheel, the finest level first.")
    wake_ups: int = Field(description="How often the event loop was woken for the timer.")
    longest_turn_ms: float = Field(
        description="The longest time for which expirations blocked the event loop."
    )
    longest_lateness_ms: int = Field(description="The longest delay of a timer after its deadline.")
    is_compiled: bool = Field(description="The core runs compiled, not as plain Python.")
    jobs: JobStatisticsResponse | None = Field(
        description="Delayed jobs; null without a job store."
    )
    refused: dict[str, int] = Field(
        description="How often each limit on parked requests was reached, by its name.",
        examples=[{"max_parked_per_client": 7}],
    )


# Seconds that statistics wait for the job store.
STORE_TIMEOUT: Final = 2.0


def add_statistics_route(router: APIRouter, context: EndpointContext) -> None:
    """Add the route of statistics to `router`."""
    purgatory = context.purgatory

    async def statistics() -> StatisticsResponse:
        """Statistics.

        Return exact counts of this process, of now and since its start. Does not park.
        """
        document = asdict(purgatory.statistics())
        if document["jobs"] is not None:
            document["jobs"]["states"] = await _job_states(purgatory)
        return StatisticsResponse(**document)

    add_handler(
        router,
        context,
        "GET /statistics",
        statistics,
        READ,
        response_description="Counts of this process, and the jobs of all.",
    )


async def _job_states(purgatory: Purgatory) -> dict[str, int] | None:
    try:
        async with asyncio.timeout(STORE_TIMEOUT):
            return asdict(await purgatory.jobs.counts())
    except (PurgatoryError, TimeoutError):
        # The other figures matter all the more while the store is away.
        return None
