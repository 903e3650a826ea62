"""JSON bodies, checked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from purgatory.fastapi.http.body_schema import BodyPlaces, Location, Place
from purgatory.fastapi.http.problems import Problem, bad_parameter

Model = TypeVar("Model", bound=BaseModel)

MAX_ERRORS_SHOWN = 20
# Characters of what a client sent.
MAX_SHOWN = 64


def parse_body(model: type[Model], body: bytes) -> Model:
    """Return a JSON object as `model`; raise Problem that says what is wrong with it, and where."""
    try:
        parsed = model.model_validate_json(body)
    except ValidationError as exc:
        raise _problem(exc, _places_of(model)) from exc
    _refuse_repeated_names(body)
    return parsed


def parse_list(model: type[Model], body: bytes, maximum: int) -> list[Model]:
    """Return a JSON array of 1 to `maximum` objects as `model`; raise Problem."""
    try:
        parsed: list[Model] = _list_of(model, maximum).validate_json(body)
    except ValidationError as exc:
        raise _problem(exc, _places_of_list(model, maximum)) from exc
    _refuse_repeated_names(body)
    return parsed


def bad_field(path: Location, detail: str, allowed: str) -> Problem:
    """Return the refusal of one field of a body, for a reason that its schema does not know."""
    names = [part for part in path if isinstance(part, str)]
    place = Place(path, ".".join(names) or "body", allowed)
    return _refusal([(place, detail)])


@lru_cache(maxsize=64)
def _list_of(model: type[Model], maximum: int) -> TypeAdapter[list[Model]]:
    bounded: Any = Annotated[list[model], Field(min_length=1, max_length=maximum)]  # type: ignore[valid-type] # a type made at run time
    return TypeAdapter(bounded)


@lru_cache(maxsize=64)
def _places_of(model: type[BaseModel]) -> BodyPlaces:
    return BodyPlaces(model.model_json_schema())


@lru_cache(maxsize=64)
def _places_of_list(model: type[BaseModel], maximum: int) -> BodyPlaces:
    return BodyPlaces(_list_of(model, maximum).json_schema())


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
