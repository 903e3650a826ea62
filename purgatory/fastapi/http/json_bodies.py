"""JSON bodies: parsed strictly, with the location of every error."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Final, Generic, TypeVar

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from purgatory.fastapi.http.problems import Problem
from purgatory.fastapi.http.schemas import BodyField, BodySchema, Location
from purgatory.fastapi.http.sliced_json import (
    OutOfBoundsError,
    SlicedDecoder,
    Steps,
    at_once,
    in_turns,
    object_of,
)
from purgatory.json_value import MAX_DOCUMENT_DEPTH, is_too_deep

Value = TypeVar("Value")

MAX_ERRORS_SHOWN: Final = 20
# The bytes of a body that is parsed by one call even with numbers of very many digits, to read
# which takes quadratic time.
MAX_AT_ONCE: Final = 64 * 1024
_LONG_NUMBER: Final = re.compile(rb"[0-9]{1000}")
# The commas in a body that is parsed by one call.
MAX_COMMAS: Final = 1000
# Characters of what a client sent.
MAX_SHOWN: Final = 64


class JsonBody(Generic[Value]):
    """The JSON body of an endpoint: how it is parsed, and what OpenAPI is made of."""

    def __init__(
        self,
        annotation: Any,
        *,
        max_bytes: int,
        max_value_bytes: int = 0,
        bounds: Mapping[str, Any] | None = None,
        default: Any = inspect.Parameter.empty,
    ) -> None:
        """Declare a body of the type `annotation`.

        A value whose schema allows any has up to `max_value_bytes`. `bounds` are keywords of
        pydantic's `Field`; with a `default` the body may be left out.
        """
        self.annotation = annotation
        self.max_bytes = max_bytes
        self._max_value_bytes = max_value_bytes
        self.bounds = dict(bounds or {})
        self.default = default
        bounded: Any = Annotated[annotation, Field(**self.bounds)]
        self._adapter: TypeAdapter[Value] = TypeAdapter(bounded)

    def parse(self, body: bytes) -> Value:
        """Return the parsed body; raise Problem with the errors and their locations.

        In one turn of the event loop: `parse_in_turns` is for what may have large values.
        """
        return self.parse_small(body) if self.is_small(body) else at_once(self._steps(body))

    async def parse_in_turns(self, body: bytes) -> Value:
        """Return the parsed body, as `parse` does, over as many turns of the loop as it takes."""
        return self.parse_small(body) if self.is_small(body) else await in_turns(self._steps(body))

    def is_small(self, body: bytes) -> bool:
        """Return True iff `body` is parsed within a millisecond or so."""
        if len(body) <= MAX_COMMAS:
            return True
        # Each value but the first of an array or object comes after a comma.
        if body.count(b",") > MAX_COMMAS:
            return False
        return len(body) <= MAX_AT_ONCE or _LONG_NUMBER.search(body) is None

    def parse_small(self, body: bytes) -> Value:
        """Return a parsed body that `is_small`; raise Problem."""
        try:
            parsed = self._adapter.validate_json(body)
        except ValidationError as exc:
            if is_too_deep(body, MAX_DOCUMENT_DEPTH):
                # Pydantic has another limit, and does not say which value it is.
                return at_once(self._steps(body))
            raise _problem(exc, self._schema) from exc
        # Pydantic silently takes the last of repeated names. It has checked that the body is JSON.
        if body.count(b":") > 1:
            _check_repeated_names(body.decode())
        return parsed

    def _steps(self, body: bytes) -> Steps[Value]:
        try:
            text = body.decode()
            document = yield from SlicedDecoder(text, self._schema, self._max_value_bytes).decode()
            yield
            return self._adapter.validate_python(document)
        except UnicodeDecodeError as exc:
            raise Problem(
                "bad-json", f"the body is not JSON: it is not UTF-8 ({exc.reason})"
            ) from exc
        except OutOfBoundsError as exc:
            field = self._schema.field_at(
                exc.path, is_unknown=exc.is_unknown, has_alternatives=False
            )
            raise _problem_of([(field, exc.sentence)]) from exc
        except ValidationError as exc:
            raise _problem(exc, self._schema) from exc

    @cached_property
    def _schema(self) -> BodySchema:
        return BodySchema(self._adapter.json_schema())


def bad_field(path: Location, detail: str, allowed: str) -> Problem:
    """Return the problem of one field of a body, for a reason beyond its schema."""
    names = [part for part in path if isinstance(part, str)]
    field = BodyField(path, ".".join(names) or "body", allowed)
    return _problem_of([(field, detail)])


# Made once: `json.loads` makes a decoder for each call, which takes as long as a small body.
_check_repeated_names = json.JSONDecoder(object_pairs_hook=object_of).decode


def _problem(exc: ValidationError, schema: BodySchema) -> Problem:
    errors = exc.errors(include_url=False, include_context=False)
    if errors[0]["type"] == "json_invalid":
        return Problem("bad-json", f"the body is not JSON: {errors[0]['msg']}")
    found: dict[Location, tuple[BodyField, str]] = {}
    for error in errors[: 2 * MAX_ERRORS_SHOWN]:
        field = schema.field_at(error["loc"], is_unknown=error["type"] == "extra_forbidden")
        # Of a union there is an error for each alternative.
        sentence = _sentence(error)
        if field.path in found:
            sentence = f"it is {_shown(error['input'])}, none of what is allowed"
        found[field.path] = (field, sentence)
    return _problem_of(_deepest(found)[:MAX_ERRORS_SHOWN])


def _deepest(found: dict[Location, tuple[BodyField, str]]) -> list[tuple[BodyField, str]]:
    """Leave out the errors of fields that contain the field of another error.

    Those are of the other alternatives of a union, one of which the client nearly sent.
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


def _problem_of(errors: Sequence[tuple[BodyField, str]]) -> Problem:
    field, sentence = errors[0]
    return Problem(
        "bad-parameter",
        f"{field.pointer or 'the body'}: {sentence}; allowed: {field.allowed}",
        param=field.param,
        allowed=field.allowed,
        errors=[
            {"pointer": field.pointer, "detail": detail, "allowed": field.allowed}
            for field, detail in errors
        ],
    )
