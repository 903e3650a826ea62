"""JSON bodies: what all schemas share, the values that one allows in words, and parsing one."""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Final, Generic, TypeVar, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictStr,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic_core import ErrorDetails, from_json, to_json

from purgatory.fastapi.http.responses import Problem, bad_parameter
from purgatory.json_value import MAX_DOCUMENT_DEPTH, TOO_DEEP, is_too_deep
from purgatory.operations.watch_key import MAX_KEY_LENGTH
from purgatory.turn_budget import TurnBudget

Model = TypeVar("Model", bound=BaseModel)

# JSON that is written for ASCII only, as Python writes it, takes this much more room than in UTF-8.
ESCAPED: Final = 3
# Bytes: a key whose characters take two escapes each, its cursor, and the punctuation around them.
KEY_ROOM: Final = 12 * MAX_KEY_LENGTH + 128
# Bytes around a value in its body.
ENVELOPE: Final = 1024

KEY_PATTERN = r"^[^\x00-\x1f\x7f-\x9f]+$"
KeyText = Annotated[str, Field(min_length=1, max_length=MAX_KEY_LENGTH, pattern=KEY_PATTERN)]
"""A key, or what is written as keys are."""
Key = Annotated[KeyText, Field(description="1-256 characters, none of them control.")]
Cursor = Annotated[
    StrictStr,
    Field(
        description="Opaque, from an earlier response; 0: the earliest kept.",
        examples=["8c1f0a9be2d4-1", "0"],
    ),
]
NextCursor = Annotated[str, Field(examples=["8c1f0a9be2d4-1"])]
Timestamp = Annotated[
    str,
    Field(
        description="RFC 3339, UTC, to the millisecond.",
        json_schema_extra={"format": "date-time"},
        examples=["2026-11-21T15:04:05.678Z"],
    ),
]


class RequestBody(BaseModel):
    """The base of bodies: no unknown field, no NaN or Infinity."""

    # hide_input: a response does not repeat at length what the client sent.
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)


class ProblemDetails(BaseModel):
    """Problem details (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="The address of the problem's description.")
    title: str = Field(description="What kind of problem it is; the same for all of a `type`.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="The value, the limit and the way out.")
    instance: str = Field(description="The path of the request.")


def any_json(max_bytes: int) -> tuple[Any, Any]:
    """Return the type and the field of a JSON value, whose bound OpenAPI describes."""
    description = f"Any JSON value; {max_bytes} bytes of compact JSON in UTF-8 at most."
    return Any, Field(None, description=description)


def with_fields(model: type[Model], **changed: Any) -> type[Model]:
    """Return `model` with other types of some fields, or pairs of a type and another `Field`."""
    fields: Any = {
        name: each if isinstance(each, tuple) else (each, copy(model.model_fields[name]))
        for name, each in changed.items()
    }
    # Under the same name: what it is called in OpenAPI does not depend on anyone's limits.
    made: type[Model] = create_model(
        model.__name__, __base__=model, __doc__=model.__doc__, __module__=model.__module__, **fields
    )
    return made


Location = tuple[int | str, ...]
Schema = Mapping[str, Any]

_REFERENCE = "#/$defs/"


def pointer(location: Location) -> str:
    """Return a location in a document as a JSON pointer (RFC 6901); long names are cut."""
    parts = (str(part).replace("~", "~0").replace("/", "~1") for part in location)
    return "".join(f"/{part[:64]}" for part in parts)


@dataclass(frozen=True, slots=True)
class BodyField:
    """A field of a body, and what it allows."""

    path: Location
    """The location in the document that the client sent."""
    param: str
    """The names of the fields that lead there; an item of a list has the name of the list."""
    allowed: str


class BodySchema:
    """The fields of the bodies of one schema."""

    def __init__(self, schema: Schema) -> None:
        """Take a schema as pydantic makes it."""
        self._schema = schema
        self._definitions: Schema = schema.get("$defs", {})

    def field_at(
        self, location: Location, at: Location = (), *, is_unknown: bool = False
    ) -> BodyField:
        """Return the field at a location of pydantic's, which may be unknown to the schema.

        The body is the value at the location `at` of the document. The alternative of a union that
        was tried follows the union there: it is not part of the body, and left out.
        """
        path: list[int | str] = []
        names: list[str] = []
        schemas = self._alternatives(self._schema)
        sent, unknown = (location[:-1], location[-1:]) if is_unknown else (location, ())
        is_alternative = False
        for part in sent:
            children = self.children(schemas, part)
            if is_alternative or not children:
                is_alternative = False
                continue
            if any(part in schema.get("properties", {}) for schema in schemas):
                names.append(str(part))
            path.append(part)
            schemas = children
            is_alternative = _is_union(schemas)
        names += [str(part)[:64] for part in unknown]
        return BodyField(
            (*at, *path, *unknown),
            ".".join(names) or "body",
            _fields(schemas) if is_unknown else self.words(schemas),
        )

    @property
    def root(self) -> list[Schema]:
        """The alternatives of the whole body."""
        return self._alternatives(self._schema)

    def children(self, schemas: Sequence[Schema], part: int | str) -> list[Schema]:
        """Return the alternatives of an item or a member of `schemas`; empty if any is unknown."""
        return [child for schema in schemas for child in self._children(schema, part)]

    def _alternatives(self, schema: Schema) -> list[Schema]:
        """Return the alternatives of a schema."""
        if "$ref" in schema:
            return self._alternatives(self._definitions[schema["$ref"].removeprefix(_REFERENCE)])
        if "anyOf" in schema:
            found = [one for part in schema["anyOf"] for one in self._alternatives(part)]
            # The examples are of the union: they follow its last alternative but null, once.
            last = max(index for index, one in enumerate(found) if one.get("type") != "null")
            if "examples" in schema:
                found[last] = {**found[last], "examples": schema["examples"]}
            return found
        return [schema]

    def _children(self, schema: Schema, part: int | str) -> list[Schema]:
        if isinstance(part, int):
            child = schema.get("items")
        else:
            child = schema.get("properties", {}).get(part, schema.get("additionalProperties"))
        return self._alternatives(child) if isinstance(child, Mapping) else []

    def words(self, schemas: Iterable[Schema]) -> str:
        """Return what `schemas` allow, in words."""
        return ", or ".join(self._word(schema) for schema in schemas)

    def _word(self, schema: Schema) -> str:
        # A whole body is too long for an example.
        given = () if "properties" in schema else schema.get("examples", ())
        examples = ", ".join(map(json.dumps, given))
        return self._kind(schema) + (f", such as {examples}" if examples else "")

    def _kind(self, schema: Schema) -> str:
        match schema:
            case {"enum": values}:
                return " or ".join(json.dumps(value) for value in values)
            case {"type": "null"}:
                return "null"
            case {"type": "boolean"}:
                return "true or false"
            case {"type": "integer"}:
                return f"a whole number{_range(schema)}"
            case {"type": "number"}:
                return f"a number{_range(schema)}"
            case {"type": "string", "format": "date-time"}:
                return "a time as in RFC 3339, with a zone"
            case {"type": "string"}:
                is_printable = ", none of them control" if "pattern" in schema else ""
                return f"a text{_size(schema, 'Length', 'characters')}{is_printable}"
            case {"type": "array", "items": items}:
                each = self.words(self._alternatives(items))
                return f"a list{_size(schema, 'Items', 'items')}, each of them {each}"
            case {"type": "object", "properties": _}:
                return f"an object with {_fields([schema])}"
            case {"type": "object", "additionalProperties": values}:
                each = self.words(self._alternatives(values))
                return f"an object{_size(schema, 'Properties', 'names')}, each of them with {each}"
        return "any JSON value"


def allowed_words(schema: Schema) -> str:
    """Return what the schema of a parameter allows, in words: null is what is not given."""
    body = BodySchema(schema)
    return body.words([one for one in body.root if one.get("type") != "null"])


def _is_union(schemas: Iterable[Schema]) -> bool:
    return len([schema for schema in schemas if schema.get("type") != "null"]) > 1


def _fields(schemas: Iterable[Schema]) -> str:
    names = [name for schema in schemas for name in schema.get("properties", ())]
    return f"the field{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _range(schema: Schema) -> str:
    if "minimum" not in schema:
        return ""
    most = f" to {schema['maximum']:g}" if "maximum" in schema else ""
    return f" from {schema['minimum']:g}{most}"


def _size(schema: Schema, of: str, unit: str) -> str:
    if f"max{of}" not in schema:
        return ""
    least = schema.get(f"min{of}", 0)
    return f" of {f'{least} to' if least else 'up to'} {schema[f'max{of}']} {unit}"


Value = TypeVar("Value")

MAX_ERRORS_SHOWN: Final = 20
# The commas in a body that is parsed within a millisecond or so, whatever its size.
MAX_COMMAS: Final = 1000
# Bytes of compact JSON that any body may have: parsed within some 5 ms, whatever they are.
MAX_AT_ONCE: Final = 96 * 1024
# Characters of what a client sent.
MAX_SHOWN: Final = 64
_SPACE: Final = b" \t\r\n"


class JsonBody(Generic[Value]):
    """The JSON body of an endpoint: how it is parsed, and what OpenAPI is made of."""

    def __init__(
        self,
        annotation: Any,
        *,
        max_bytes: int,
        bounds: Mapping[str, Any] | None = None,
        default: Any = inspect.Parameter.empty,
        item: JsonBody[Any] | None = None,
    ) -> None:
        """Declare a body of the type `annotation`.

        `bounds` are keywords of pydantic's `Field`; with a `default` the body may be left out. A
        list that may be large has an `item`, and a maximum length.
        """
        self.annotation = annotation
        self.max_bytes = max_bytes
        self.bounds = dict(bounds or {})
        self.default = default
        self.item = item
        bounded: Any = Annotated[annotation, Field(**self.bounds)]
        self._adapter: TypeAdapter[Value] = TypeAdapter(bounded)

    def parse(self, body: bytes, at: Location = ()) -> Value:
        """Return the parsed body; raise Problem with the errors and their locations, below `at`.

        In one turn of the event loop: `parse_in_turns` is for what has an `item`.
        """
        try:
            if _is_large(body):
                return self._adapter.validate_python(self._large_document(body, at))
            # Not by the adapter, whose arguments take half as long as a small body.
            parsed: Value = self._adapter.validator.validate_json(body)
        except ValidationError as exc:
            errors = exc.errors(include_url=False, include_context=False)
            if errors[0]["type"] == "json_invalid":
                raise self._not_json(body, errors[0]["msg"], at) from exc
            raise _problem_of(_fields_in(errors, self._schema, at)) from exc
        # Pydantic silently takes the last of repeated names. It has checked that the body is JSON.
        if body.count(b":") > 1:
            _check_repeated_names(body.decode())
        return parsed

    async def parse_in_turns(self, body: bytes) -> Value:
        """Return the parsed body, as `parse` does; a large list item by item, over several turns.

        Of that, the errors of the first wrong item are reported.
        """
        if self.item is None or not _is_large(body):
            return self.parse(body)
        found: list[Any] = []
        budget = TurnBudget()
        for part in _items(body):
            await budget.yield_if_spent()
            if part is None:
                continue
            if len(found) == self.bounds["max_length"]:
                raise self._problem((), f"it has more than {len(found)} items", ())
            found.append(self.item.parse(part, (len(found),)))
        # Its length is that of the type: neither 0, as it has commas, nor more.
        return cast(Value, found)

    def _large_document(self, body: bytes, at: Location) -> Any:
        """Return what is in a body; raise Problem if it would take long, or if a name is repeated.

        Without a call for each of its objects.
        """
        # At least: spaces may be in strings, and an escape of six may be one byte.
        compact = len(body.translate(None, _SPACE)) - 5 * body.count(b"\\u") - body.count(b"\\")
        maximum = max(MAX_AT_ONCE, self.max_bytes // ESCAPED)
        if compact > maximum:
            detail = f"it takes {compact} bytes as compact JSON, more than {maximum}"
            raise self._problem(
                (), f"{detail}: store large values elsewhere, and send their addresses", at
            )
        try:
            document = from_json(body)
        except ValueError as exc:
            raise self._not_json(body, str(exc), at) from exc
        self._check_names(document, self._schema.root, (), at)
        quotes = body.count(b'"')
        if _QUOTE in body:
            quotes += _ESCAPE.findall(body).count(_QUOTE)
        # Of two members with one name the last was taken, and the quotes of the other are missing.
        if to_json(document).count(b'"') != quotes:
            raise self._problem((), "a name is given twice in one object", at)
        return document

    def _check_names(self, value: Any, schemas: list[Schema], path: Location, at: Location) -> None:
        """Raise Problem for an object with more names than it may have: pydantic reports each."""
        objects = [schema for schema in schemas if schema.get("type") == "object"]
        if not isinstance(value, dict) or not objects:
            return
        maximum = max(
            schema.get("maxProperties", len(schema.get("properties", ()))) for schema in objects
        )
        if len(value) > maximum:
            raise self._problem(path, f"it has more than {maximum} names", at)
        for name, member in value.items():
            self._check_names(member, self._schema.children(objects, name), (*path, name), at)

    def _not_json(self, body: bytes, reason: str, at: Location) -> Problem:
        if is_too_deep(body, MAX_DOCUMENT_DEPTH):
            # Pydantic has another limit.
            return self._problem((), f"it {TOO_DEEP}", at)
        what = f"{pointer(at)} of the body" if at else "the body"
        return Problem("bad-json", f"{what} is not JSON: {reason}")

    def _problem(self, path: Location, sentence: str, at: Location) -> Problem:
        return _problem_of([(self._schema.field_at(path, at), sentence)])

    @cached_property
    def _schema(self) -> BodySchema:
        return BodySchema(self._adapter.json_schema())


def _is_large(body: bytes) -> bool:
    """Return True iff `body` may take more than a millisecond or so."""
    # Each value but the first of an array or object comes after a comma.
    return len(body) > MAX_COMMAS and body.count(b",") > MAX_COMMAS


_ESCAPE: Final = re.compile(rb"\\(?:u0022|.)", re.DOTALL)
_QUOTE: Final = rb"\u0022"
# A string, even one that does not end, and what items and others begin or end with.
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[][{},]', re.DOTALL)
# As many of these as take a tenth of a millisecond.
_TOKENS_TOGETHER: Final = 500
_DEPTHS: Final = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}


def _items(body: bytes) -> Iterator[bytes | None]:
    """Yield the items of a list as they are, JSON or not, and None from time to time.

    Raises Problem if it is no list.
    """
    start = body.find(b"[") + 1
    if body[:start].strip(_SPACE) != b"[":
        raise Problem("bad-json", "the body is not JSON, or not a list")
    depth = 1
    for number, token in enumerate(_TOKEN.finditer(body, start)):
        depth += _DEPTHS.get(token[0], 0)
        if depth == 0 or (depth == 1 and token[0] == b","):
            yield body[start : token.start()]
            start = token.end()
        if depth == 0:
            break
        if number % _TOKENS_TOGETHER == 0:
            yield None
    if depth or body[start - 1 :].strip(_SPACE) != b"]":
        raise Problem("bad-json", "the body is not JSON: the list does not end, or goes on")


def bad_field(path: Location, detail: str, allowed: str) -> Problem:
    """Return the problem of one field of a body, for a reason beyond its schema."""
    names = [part for part in path if isinstance(part, str)]
    field = BodyField(path, ".".join(names) or "body", allowed)
    return _problem_of([(field, detail)])


def _object_of(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of a document; raise Problem for a name that is given twice."""
    found = dict(members)
    if len(found) != len(members):
        counts = Counter(name for name, _ in members)
        shown = next(name for name, count in counts.items() if count > 1)[:64]
        raise bad_parameter(shown, f"{shown!r} is given twice in one object of the body", "once")
    return found


# Made once: `json.loads` makes a decoder for each call, which takes as long as a small body.
_check_repeated_names = json.JSONDecoder(object_pairs_hook=_object_of).decode


def _fields_in(
    errors: list[ErrorDetails], schema: BodySchema, at: Location
) -> list[tuple[BodyField, str]]:
    """Return the fields of a value at a location in the document, and what is wrong with each."""
    found: dict[Location, tuple[BodyField, str]] = {}
    for error in errors[: 2 * MAX_ERRORS_SHOWN]:
        is_unknown = error["type"] == "extra_forbidden"
        field = schema.field_at(error["loc"], at, is_unknown=is_unknown)
        # Of a union there is an error for each alternative.
        sentence = _sentence(error)
        if field.path in found:
            sentence = f"it is {_shown(error['input'])}, none of what is allowed"
        found[field.path] = (field, sentence)
    return _deepest(found)[:MAX_ERRORS_SHOWN]


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
        f"{pointer(field.path) or 'the body'}: {sentence}; allowed: {field.allowed}",
        param=field.param,
        allowed=field.allowed,
        errors=[
            {"pointer": pointer(field.path), "detail": detail, "allowed": field.allowed}
            for field, detail in errors
        ],
    )
