"""Declarations of endpoints: the source of their routes, parsers and OpenAPI operations."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from fastapi import Body, Header, Path, Query
from starlette.convertors import PathConvertor, register_url_convertor

from purgatory.fastapi.http.bounds import IncomingRequests, UnreadResponses
from purgatory.fastapi.http.json_bodies import JsonBody
from purgatory.fastapi.http.parameters import NO_PARAMETERS, Parameter, Parameters
from purgatory.fastapi.http.problems import KINDS, MEDIA_TYPE, ProblemKind
from purgatory.fastapi.http.raw_request import ALLOW_ANYONE, Access, Action, Authenticate
from purgatory.fastapi.http.schemas import ProblemDetails
from purgatory.purgatory import Purgatory

DEFAULT_PREFIX: Final = "/purgatory"


@dataclass(frozen=True, slots=True)
class EndpointContext:
    """The purgatory that the endpoints of a router serve, their address and access check."""

    purgatory: Purgatory
    prefix: str = DEFAULT_PREFIX
    """The path before every endpoint and every problem type."""
    authenticate: Authenticate = ALLOW_ANYONE
    """Returns the permit of a request; raises Problem 401."""
    bypass_middleware: bool = False
    """True iff requests may be served without the application's middleware."""
    incoming: IncomingRequests = field(default_factory=IncomingRequests)
    """The requests of all these endpoints that have not arrived completely."""
    unread: UnreadResponses = field(default_factory=UnreadResponses)
    """The responses of all these endpoints that have not been sent completely."""


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


def all_problems(access: Access | None, problems: tuple[str, ...]) -> tuple[str, ...]:
    """Return the kinds of problems of an endpoint, in the order in which requests are checked."""
    of_access = () if access is None else ("unauthorized", "forbidden")
    # Of requests with a body.
    receiving = ("request-timeout", "receiving-full") if "body-too-large" in problems else ()
    return (*of_access, "bad-parameter", *problems, *receiving)


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


_LOCATIONS: Final = {"path": Path, "query": Query, "header": Header}


class _KeyConvertor(PathConvertor):
    # Starlette's own ends at a newline: a key with one would not be found, or be taken for another.
    regex = "(?s:.*)"


register_url_convertor("watch_key", _KeyConvertor())


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSpec:
    """What an endpoint takes and returns."""

    name: str
    """The operation id, after which client generators name their methods."""
    method: str
    path: str
    """Below the prefix of the router, with Starlette's convertors."""
    summary: str
    description: str
    action: Action
    """What the endpoint lets a client do."""
    parameters: Parameters = NO_PARAMETERS
    body: JsonBody[Any] | None = None
    """The body in JSON; None if there is none."""
    response: Any = None
    """The model of the response; None if it is empty, or `responses` describes it."""
    response_description: str
    status: int = 200
    responses: Responses = field(default_factory=dict)
    """More about responses, or other responses, by status."""
    problems: tuple[str, ...] = ()
    """The kinds of problems besides those that every endpoint has."""

    @property
    def path_parameter(self) -> str:
        """The name of the parameter at the end of the path; empty if there is none."""
        names = [item.name for item in self.parameters.declared if item.location == "path"]
        return names[0] if names else ""

    @property
    def signature(self) -> inspect.Signature:
        """The signature that FastAPI would find on a function that parses all of this."""
        return inspect.Signature(list(self._arguments()))

    def _arguments(self) -> Iterator[inspect.Parameter]:
        if self.body is not None:
            yield _argument(
                "body", self.body.annotation, Body(**self.body.bounds), self.body.default
            )
        for parameter in self.parameters.declared:
            yield _parameter_argument(parameter)


def _argument(name: str, annotation: Any, info: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[annotation, info],
    )


def _parameter_argument(parameter: Parameter[Any]) -> inspect.Parameter:
    info = _LOCATIONS[parameter.location](description=parameter.description, **parameter.schema)
    # FastAPI makes the name of a header of that of its argument.
    name = parameter.name.lower().replace("-", "_")
    if parameter.location == "path" or parameter.is_required:
        return _argument(name, parameter.type, info, inspect.Parameter.empty)
    is_nullable = parameter.documented_default is None
    annotation = parameter.type | None if is_nullable else parameter.type
    return _argument(name, annotation, info, parameter.documented_default)
