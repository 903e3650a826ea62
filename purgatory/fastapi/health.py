"""Health checks: /healthz and /readyz."""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from purgatory.purgatory import Purgatory


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
