"""JSON bodies, checked."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Final, Generic, TypeVar

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from purgatory.fastapi.http.body_schema import BodyPlaces, Location, Place
from purgatory.fastapi.http.problems import Problem, bad_parameter

Value = TypeVar("Value")

MAX_ERRORS_SHOWN: Final = 20
# Characters of what a client sent.
MAX_SHOWN: Final = 64


class JsonBody(Generic[Value]):
    """The JSON body of an endpoint: how it is parsed, and what OpenAPI is made of."""

    def __init__(
        self,
        annotation: Any,
        *,
        max_bytes: int,
        schema: Mapping[str, Any] | None = None,
        default: Any = inspect.Parameter.empty,
    ) -> None:
        """Declare a body of the type `annotation`.

        `schema` has bounds as keywords of pydantic's `Field`; with a `default` the body may be
        left out.
        """
        self.annotation = annotation
        self.max_bytes = max_bytes
        self.schema = dict(schema or {})
        self.default = default
        bounded: Any = Annotated[annotation, Field(**self.schema)]
        self._adapter: TypeAdapter[Value] = TypeAdapter(bounded)

    def parse(self, body: bytes) -> Value:
        """Return a document; raise Problem that says what is wrong with it, and where."""
        try:
            parsed = self._adapter.validate_json(body)
        except ValidationError as exc:
            raise _problem(exc, self._places) from exc
        _refuse_repeated_names(body)
        return parsed

    @cached_property
    def _places(self) -> BodyPlaces:
        return BodyPlaces(self._adapter.json_schema())


def bad_field(path: Location, detail: str, allowed: str) -> Problem:
    """Return the refusal of one field of a body, for a reason that its schema does not know."""
    names = [part for part in path if isinstance(part, str)]
    place = Place(path, ".".join(names) or "body", allowed)
    return _refusal([(place, detail)])


def _refuse_repeated_names(body: bytes) -> None:
    # Pydantic takes the last of them without a word. It has found the body to be JSON.
    if body.count(b":") > 1:
        _look_for_repeated_names(body.decode())


def _without_repeated_names(members: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in members:
        if name in seen:
            raise bad_parameter(
                name[:64], f"{name[:64]!r} is given twice in one object of the body", "once"
            )
        seen.add(name)


# Made once: `json.loads` makes a decoder for each call, which takes as long as a small body.
_look_for_repeated_names = json.JSONDecoder(object_pairs_hook=_without_repeated_names).decode


def _problem(exc: ValidationError, places: BodyPlaces) -> Problem:
    errors = exc.errors(include_url=False, include_context=False)
    if errors[0]["type"] == "json_invalid":
        return Problem("bad-json", f"the body is not JSON: {errors[0]['msg']}")
    found: dict[Location, tuple[Place, str]] = {}
    for error in errors[: 2 * MAX_ERRORS_SHOWN]:
        place = places.find(error["loc"], is_unknown=error["type"] == "extra_forbidden")
        # Of a field that may be one of several things there is an error for each of them.
        sentence = _sentence(error)
        if place.path in found:
            sentence = f"it is {_shown(error['input'])}, none of what is allowed"
        found[place.path] = (place, sentence)
    return _refusal(_deepest(found)[:MAX_ERRORS_SHOWN])


def _deepest(found: dict[Location, tuple[Place, str]]) -> list[tuple[Place, str]]:
    """Leave out the errors of a field in which another error was found.

    It may be one of several things, and what the client sent is nearly one of them.
    """
    outer = {path[:end] for path in found for end in range(len(path))}
    return [error for path, error in found.items() if path not in outer]


def _sentence(error: ErrorDetails) -> str:
    match error["type"]:
        case "extra_forbidden":
            return "there is no such field"
        case "missing":
            return "it is missing"
    message = error["msg"].replace(" after validation", "")
    return f"it is {_shown(error['input'])}: {message[:1].lower()}{message[1:]}"


def _shown(value: Any) -> str:
    match value:
        case list():
            return "a list"
        case dict():
            return "an object"
        case str():
            return json.dumps(value[:MAX_SHOWN])
    return json.dumps(value)[:MAX_SHOWN]


def _refusal(errors: Sequence[tuple[Place, str]]) -> Problem:
    place, sentence = errors[0]
    return Problem(
        "bad-parameter",
        f"{place.pointer or 'the body'}: {sentence}; allowed: {place.allowed}",
        param=place.param,
        allowed=place.allowed,
        errors=[
            {"pointer": place.pointer, "detail": detail, "allowed": place.allowed}
            for place, detail in errors
        ],
    )
