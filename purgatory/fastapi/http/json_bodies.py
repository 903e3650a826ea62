"""JSON bodies: what all schemas share, the values that one allows, in words, and how one is parsed.

The large ones in slices.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Final, Generic, NoReturn, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictStr,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic_core import ErrorDetails, from_json

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

# For OpenAPI; `check_key` validates keys, with its own messages.
KEY_PATTERN = r"^[^\x00-\x1f\x7f-\x9f]+$"
Key = Annotated[
    str,
    Field(
        min_length=1,
        max_length=256,
        description="1-256 characters, none of them control.",
        json_schema_extra={"pattern": KEY_PATTERN},
    ),
]
Cursor = Annotated[
    StrictStr,
    Field(
        description="Opaque, from an earlier response; 0: the earliest kept.",
        examples=["8c1f0a9be2d4-1", "0"],
    ),
]
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

    @property
    def pointer(self) -> str:
        """The location as a JSON pointer."""
        return pointer(self.path)


class BodySchema:
    """The fields of the bodies of one schema."""

    def __init__(self, schema: Schema) -> None:
        """Take a schema as pydantic makes it."""
        self._schema = schema
        self._definitions: Schema = schema.get("$defs", {})

    def field_at(
        self, location: Location, *, is_unknown: bool = False, has_alternatives: bool = True
    ) -> BodyField:
        """Return the field at a location, which may be unknown to the schema.

        In one of pydantic's, `has_alternatives`, the alternative of a union that was tried follows
        the union: it is not part of the body, and left out.
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
            is_alternative = has_alternatives and _is_union(schemas)
        names += [str(part)[:64] for part in unknown]
        return BodyField(
            (*path, *unknown),
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


Result = TypeVar("Result")
Steps = Generator[None, None, Result]
"""Work that may be interrupted at each `yield`, which comes after half a millisecond or less."""

# Characters that are decoded by one call, unless they are one string or number.
PIECE: Final = 2048
# Calls before the next `yield`.
_TOGETHER: Final = 2
# Items that are decoded one by one after several of them could not be decoded together.
_ONE_BY_ONE: Final = 16
_SPACE: Final = re.compile(r"[ \t\n\r]*")
# Of a schema that does not allow just anything.
_TYPED: Final = frozenset({"type", "enum", "const"})


class OutOfBoundsError(Exception):
    """The document is not of its schema; found before all of it is decoded."""

    def __init__(self, path: Location, sentence: str, *, is_unknown: bool = False) -> None:
        """Say what is wrong at `path`, which `is_unknown` if no field has the name at its end."""
        super().__init__(sentence)
        self.path = path
        self.sentence = sentence
        self.is_unknown = is_unknown


def object_of(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of a document; raise Problem for a name that is given twice."""
    found = dict(members)
    if len(found) != len(members):
        seen: set[str] = set()
        for name, _ in members:
            if name in seen:
                _refuse_repeat(name)
            seen.add(name)
    return found


def _refuse_repeat(name: str) -> NoReturn:
    shown = name[:64]
    raise bad_parameter(shown, f"{shown!r} is given twice in one object of the body", "once")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


# The decoder's own scanner, which returns where a value ends, too.
_decoder: Final[Any] = json.JSONDecoder(
    object_pairs_hook=object_of, parse_constant=_refuse_constant
)
_scan: Final = _decoder.scan_once
# How several items end, by how the first of them begins.
_LAST_COMMAS: Final = {"{": "},", "[": "],"}


async def in_turns(steps: Steps[Result]) -> Result:
    """Return the result of `steps`, of which each turn of the event loop takes some."""
    budget = TurnBudget()
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: Result = done.value
            return result
        await budget.yield_if_spent()


def at_once(steps: Steps[Result]) -> Result:
    """Return the result of `steps` in this turn: for documents whose schema bounds them."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: Result = done.value
            return result


class SlicedDecoder:
    """Decodes one document: small arrays and objects by one call, large ones item by item.

    What has more items, names or bytes than its schema allows, or other names, is found before it
    is built: a client decides how many there are.
    """

    def __init__(self, text: str, schema: BodySchema, max_value_bytes: int) -> None:
        """Decode `text`, which is to be of `schema`, with any values of up to `max_value_bytes`."""
        self._text = text
        self._schema = schema
        self._max_value_bytes = max_value_bytes
        # Where a value is whose schema allows any, and the bytes that it may still have.
        self._value_path: Location | None = None
        self._room = 0
        self._calls = 0
        # Items before the next attempt to decode several together.
        self._one_by_one = 0

    def decode(self) -> Steps[Any]:
        """Return the document. Raises OutOfBoundsError, or Problem if it is not JSON."""
        value, at = yield from self._item(self._skip(0), self._schema.root, ())
        if self._skip(at) < len(self._text):
            self._refuse("there is more behind its end", at)
        return value

    def _large(self, at: int, schemas: list[Schema], path: Location) -> Steps[tuple[Any, int]]:
        """Return the array or object at `at`, and its end."""
        if len(path) >= MAX_DOCUMENT_DEPTH:
            raise OutOfBoundsError(self._value_path or (), f"it {TOO_DEEP}")
        is_value = bool(schemas) and _is_open(schemas)
        if is_value:
            self._value_path, self._room = path, self._max_value_bytes
        found = yield from self._members(at, schemas, path)
        if is_value:
            self._value_path = None
        return found

    def _small(self, at: int, depth: int) -> tuple[Any, int] | None:
        """Return the value at `at`, and its end; None for an array or object that is not small."""
        text = self._text
        if text[at : at + 1] in ("[", "{"):
            found = self._piece(text[at : at + PIECE], at, depth)
            if found is None:
                return None
            found = found[0], at + found[1]
        else:
            found = self._scalar(at)
        self._take(at, found[1])
        return found

    def _take(self, start: int, end: int) -> None:
        """Count the text of a part of a value; raise OutOfBoundsError if there is no room for it.

        At least: spaces may be between its parts, and an escape of six may be one byte.
        """
        if self._value_path is None:
            return
        piece = self._text[start:end]
        spaces = sum(map(piece.count, " \t\n\r"))
        self._room -= len(piece) // 6 if "\\" in piece else len(piece) - spaces
        if self._room < 0:
            raise OutOfBoundsError(
                self._value_path,
                f"it takes more than {self._max_value_bytes} bytes as JSON: store it elsewhere and "
                "send its address",
            )

    def _piece(self, piece: str, at: int, depth: int) -> tuple[Any, int] | None:
        """Return the array or object that `piece` begins with, and its length.

        None if it does not end there, is too deep, or is not JSON: what it is made of will show.
        """
        try:
            value, length = _scan(piece, 0)
        except (StopIteration, ValueError, RecursionError):
            return None
        piece = piece[:length]
        if is_too_deep(piece.encode(), MAX_DOCUMENT_DEPTH - depth):
            return None
        self._check_escapes(piece, at)
        return value, length

    def _scalar(self, at: int) -> tuple[Any, int]:
        value: Any
        end: int
        try:
            value, end = _scan(self._text, at)
        except StopIteration:
            self._refuse("there is no value", at)
        except ValueError as exc:
            self._refuse(exc.msg if isinstance(exc, json.JSONDecodeError) else str(exc), at)
        if isinstance(value, str):
            self._check_escapes(self._text[at:end], at)
        return value, end

    def _check_escapes(self, piece: str, at: int) -> None:
        # Half of a surrogate pair is no character: pydantic refuses it, json does not.
        if "\\u" in piece:
            try:
                from_json(piece)
            except ValueError as exc:
                self._refuse(str(exc), at)

    def _members(
        self, at: int, schemas: list[Schema], path: Location
    ) -> Steps[tuple[list[Any] | dict[str, Any], int]]:
        """Return the array or object at `at`, and its end, member by member."""
        text = self._text
        made: list[Any] | dict[str, Any] = [] if text[at] == "[" else {}
        of_items: list[Schema] = []
        if isinstance(made, list):
            closing, names = "]", None
            maximum = _bound(schemas, "array", "maxItems", path)
            of_items = self._schema.children(schemas, 0)
        else:
            closing, names = "}", _names(schemas)
            maximum = _bound(schemas, "object", "maxProperties", path)
        is_open = maximum is None and names is None
        at = self._skip(at + 1)
        while not text.startswith(closing, at):
            if made:
                at = self._after(",", at)
            if len(made) == maximum:
                what = "items" if closing == "]" else "names"
                raise OutOfBoundsError(path, f"it has more than {maximum} {what}")
            several = self._several(at, len(path), closing) if is_open else None
            if several is not None:
                _add_all(made, several[0])
                at = several[1]
            elif isinstance(made, list):
                item, at = yield from self._item(at, of_items, (*path, len(made)))
                made.append(item)
            else:
                name, at = self._name(at, made, names, path)
                of_name = self._schema.children(schemas, name)
                made[name], at = yield from self._item(at, of_name, (*path, name))
            if self._is_interrupted():
                yield
            at = self._skip(at)
        return made, at + 1

    def _name(
        self, at: int, made: dict[str, Any], names: set[str] | None, path: Location
    ) -> tuple[str, int]:
        """Return the name at `at`, which is one of `names` and none of `made`, and its value's."""
        if not self._text.startswith('"', at):
            self._refuse("there is no name", at)
        name, at = self._scalar(at)
        if name in made:
            _refuse_repeat(name)
        if names is not None and name not in names:
            _refuse_name(name, path)
        return name, self._after(":", self._skip(at))

    def _item(self, at: int, schemas: list[Schema], path: Location) -> Steps[tuple[Any, int]]:
        """Return the value at `at`, and its end."""
        found = self._small(at, len(path))
        if found is None:
            found = yield from self._large(at, schemas, path)
        elif schemas:
            _check_names(found[0], schemas, path)
        return found

    def _several(self, at: int, depth: int, closing: str) -> tuple[Any, int] | None:
        """Return the items or members from `at` to the last comma of a piece, and its position.

        None if that comma is not between two of them: then it is not tried for a while.
        """
        if self._one_by_one:
            self._one_by_one -= 1
            return None
        is_array = closing == "]"
        comma = _LAST_COMMAS.get(self._text[at : at + 1], ",") if is_array else ',"'
        end = self._text.rfind(comma, at, at + PIECE)
        # At `at`, an item is missing before it.
        if end > at:
            end += comma.index(",")
            piece = f"{'[' if is_array else '{'}{self._text[at:end]}{closing}"
            found = self._piece(piece, at, depth)
            if found is not None and found[1] == len(piece):
                self._take(at, end)
                return found[0], end
        self._one_by_one = _ONE_BY_ONE
        return None

    def _is_interrupted(self) -> bool:
        self._calls += 1
        return self._calls % _TOGETHER == 0

    def _after(self, mark: str, at: int) -> int:
        if not self._text.startswith(mark, at):
            self._refuse(f"there is no {mark!r}", at)
        return self._skip(at + 1)

    def _skip(self, at: int) -> int:
        match = _SPACE.match(self._text, at)
        assert match is not None
        return match.end()

    def _refuse(self, reason: str, at: int) -> NoReturn:
        reason = f"{reason[:1].lower()}{reason[1:]}"
        raise Problem("bad-json", f"the body is not JSON: {reason}, at character {at + 1}")


def _add_all(made: list[Any] | dict[str, Any], more: Any) -> None:
    if isinstance(made, list):
        made += more
        return
    for name in made.keys() & more.keys():
        _refuse_repeat(name)
    made |= more


def _bound(schemas: Sequence[Schema], kind: str, name: str, path: Location) -> int | None:
    """Return how many items or names there may be, None without a bound."""
    if _is_open(schemas):
        return None
    found = [schema.get(name) for schema in schemas if schema.get("type") == kind]
    if not found:
        raise OutOfBoundsError(path, "it is a list" if kind == "array" else "it is an object")
    bounds = [bound for bound in found if bound is not None]
    return max(bounds) if len(bounds) == len(found) else None


def _names(schemas: Sequence[Schema]) -> set[str] | None:
    """Return the names that an object may have; None if it may have any."""
    found: set[str] = set()
    for schema in schemas:
        if schema.get("type") == "object":
            if schema.get("additionalProperties") is not False:
                return None
            found |= schema["properties"].keys()
    return found or None


def _is_open(schemas: Sequence[Schema]) -> bool:
    """Return True iff any JSON value is of one of `schemas`, or none is known."""
    return not schemas or any(_TYPED.isdisjoint(schema) for schema in schemas)


def _check_names(value: Any, schemas: list[Schema], path: Location) -> None:
    names = _names(schemas) if schemas and isinstance(value, dict) else None
    if names is not None and not value.keys() <= names:
        _refuse_name(next(name for name in value if name not in names), path)


def _refuse_name(name: str, path: Location) -> NoReturn:
    raise OutOfBoundsError((*path, name), "there is no such field", is_unknown=True)


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
            # Not by the adapter, whose arguments take half as long as a small body.
            parsed: Value = self._adapter.validator.validate_json(body)
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
