"""Parts of OpenAPI that FastAPI does not make of a signature: problems and response headers."""

from __future__ import annotations

from typing import Any, Final

from purgatory.fastapi.http.problem_kinds import KINDS, ProblemKind
from purgatory.fastapi.http.problems import MEDIA_TYPE
from purgatory.fastapi.http.schemas import ProblemDetails
from purgatory.fastapi.routing.endpoint_context import DEFAULT_PREFIX

Responses = dict[int | str, dict[str, Any]]

_PROBLEM_SCHEMA: Final = ProblemDetails.model_json_schema()


def response_header(name: str, description: str, kind: str = "string") -> dict[str, Any]:
    """Describe a header of a response; `kind` is a JSON type."""
    return {name: {"description": description, "schema": {"type": kind}}}


RETRY_AFTER: Final = response_header("Retry-After", "Seconds; jittered.", "integer")


def problem_responses(*slugs: str) -> Responses:
    """Return OpenAPI responses for kinds of problems: their statuses, and `default` for the body.

    The schema and an example stand once, under `default`: repeated for each status, they make a
    page of Swagger UI several screens long.
    """
    by_status: dict[int | str, list[ProblemKind]] = {}
    for kind in (KINDS[slug] for slug in slugs):
        by_status.setdefault(kind.status, []).append(kind)
    responses: Responses = {
        status: {
            "description": _description(kinds),
            "content": {MEDIA_TYPE: {}},
            **({"headers": RETRY_AFTER} if status in (429, 503) else {}),
        }
        for status, kinds in by_status.items()
    }
    responses["default"] = {
        "description": "The body of every error (RFC 9457). `type` is the URL of a page about it.",
        # Not a model: FastAPI would declare it as application/json.
        "content": {MEDIA_TYPE: {"schema": _PROBLEM_SCHEMA, "example": _example(KINDS[slugs[0]])}},
    }
    return responses


def _description(kinds: list[ProblemKind]) -> str:
    lines = [f"`{kind.slug}`: {kind.title}." for kind in kinds]
    # Markdown: a list if there are several.
    return lines[0] if len(lines) == 1 else "\n".join(f"- {line}" for line in lines)


def _example(kind: ProblemKind) -> dict[str, Any]:
    return {
        "type": f"{DEFAULT_PREFIX}/problems/{kind.slug}",
        "title": kind.title,
        "status": kind.status,
        "detail": kind.remedy,
        "instance": f"{DEFAULT_PREFIX}/...",
    }
