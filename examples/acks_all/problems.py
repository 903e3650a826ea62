"""Errors of the broker as problem details (RFC 9457)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from examples.acks_all import errors
from examples.acks_all.errors import BrokerError

MEDIA_TYPE = "application/problem+json"
MULTI_STATUS = 207

KINDS: dict[str, type[BrokerError]] = {
    kind.slug: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, BrokerError) and kind is not BrokerError
}


def problem(error: BrokerError) -> dict[str, Any]:
    """Return the document that describes `error`."""
    return {
        "type": f"/problems/{error.slug}",
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
        **error.members,
    }


def problem_response(error: BrokerError, instance: str, **members: Any) -> Response:
    """Return the response to a request that failed with `error`."""
    return JSONResponse(
        {**problem(error), "instance": instance, **members},
        error.status,
        {"Retry-After": "1"} if error.status == 503 else None,
        MEDIA_TYPE,
    )


def partitions_response(
    results: Sequence[BaseModel], found: Sequence[BrokerError | None], instance: str
) -> Response:
    """Return the response to a request for several partitions.

    200 if no partition failed, a problem if all failed in the same way, and 207 otherwise. Each
    contains the results, one per partition.
    """
    partitions = [result.model_dump() for result in results]
    first = found[0]
    if first is not None and all(type(error) is type(first) for error in found):
        return problem_response(first, instance, partitions=partitions)
    status = MULTI_STATUS if any(found) else 200
    return JSONResponse({"partitions": partitions}, status, {"Cache-Control": "no-store"})


def add_broker_errors(app: FastAPI) -> None:
    """Convert each BrokerError that an endpoint of `app` raises to its problem."""

    async def on_broker_error(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, BrokerError)
        return problem_response(exc, request.url.path)

    app.add_exception_handler(BrokerError, on_broker_error)
