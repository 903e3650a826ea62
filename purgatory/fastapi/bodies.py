"""JSON bodies, checked."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from purgatory.fastapi.problems import Problem
from purgatory.fastapi.schemas import MAX_BATCH

Model = TypeVar("Model", bound=BaseModel)

MAX_ERRORS_SHOWN = 20


def parse_body(model: type[Model], body: bytes) -> Model:
    """Return a JSON object as `model`; raise Problem that says what is wrong with it, and where."""
    try:
        return model.model_validate_json(body)
    except ValidationError as exc:
        raise _problem(exc) from exc


def parse_batch(model: type[Model], body: bytes) -> list[Model]:
    """Return a JSON array of 1 to MAX_BATCH objects as `model`; raise Problem."""
    batch = Annotated[list[model], Field(min_length=1, max_length=MAX_BATCH)]  # type: ignore[valid-type] # a type made at run time
    try:
        return TypeAdapter(batch).validate_json(body)
    except ValidationError as exc:
        raise _problem(exc) from exc


def _problem(exc: ValidationError) -> Problem:
    errors = exc.errors(include_url=False, include_context=False, include_input=False)
    if errors[0]["type"] == "json_invalid":
        return Problem("bad-json", f"the body is not JSON: {errors[0]['msg']}")
    found = [
        {"pointer": "".join(f"/{str(part)[:64]}" for part in error["loc"]), "detail": error["msg"]}
        for error in errors[:MAX_ERRORS_SHOWN]
    ]
    return Problem(
        "bad-parameter",
        f"{found[0]['pointer'] or 'the body'}: {found[0]['detail']}",
        param=str(errors[0]["loc"][0])[:64] if errors[0]["loc"] else "body",
        allowed="what the API's documentation says of this body",
        errors=found,
    )
