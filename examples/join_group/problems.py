"""Errors of the coordinator as problem details (RFC 9457)."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, RedirectResponse

from examples.join_group import errors
from examples.join_group.errors import GroupError, OwnedElsewhere
from examples.join_group.schemas import ProblemResponse

MEDIA_TYPE: Final = "application/problem+json"
PREFIX: Final = "/groups/problems"

KINDS: Final[dict[str, type[GroupError]]] = {
    kind.slug: kind
    for kind in (
        errors.UnknownGroup,
        errors.UnknownMemberId,
        errors.IllegalGeneration,
        errors.RebalanceInProgress,
        errors.InconsistentGroupProtocol,
        errors.GroupFull,
        errors.JoinSuperseded,
        errors.NotLeader,
        errors.InvalidAssignment,
        errors.InvalidSessionTimeout,
        errors.InvalidRebalanceTimeout,
        errors.TooManyGroups,
        errors.CoordinatorDraining,
        errors.NotCoordinator,
        errors.CoordinatorNotAvailable,
    )
}


def add_group_problems(app: FastAPI) -> None:
    """Convert every GroupError that an endpoint of `app` raises to problem details."""
    app.add_exception_handler(GroupError, _on_group_error)
    app.add_exception_handler(OwnedElsewhere, _on_owned_elsewhere)


async def _on_owned_elsewhere(request: Request, exc: Exception) -> RedirectResponse:
    # 307: with the same method and body.
    assert isinstance(exc, OwnedElsewhere)
    return RedirectResponse(exc.address + request.url.path, status_code=307)


async def _on_group_error(request: Request, exc: Exception) -> JSONResponse:
    assert isinstance(exc, GroupError)
    document = {
        "type": f"{PREFIX}/{exc.slug}",
        "title": exc.title(),
        "status": exc.status,
        "detail": exc.detail,
        "instance": request.url.path,
        **exc.members,
    }
    headers = {"Cache-Control": "no-store", **exc.headers}
    return JSONResponse(document, exc.status, headers, media_type=MEDIA_TYPE)


def problem_responses(*kinds: type[GroupError]) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI descriptions of these errors, by status."""
    responses: dict[int | str, dict[str, Any]] = {}
    for kind in kinds:
        description = f"`{kind.slug}`: {kind.title()}."
        known = responses.get(kind.status)
        responses[kind.status] = {
            "model": ProblemResponse,
            "description": f"{known['description']} {description}" if known else description,
        }
    return responses
