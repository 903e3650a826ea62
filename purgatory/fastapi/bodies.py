"""JSON bodies, checked."""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from purgatory.fastapi.problems import Problem, bad_parameter
from purgatory.fastapi.schemas import MAX_BATCH

Model = TypeVar("Model", bound=BaseModel)

MAX_ERRORS_SHOWN = 20


def parse_body(model: type[Model], body: bytes) -> Model:
    """Return a JSON object as `model`; raise Problem that says what is wrong with it, and where."""
    try:
        parsed = model.model_validate_json(body)
    except ValidationError as exc:
        raise _problem(exc) from exc
    _refuse_repeated_names(body)
    return parsed


def parse_batch(model: type[Model], body: bytes) -> list[Model]:
    """Return a JSON array of 1 to MAX_BATCH objects as `model`; raise Problem."""
    batch = Annotated[list[model], Field(min_length=1, max_length=MAX_BATCH)]  # type: ignore[valid-type] # a type made at run time
    try:
        parsed = TypeAdapter(batch).validate_json(body)
    except ValidationError as exc:
        raise _problem(exc) from exc
    _refuse_repeated_names(body)
    return parsed


def pointer(location: tuple[int | str, ...]) -> str:
    """Return a place in a document as a JSON pointer (RFC 6901)."""
    parts = (str(part).replace("~", "~0").replace("/", "~1") for part in location)
    return "".join(f"/{part[:64]}" for part in parts)


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


def _problem(exc: ValidationError) -> Problem:
    errors = exc.errors(include_url=False, include_context=False, include_input=False)
    if errors[0]["type"] == "json_invalid":
        return Problem("bad-json", f"the body is not JSON: {errors[0]['msg']}")
    found = [
        {"pointer": pointer(error["loc"]), "detail": error["msg"]}
        for error in errors[:MAX_ERRORS_SHOWN]
    ]
    return Problem(
        "bad-parameter",
        f"{found[0]['pointer'] or 'the body'}: {found[0]['detail']}",
        param=str(errors[0]["loc"][0])[:64] if errors[0]["loc"] else "body",
        allowed="what the API's documentation says of this body",
        errors=found,
    )
