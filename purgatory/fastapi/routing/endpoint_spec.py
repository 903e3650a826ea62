"""Declarations of endpoints: the source of their routes, parsers and OpenAPI operations."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from fastapi import Body, Header, Path, Query
from starlette.convertors import PathConvertor, register_url_convertor

from purgatory.fastapi.http.authorization import Action
from purgatory.fastapi.http.bodies.json_bodies import JsonBody
from purgatory.fastapi.http.parameters import NO_PARAMETERS, Parameter, Parameters
from purgatory.fastapi.routing.openapi import Responses

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
    allows_head: bool = False
    """HEAD is served like GET; servers leave out the body."""
    action: Action | None
    """What the endpoint lets a client do; None if everyone may."""
    parameters: Parameters = NO_PARAMETERS
    body: JsonBody[Any] | None = None
    """The body in JSON; None if there is none, or `openapi_extra` describes another."""
    response: Any = None
    """The model of the response; None if it is empty, or `responses` describes it."""
    response_description: str
    status: int = 200
    responses: Responses = field(default_factory=dict)
    """More about responses, or other responses, by status."""
    problems: tuple[str, ...] = ()
    """The kinds of problems besides those that every endpoint has."""
    openapi_extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path_parameter(self) -> str:
        """The name of the parameter at the end of the path; empty if there is none."""
        names = [item.name for item in self.parameters.declared if item.location == "path"]
        return names[0] if names else ""

    @property
    def max_body(self) -> int:
        """The maximum size of the body in bytes; 0 if the endpoint takes none."""
        return 0 if self.body is None else self.body.max_bytes

    @property
    def takes_content(self) -> bool:
        """True iff a body of the wrong kind is refused; so it is by a POST that needs none."""
        return self.method in ("PATCH", "POST")

    @property
    def signature(self) -> inspect.Signature:
        """The signature that FastAPI would find on a function that parses all of this."""
        return inspect.Signature(list(self._arguments()))

    @property
    def all_problems(self) -> tuple[str, ...]:
        """The kinds of problems, in the order in which requests are checked."""
        access = () if self.action is None else ("unauthorized", "forbidden")
        # Of requests with a body.
        receiving = ("request-timeout", "receiving-full")
        has_body = "body-too-large" in self.problems
        return (*access, "bad-parameter", *self.problems, *(receiving if has_body else ()))

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
