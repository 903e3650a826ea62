"""Requests from bytes, and responses to bytes, by the schemas of kio.

A response is a dict with the names that its newest version has: what an older one lacks is left
out, and what is missing is empty, zero or the default of the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from functools import cache
from io import BytesIO
from struct import Struct
from typing import Any, Final, get_args, get_type_hints

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.constants import uuid_zero

# API key, version and correlation id: the same in every version of the header.
_HEAD: Final = Struct(">hhi")
_SIZE: Final = Struct(">i")
_MS: Final = timedelta(milliseconds=1)

Response = Mapping[str, Any]
Build = Callable[[Any], Any]

_EMPTY: Final[dict[str, object]] = {
    "string": "",
    "bytes": b"",
    "bool": False,
    "records": None,
    "timedelta_i32": timedelta(0),
    "uuid": uuid_zero,
    "error_code": KioErrorCode.none,
}


class BadRequest(Exception):
    """What a client sent is no request of this protocol: its connection is closed."""


def read_head(frame: bytes) -> tuple[int, int, int]:
    """Return API key, version and correlation id of a request; raise BadRequest."""
    if len(frame) < _HEAD.size:
        raise BadRequest(f"a request of {len(frame)} bytes")
    key, version, correlation_id = _HEAD.unpack_from(frame)
    return key, version, correlation_id


def read_request(frame: bytes, key: int, version: int) -> tuple[str, Any]:
    """Return client id and request; raise BadRequest."""
    read_header, read = _readers(key, version)
    try:
        header, size = read_header(frame, 0)
        request, _ = read(frame, size)
    except Exception as exc:
        # Besides its own errors, kio raises those of slices, integers and dates.
        raise BadRequest(f"API {key}, version {version}: {type(exc).__name__}") from exc
    return header.client_id or "", request


def write_response(key: int, version: int, correlation_id: int, response: Response) -> bytes:
    """Return the frame of a response."""
    write_header, header_type, write, build = _writers(key, version)
    buffer = BytesIO()
    buffer.write(b"\0\0\0\0")
    write_header(buffer, header_type(correlation_id=correlation_id))
    write(buffer, build(response))
    size = buffer.tell() - _SIZE.size
    buffer.seek(0)
    buffer.write(_SIZE.pack(size))
    return buffer.getvalue()


def milliseconds(duration: timedelta) -> int:
    """Return a duration of a request in whole milliseconds."""
    return duration // _MS


@cache
def _readers(key: int, version: int) -> tuple[Any, Any]:
    schema = load_request_schema(key, version)
    return entity_reader(schema.__header_schema__), entity_reader(schema)


@cache
def _writers(key: int, version: int) -> tuple[Any, Any, Any, Build]:
    schema = load_response_schema(key, version)
    header: Any = schema.__header_schema__
    return entity_writer(header), header, entity_writer(schema), _builder(schema)


@cache
def _builder(schema: Any) -> Build:
    """Return a function that makes an object of `schema` from a dict."""
    hints = get_type_hints(schema)
    plan: list[tuple[str, Build]] = []
    defaults: dict[str, Any] = {}
    for field in fields(schema):
        kind = field.metadata.get("kafka_type")
        plan.append((field.name, _converter(hints[field.name], kind)))
        if field.default is MISSING:
            defaults[field.name] = _empty(hints[field.name], kind)

    def build(values: Response) -> Any:
        found = {name: convert(values[name]) for name, convert in plan if name in values}
        return schema(**{**defaults, **found})

    return build


def _converter(hint: Any, kind: str | None) -> Build:
    if kind == "timedelta_i32":
        return lambda value: value * _MS
    if kind == "error_code":
        return KioErrorCode
    nested = _nested(hint)
    if nested is not None:
        build = _builder(nested)
        return lambda values: None if values is None else tuple(map(build, values))
    if kind is not None and _is_tuple(hint):
        return tuple
    return lambda value: value


def _empty(hint: Any, kind: str | None) -> object:
    if type(None) in get_args(hint):
        return None
    if kind is None or _is_tuple(hint):
        return ()
    return _EMPTY.get(kind, 0)


def _nested(hint: Any) -> Any:
    """Return the class of the items of a tuple of objects, which may be None."""
    items = [each for each in (hint, *get_args(hint), *_items(hint)) if is_dataclass(each)]
    return items[0] if items else None


def _items(hint: Any) -> list[Any]:
    return [item for each in get_args(hint) for item in get_args(each)]


def _is_tuple(hint: Any) -> bool:
    return any(getattr(each, "__origin__", None) is tuple for each in (hint, *get_args(hint)))
