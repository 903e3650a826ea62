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
_MAX_STRING_BYTES: Final = 2**15 - 1

Response = Mapping[str, Any]
Build = Callable[[Any], Any]
Skip = Callable[[bytes, int], int]

_WIDTHS: Final[dict[str | None, int]] = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "timedelta_i32": 4,
    "timedelta_i64": 8,
}

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
    """A request that no response can be given to, as a rule garbage: its connection is closed."""


def read_head(frame: bytes) -> tuple[int, int, int]:
    """Return API key, version and correlation id of a request; raise BadRequest."""
    if len(frame) < _HEAD.size:
        raise BadRequest(f"a request of {len(frame)} bytes")
    key, version, correlation_id = _HEAD.unpack_from(frame)
    return key, version, correlation_id


def read_request(frame: bytes, key: int, version: int) -> tuple[str, Any]:
    """Return client id and request; raise BadRequest."""
    read_header, skip, read = _readers(key, version)
    try:
        header, size = read_header(frame, 0)
        skip(frame, size)
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
def _readers(key: int, version: int) -> tuple[Any, Skip, Any]:
    schema = load_request_schema(key, version)
    return entity_reader(schema.__header_schema__), _skipper(schema), entity_reader(schema)


@cache
def _skipper(schema: Any) -> Skip:
    """Return a function from where an object of `schema` begins to where it ends.

    It raises unless every length fits into the frame: kio allocates an array as long as a client
    says, and aborts the process if there is not so much memory. It also raises for an array that is
    null and may not be, which kio takes.
    """
    hints, is_flexible = get_type_hints(schema), schema.__flexible__
    steps: list[int | Skip] = []
    for field in fields(schema):
        # What is tagged comes last, and has its own length.
        if "tag" not in field.metadata:
            kind, hint = field.metadata.get("kafka_type"), hints[field.name]
            nested = _nested(hint)
            step = _skipper(nested) if nested is not None else _skip_value(kind, is_flexible)
            is_array = nested is not None or _is_tuple(hint)
            is_nullable = type(None) in get_args(hint)
            steps.append(_skip_array(step, is_flexible, is_nullable) if is_array else step)

    def skip(frame: bytes, at: int) -> int:
        for step in steps:
            at = at + step if isinstance(step, int) else step(frame, at)
        if is_flexible:
            count, at = _varint(frame, at)
            for _ in range(count):
                _, at = _varint(frame, at)
                size, at = _varint(frame, at)
                at = _within(frame, at, size)
        return _within(frame, at, 0)

    return skip


def _skip_value(kind: str | None, is_flexible: bool) -> int | Skip:
    if kind not in ("string", "bytes", "records"):
        return _WIDTHS[kind]
    width = 2 if kind == "string" else 4

    def skip(frame: bytes, at: int) -> int:
        size, at = _length(frame, at, 0 if is_flexible else width)
        # As in Kafka: it could not be returned in a version that is not flexible.
        if kind == "string" and size > _MAX_STRING_BYTES:
            raise ValueError(f"a string of {size} bytes")
        return _within(frame, at, size)

    return skip


def _skip_array(item: int | Skip, is_flexible: bool, is_nullable: bool) -> Skip:
    def skip(frame: bytes, at: int) -> int:
        count, at = _length(frame, at, 0 if is_flexible else 4, -1 if is_nullable else 0)
        if isinstance(item, int):
            return _within(frame, at, count * item)
        # Each item has a byte at least.
        _within(frame, at, count)
        for _ in range(count):
            at = item(frame, at)
        return at

    return skip


def _length(frame: bytes, at: int, width: int, minimum: int = -1) -> tuple[int, int]:
    """Return a length of `width` bytes, or a varint one more than it, and where it ends."""
    if width:
        size = int.from_bytes(frame[at : at + width], signed=True)
        at += width
    else:
        size, at = _varint(frame, at)
        size -= 1
    if size < minimum:
        raise ValueError(f"a length of {size}")
    # What is null has nothing.
    return max(size, 0), at


def _varint(frame: bytes, at: int) -> tuple[int, int]:
    value = 0
    # Five bytes have the 32 bits of it.
    for shift in range(0, 35, 7):
        byte = frame[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a varint of more than five bytes")


def _within(frame: bytes, at: int, size: int) -> int:
    if at + size > len(frame):
        raise ValueError(f"{size} more bytes after {at} of {len(frame)}")
    return at + size


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
