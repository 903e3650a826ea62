"""What the endpoints of an application declare: addresses, parameters, and places in bodies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import jsonschema_rs
from fastapi import FastAPI

from purgatory.fastapi.http.parameters import ENTITY_TAGS_PATTERN
from purgatory.fastapi.routing.endpoints import AdmittingEndpoint
from purgatory.fastapi.routing.routes import route_contexts
from tests.acceptance.client import Connection, Reply

UUID = "0b1d6c5e-7d0c-4a53-9b0e-2d1c9f0a1b2c"
# In a path, in place of a parameter: what the endpoint takes.
IN_PATHS = {"key": "k", "id": UUID, "slug": "full", "file": "dashboard.js"}

Schema = Mapping[str, Any]
Put = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter, as OpenAPI has it."""

    name: str
    location: str
    schema: Schema
    """That of a value that is given."""
    is_required: bool

    @classmethod
    def of(cls, described: Schema) -> Parameter:
        """Return the parameter that an operation describes."""
        schema = described["schema"]
        [given] = [one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"]
        is_header = described["in"] == "header"
        name = described["name"].title() if is_header else described["name"]
        name = {"Last-Event-Id": "Last-Event-ID"}.get(name, name)
        return cls(name, described["in"], given, described["required"])

    @property
    def is_list(self) -> bool:
        """Whether several of it are one value."""
        is_of_tags = self.schema.get("pattern") == ENTITY_TAGS_PATTERN
        return self.name in ("If-Match", "Prefer") or is_of_tags or self.type == "array"

    @property
    def type(self) -> str:
        """The type of a value in JSON."""
        return str(self.schema["type"])


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint, as clients see it."""

    method: str
    path: str
    operation: Schema = field(repr=False)
    schema: Schema | None = field(repr=False)
    """The schema of its body in JSON, with all definitions; None if it takes none."""
    max_body: int
    allows_head: bool

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def name(self) -> str:
        """The id of the operation."""
        return str(self.operation["operationId"])

    @property
    def takes_content(self) -> bool:
        """Whether bodies of the wrong kind are refused."""
        return self.method in ("PATCH", "POST")

    def declared(self, *locations: str) -> list[Parameter]:
        """Return the parameters in the query, the headers or the path."""
        found = map(Parameter.of, self.operation.get("parameters", ()))
        return [item for item in found if item.location in locations]

    def address(self, **in_path: str) -> str:
        """Return the path with its parameters filled in."""
        values = {**IN_PATHS, **{name: quote(value, safe="") for name, value in in_path.items()}}
        return re.sub(r"\{(\w+)\}", lambda match: values[match[1]], self.path)

    def target(self, *query: tuple[str, str], **in_path: str) -> str:
        """Return the address with a query, besides what the endpoint cannot do without."""
        needed = [(item.name, "a") for item in self.declared("query") if item.is_required]
        fields = [f"{quote(name)}={quote(value, safe='')}" for name, value in (*needed, *query)]
        address = self.address(**in_path)
        return f"{address}?{'&'.join(fields)}" if fields else address


def endpoints_of(app: FastAPI) -> list[Endpoint]:
    """Return the endpoints of Purgatory in `app`, as they are documented."""
    document = app.openapi()
    found = []
    for route in route_contexts(app):
        declared = getattr(route, "endpoint", None)
        if isinstance(declared, AdmittingEndpoint):
            [method] = route.methods
            operation = document["paths"][route.path_format][method.lower()]
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            schema = content and {**content["schema"], "components": document["components"]}
            bounds = declared.max_body, declared.allows_head
            found.append(Endpoint(method, route.path_format, operation, schema, *bounds))
    return found


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a body: the rest of the body is as the schema has it."""

    path: tuple[int | str, ...]
    param: str
    """The names of the fields that lead there."""
    schemas: list[Schema]
    """The alternatives that are allowed there."""
    put: Put
    """Returns the body with a value at this place."""

    @property
    def pointer(self) -> str:
        """The place as a JSON pointer."""
        return "".join(f"/{part}" for part in self.path)


class Body:
    """The body of an endpoint, by its schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._validator = jsonschema_rs.Draft202012Validator(dict(schema), validate_formats=True)

    def allows(self, body: Any) -> bool:
        """Return whether the schema does."""
        return bool(self._validator.is_valid(body))

    def places(self) -> Iterator[Place]:
        """Yield every place, in each of its alternatives; the whole body first."""
        return self._places(self._schema)

    def just_beyond(self, schema: Schema) -> Iterator[tuple[str, Any]]:
        """Yield each bound of a part of the schema, as errors say it, and a value beyond it."""
        item = self._sample(schema["items"]) if "items" in schema else None
        for name, beyond in (
            ("minimum", lambda bound: bound - 1),
            ("maximum", lambda bound: bound + 1),
            ("minLength", lambda bound: "x" * (bound - 1)),
            ("maxLength", lambda bound: "x" * (bound + 1)),
            ("minItems", lambda bound: [item] * (bound - 1)),
            ("maxItems", lambda bound: [item] * (bound + 1)),
            ("minProperties", lambda bound: _names(bound - 1)),
            ("maxProperties", lambda bound: _names(bound + 1)),
        ):
            if name in schema:
                yield f"{schema[name]:g}", beyond(int(schema[name]))

    def members(self, schema: Schema) -> dict[str, Any]:
        """Return the members of an object of this part of the schema; empty if it has none."""
        is_object = schema.get("type") == "object" or "properties" in schema
        sample: dict[str, Any] = self._sample(schema) if is_object else {}
        return sample

    def _places(self, schema: Schema) -> Iterator[Place]:
        schemas = self._alternatives(schema)
        yield Place((), "", schemas, lambda value: value)
        for one in schemas:
            for part, name, child, around in self._children(one):
                for inner in self._places(child):
                    yield Place(
                        (part, *inner.path),
                        ".".join(filter(None, (name, inner.param))),
                        inner.schemas,
                        _nested(around, inner.put),
                    )

    def _children(self, schema: Schema) -> Iterator[tuple[int | str, str, Schema, Put]]:
        match schema:
            case {"properties": properties}:
                sample = self._sample(schema)
                for name, child in properties.items():
                    yield name, name, child, _member(sample, name)
            case {"items": items}:
                yield 1, "", items, lambda value: [self._sample(items), value]
            case {"additionalProperties": dict() as values}:
                yield "k", "", values, lambda value: {"k": value}

    def _alternatives(self, schema: Schema) -> list[Schema]:
        match schema:
            case {"$ref": reference}:
                name = reference.rpartition("/")[2]
                return self._alternatives(self._schema["components"]["schemas"][name])
            case {"anyOf": parts}:
                return [one for part in parts for one in self._alternatives(part)]
        return [schema]

    def _sample(self, schema: Schema) -> Any:
        one = self._alternatives(schema)[0]
        match one:
            case {"properties": properties}:
                return {name: self._sample(child) for name, child in properties.items()}
            case {"items": items}:
                return [self._sample(items)]
            case {"additionalProperties": dict() as values}:
                return {"k": self._sample(values)}
            case {"enum": values}:
                return values[0]
            case {"type": "integer" | "number"}:
                return 1
            case {"format": "date-time"}:
                return "2026-11-21T15:04:05Z"
        return "0"


def _nested(around: Put, put: Put) -> Put:
    return lambda value: around(put(value))


def _member(members: dict[str, Any], name: str) -> Put:
    return lambda value: {**members, name: value}


def _names(count: int) -> dict[str, str]:
    return {f"k{number}": "0" for number in range(count)}


async def post(connection: Connection, endpoint: Endpoint, body: bytes, *lines: str) -> Reply:
    """Send a body, with further lines of headers."""
    head = f"{endpoint.method} {endpoint.target()} HTTP/1.1"
    size = f"Content-Length: {len(body)}"
    connection.write("\r\n".join([head, "Host: h:80", size, *lines, "", ""]).encode() + body)
    return await connection.reply()
