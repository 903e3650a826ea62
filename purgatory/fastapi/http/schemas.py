"""Schemas: what those of all endpoints share, and the values that one allows, in words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictStr, create_model

from purgatory.operations.watch_key import MAX_KEY_LENGTH

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


def with_fields(model: type[Model], **fields: Any) -> type[Model]:
    """Return `model` with some of its fields replaced, each by a type and a `Field`."""
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
