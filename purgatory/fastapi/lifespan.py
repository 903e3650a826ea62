"""The lifespan that opens and closes a purgatory with the application, and its health checks."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from purgatory.errors import SeveralWorkersError
from purgatory.fastapi.servers.fast_routes import fast_routes_installed
from purgatory.fastapi.servers.server_process import (
    START_ERRORS,
    check_workers,
    drain_on_stop,
    log_in_one_sentence,
)
from purgatory.purgatory import Purgatory

Lifespan = Callable[[Any], AbstractAsyncContextManager[dict[str, Purgatory]]]


def create_lifespan(purgatory: Purgatory, *, allow_separate_workers: bool = False) -> Lifespan:
    """Return a lifespan that opens `purgatory`, drains it on SIGTERM and closes it at the end.

    For `FastAPI(lifespan=...)`; it yields `{"purgatory": purgatory}` as state. Entered twice, it
    opens once. Raises SeveralWorkersError at start-up if the server runs several workers, however
    it was told to, unless they share signals.
    """
    return lifespan_with(purgatory, None, allow_separate_workers=allow_separate_workers)


def lifespan_with(
    purgatory: Purgatory,
    on_drain: Callable[[], object] | None,
    *,
    allow_separate_workers: bool = False,
) -> Lifespan:
    """Return the same, with what is called as the drain begins on a signal."""

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[dict[str, Purgatory]]:
        refuse_several_workers(purgatory, allow_separate_workers=allow_separate_workers)
        if allow_separate_workers and purgatory.has_jobs:
            purgatory.jobs.allows_separate_workers = True
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(purgatory)
            except START_ERRORS as exc:
                log_in_one_sentence(exc)
                # Servers other than uvicorn print the traceback: without our frames, which say
                # nothing that the sentence does not.
                raise exc.with_traceback(None) from None
            with drain_on_stop(purgatory, on_drain), fast_routes_installed(app):
                yield {"purgatory": purgatory}

    return lifespan


def refuse_several_workers(purgatory: Purgatory, *, allow_separate_workers: bool) -> None:
    """Raise SeveralWorkersError, logged in one sentence, if workers would not share signals."""
    if purgatory.shared_signals is not None:
        return
    try:
        check_workers(sys.argv, os.environ, allow_separate_workers=allow_separate_workers)
    except SeveralWorkersError as exc:
        log_in_one_sentence(exc)
        raise exc.with_traceback(None) from None


class Health(BaseModel):
    """The process is alive."""

    status: str = Field("alive", description="Always this.")


class Readiness(BaseModel):
    """Whether the process may be sent requests, and what is missing if not."""

    status: str = Field(description="`ready` or `not ready`.", examples=["ready"])
    missing: list[str] = Field(description="What is missing; empty when ready.")


def create_health_router(purgatory: Purgatory) -> APIRouter:
    """Return `/healthz` and `/readyz`, for GET and HEAD: never parked, and not limited."""
    router = APIRouter(tags=["health"])

    @router.head("/healthz", include_in_schema=False)
    @router.get(
        "/healthz",
        operation_id="healthz",
        summary="Whether the process is alive",
        response_description="It is.",
    )
    async def healthz() -> Health:
        """Say that the process is alive. Restart it when this fails."""
        return Health()

    @router.head("/readyz", include_in_schema=False)
    @router.get(
        "/readyz",
        operation_id="readyz",
        summary="Whether to send requests here",
        response_description="It is ready.",
        responses={503: {"model": Readiness, "description": "It is not: `missing` says why."}},
    )
    async def readyz(response: Response) -> Readiness:
        """Say whether to send requests here: 503 while starting up, recovering or draining."""
        missing = []
        if not purgatory.is_open:
            missing.append("the purgatory is not open")
        if purgatory.is_draining:
            missing.append("draining: the process is shutting down")
        missing += purgatory.missing
        response.headers["Cache-Control"] = "no-store"
        response.status_code = 503 if missing else 200
        return Readiness(status="not ready" if missing else "ready", missing=missing)

    return router
