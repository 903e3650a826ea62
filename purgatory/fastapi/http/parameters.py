"""Parameters of endpoints: one annotation makes the strict parser and the OpenAPI description.

Reading texts, pydantic takes " 5", "5.0" and "1_0" for whole numbers: the types here do not. Its
errors become ours, which name the value and what is allowed in words. Also what headers say that
are more than a number or a flag: entity tags (RFC 9110, 8.8.3 and 13.1), Prefer (RFC 7240),
Idempotency-Key (the IETF draft of that name), and durations.
"""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import islice
from typing import Annotated, Any, Final, NamedTuple, ParamSpec, TypeVar, get_args
from urllib.parse import parse_qsl

from fastapi import Path, params
from pydantic import (
    BeforeValidator,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)

from purgatory.fastapi.http.json_bodies import KEY_PATTERN, KeyText, allowed_words
from purgatory.fastapi.http.requests import RawRequest, only_line
from purgatory.fastapi.http.responses import Problem, bad_parameter, release_frames
from purgatory.operations.watch_key import MAX_KEY_LENGTH

# etagc: no spaces and no quotes; commas are allowed, so that a list cannot be split at them.
_TAG: Final = re.compile(rb'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')
# A tag without its quotes: of a list of these, nobody knows where one ends.
_UNQUOTED: Final = re.compile(rb"(?:W/)?([\x21\x23-\x2b\x2d-\x7e\x80-\xff]+)")
# A field in OpenAPI, without the empty elements that are accepted all the same.
ENTITY_TAGS_PATTERN: Final = r'^(\*|(W/)?"[!#-~]*"( *, *(W/)?"[!#-~]*")*)$'
# Of one field: a client has few representations, and each of these may be looked up.
MAX_TAGS: Final = 100
_SEPARATOR: Final = re.compile(rb"[ \t]*(?:,[ \t]*)+|[ \t]*$")


def opaque_tag(etag: bytes) -> bytes | None:
    """Return the quoted part of a tag, for weak comparison; None if it is not a tag."""
    match = _TAG.fullmatch(etag.strip(b" \t"))
    return None if match is None else match[1]


@dataclass(frozen=True, slots=True)
class EntityTags:
    """The tags of an If-None-Match or If-Match field, or `*` for any."""

    opaque_tags: frozenset[bytes]
    is_any: bool = False
    strong_tags: frozenset[bytes] = frozenset()
    """Those of `opaque_tags` that are named without `W/`."""

    @classmethod
    def parse(cls, fields: Sequence[bytes]) -> EntityTags | None:
        """Return the tags of several field lines; None if they do not follow the RFC.

        None for more than MAX_TAGS, too.
        """
        text = b",".join(fields).strip(b" \t")
        if text == b"*":
            return cls(frozenset(), is_any=True)
        tags: set[bytes] = set()
        strong: set[bytes] = set()
        # A list may begin with empty elements (5.6.1).
        position = len(text) - len(text.lstrip(b", \t"))
        while position < len(text):
            tag = _TAG.match(text, position)
            separator = tag and _SEPARATOR.match(text, tag.end())
            if tag is None or separator is None or len(tags) == MAX_TAGS:
                return None
            tags.add(tag[1])
            if not tag[0].startswith(b"W/"):
                strong.add(tag[1])
            position = separator.end()
        if not tags:
            return None
        opaque = frozenset(tags)
        # The same object as a rule: a parked request keeps it.
        return cls(opaque, strong_tags=opaque if strong == tags else frozenset(strong))

    @classmethod
    def parse_leniently(cls, fields: Sequence[bytes]) -> EntityTags | None:
        """Return the tags, as `parse` does, or a single one that lacks its quotes."""
        tags = cls.parse(fields)
        if tags is None and len(fields) == 1:
            bare = _UNQUOTED.fullmatch(fields[0].strip(b" \t"))
            if bare is not None:
                return cls(frozenset({b'"' + bare[1] + b'"'}))
        return tags

    def match(self, etag: bytes) -> bool:
        """Return True iff the client has the representation with this ETag.

        Compared weakly: `W/"1"` and `"1"` are equal. An invalid ETag matches nothing.
        """
        opaque = opaque_tag(etag)
        return opaque is not None and (self.is_any or opaque in self.opaque_tags)

    def match_strongly(self, etag: bytes) -> bool:
        """Return True iff If-Match permits a change of the representation with this ETag.

        Compared strongly (8.8.3.2): the same octets, and neither side weak.
        """
        return opaque_tag(etag) == etag and (self.is_any or etag in self.strong_tags)


def parse_entity_tags(text: str, name: str) -> EntityTags:
    """Return the tags in the header `name`; raise Problem if it is not a list of tags."""
    tags = EntityTags.parse([text.encode("latin-1")])
    if tags is None:
        raise bad_parameter(
            name,
            f"{name} is {text[:64]!r}",
            f"up to {MAX_TAGS} ETags of earlier responses, in quotes and with commas between them, "
            "or *",
        )
    return tags


# An Idempotency-Key.
_NAME: Final = re.compile(r'"([\x20-\x21\x23-\x5b\x5d-\x7e]{1,255})"|([\x21\x23-\x7e]{1,255})')


def parse_idempotency_key(text: str) -> str:
    """Return an Idempotency-Key without its quotes; raise Problem."""
    match = _NAME.fullmatch(text)
    if match is None:
        raise bad_parameter(
            "Idempotency-Key",
            f"Idempotency-Key is {text[:64]!r}",
            "1 to 255 printable ASCII characters, in quotes or without",
        )
    return match[1] or match[2]


# For OpenAPI too: a regular expression that JavaScript also reads.
WAIT_PATTERN: Final = r"^[0-9]{1,10}(\.[0-9]{1,9})?(ms|s|m)?$"
_WAIT: Final = re.compile(WAIT_PATTERN)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "": 1.0}
# From here on the answer may come a little early, so that polls do not return in step.
JITTER_FROM_SECONDS: Final = 5.0
ALLOWED_WAIT: Final = "seconds such as 25 or 2.5, or with a unit: 500ms, 25s, 1m"


def is_wait(text: str) -> bool:
    """Return True iff `wait_seconds` accepts `text`."""
    return _WAIT.fullmatch(text) is not None


# Cached: clients send few different waits, each again and again.
@lru_cache(maxsize=1024)
def wait_seconds(text: str, param: str) -> float:
    """Return a wait in seconds; raise Problem that names `param` if `text` is not one."""
    match = _WAIT.fullmatch(text)
    if match is None:
        raise bad_parameter(param, f"{param} is {text[:64]!r}", ALLOWED_WAIT)
    unit = match[2] or ""
    return float(text.removesuffix(unit)) * _SECONDS[unit]


def jittered(wait: float) -> float:
    """Return the seconds until the wait ends: 90-100 % of a long wait, all of a short one."""
    if wait < JITTER_FROM_SECONDS:
        return wait
    # Short of all of it, to leave the loop's own lag within the promise.
    return wait * (0.9 + 0.085 * random.random())  # noqa: S311 - spreads reconnects


# Characters of a header.
MAX_CACHED: Final = 512
# Preferences of a header: others are ignored.
MAX_ITEMS: Final = 1000
# A comma in a quoted string separates nothing.
_ITEM: Final = re.compile(r'(?:[^",]|"(?:[^"\\]|\\.)*"?)+')
_PREFERENCE: Final = re.compile(
    r'\s*([!#$%&\'*+\-.^_`|~0-9A-Za-z]+)\s*(?:=\s*("[^"]*"|[^\s;,"]*))?'
)


class Preferences(NamedTuple):
    """The preferences that matter here; others are ignored, as RFC 7240 asks."""

    wait: float | None = None
    is_minimal: bool = False


NO_PREFERENCES: Final = Preferences()


def parse_preferences(headers: Sequence[str]) -> Preferences:
    """Return what the Prefer headers say: the first of each name counts."""
    if not headers:
        return NO_PREFERENCES
    found: dict[str, str] = {}
    for header in headers:
        for item in islice(_ITEM.finditer(header), MAX_ITEMS):
            match = _PREFERENCE.match(item[0])
            if match is not None:
                found.setdefault(match[1].lower(), (match[2] or "").strip('"'))
    wait = wait_seconds(found["wait"], "Prefer: wait") if "wait" in found else None
    return Preferences(wait, found.get("return", "").lower() == "minimal")


def parse_prefer(text: str) -> Preferences:
    """Return the preferences in one header line, or in several joined by commas."""
    # Cached unless it is long: clients send few different ones, each again and again.
    return (_parse_cached if len(text) <= MAX_CACHED else parse_preferences)((text,))


_parse_cached = lru_cache(maxsize=1024)(parse_preferences)


Args = ParamSpec("Args")
Result = TypeVar("Result")

# Parameters in a query, all endpoints together, are fewer than ten.
MAX_QUERY_FIELDS: Final = 20
MAX_QUERY_BYTES: Final = 4096
# Signals in a response, or entries in a list.
MAX_LIMIT: Final = 1000
# Of a number in a query.
MAX_DIGITS: Final = 15


class ParameterErrors:
    """Collects the errors of single parameters, so that one response reports all of them."""

    # Not set by a constructor: most requests have no error.
    _problems: list[Problem] | None = None

    def collect(
        self, parse: Callable[Args, Result], *args: Args.args, **kwargs: Args.kwargs
    ) -> Result | None:
        """Return what `parse` returns; None if it raises a Problem, which is added."""
        try:
            return parse(*args, **kwargs)
        except Problem as problem:
            self.add(problem)
            return None

    def add(self, problem: Problem) -> None:
        """Add one error, whose frames refer to this object as a rule."""
        release_frames(problem)
        if self._problems is None:
            self._problems = []
        self._problems.append(problem)

    def raise_if_any(self) -> None:
        """Raise one Problem if errors were added; its `errors` lists them if there are several."""
        if self._problems is None:
            return
        first = self._problems[0]
        errors = [error for problem in self._problems for error in _errors(problem)]
        if len(errors) > 1:
            raise Problem(
                first.kind.slug, first.detail, **{**first.members, "errors": errors}
            ) from first
        raise first


def _errors(problem: Problem) -> list[dict[str, object]]:
    """Return the errors of a problem, which may be about several parameters itself."""
    members = problem.members
    if "errors" in members:
        errors: list[dict[str, object]] = members["errors"]
        return errors
    return [
        {"param": members["param"], "detail": problem.detail, "allowed": members["allowed"]},
    ]


SEVERAL_LINES: Final = object()
"""Annotates a header whose lines make one value, as if joined by commas (RFC 9110, 5.3)."""
_SPELLINGS: Final = {"last-event-id": "Last-Event-ID"}


class _Parameter:
    """One parameter, by its annotation."""

    def __init__(self, name: str, annotation: Any) -> None:
        self._name = name
        self._adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        self._validate = self._adapter.validator.validate_python
        self._is_list = SEVERAL_LINES in get_args(annotation)

    def parse(self, text: str) -> Any:
        """Return the value of a text; raise Problem."""
        try:
            return self._validate(text)
        except ValidationError as exc:
            words = allowed_words(self._adapter.json_schema())
            raise bad_parameter(self._name, f"{self._name} is {text[:64]!r}", words) from exc

    def parse_lines(self, lines: Sequence[str]) -> Any:
        """Return the value of a header; raise Problem."""
        text = ", ".join(lines) if self._is_list else only_line(lines, self._name)
        return self.parse(text)


class HeadParser:
    """Parses the queries and headers of requests by the annotations of a function, as FastAPI's.

    Unlike FastAPI, it refuses unknown and repeated parameters, and reports all errors at once.
    """

    def __init__(self, signature: inspect.Signature) -> None:
        """Take the parameters of `signature` with a `Query` or a `Header`."""
        self._query = _annotations(signature, params.Query)
        self._headers = _annotations(signature, params.Header)
        self._query_names = frozenset(self._query)
        self._header_names = {name.replace("_", "-").encode(): name for name in self._headers}
        self.header_names = frozenset(self._header_names)
        """The lower-case names of the headers."""
        self.path_parameter = next(iter(_annotations(signature, params.Path)), "")
        """The name of the parameter in the path; empty if there is none."""

    # Made for the first request: pydantic takes a while for each.
    @cached_property
    def _parameters(self) -> dict[str, _Parameter]:
        found = {name: _Parameter(name, annotation) for name, annotation in self._query.items()}
        for header, name in self._header_names.items():
            text = header.decode()
            spelling = _SPELLINGS.get(text, text.title())
            found[name] = _Parameter(spelling, self._headers[name])
        return found

    def parse(self, raw: RawRequest) -> dict[str, Any]:
        """Return the values that a request gives; raise one Problem for all that are wrong.

        By the names in the signature, such as `if_match`.
        """
        values: dict[str, Any] = {}
        # Most requests of most endpoints have no parameter at all.
        if raw.query_string or raw.has_any(self.header_names):
            errors = ParameterErrors()
            self.parse_query(raw.query_string, values, errors)
            self.parse_headers(raw, values, errors)
            errors.raise_if_any()
        return values

    def parse_query(
        self, query_string: bytes, values: dict[str, Any], errors: ParameterErrors
    ) -> None:
        """Add the values in a query to `values`, and what is wrong with it to `errors`.

        What is wrong has the value None.
        """
        parameters = self._parameters
        for name, text in read_query(query_string, self._query_names, errors).items():
            values[name] = errors.collect(parameters[name].parse, text)

    def parse_headers(
        self, raw: RawRequest, values: dict[str, Any], errors: ParameterErrors
    ) -> None:
        """Add the values in the headers to `values`, as `parse_query` does."""
        for header, name in self._header_names.items():
            lines = raw.headers_named(header)
            if lines:
                values[name] = errors.collect(self._parameters[name].parse_lines, lines)


def _annotations(signature: inspect.Signature, kind: type[params.Param]) -> dict[str, Any]:
    """Return the annotations of the parameters that `signature` has in a place."""
    return {
        each.name: each.annotation
        for each in signature.parameters.values()
        if any(isinstance(item, kind) for item in get_args(each.annotation)[1:])
    }


def _only(pattern: str) -> BeforeValidator:
    """Refuse texts without this pattern, of which pydantic takes more than is right."""

    def check(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError
        return text

    return BeforeValidator(check)


# Not " 5", "5.0" or "1_0".
_DIGITS: Final = _only(rf"[0-9]{{1,{MAX_DIGITS}}}")
# Types of parameters: an endpoint adds its `Query` or `Header`.
WholeNumber = Annotated[int, Field(ge=1, le=MAX_LIMIT), _DIGITS]


def whole_number(maximum: int) -> Any:
    """Return the type of a number from 1 to `maximum`."""
    return Annotated[int, Field(ge=1, le=maximum), _DIGITS]


# Not "1", "yes" or "TRUE".
Flag = Annotated[bool, _only("true|false")]
Prefix = Annotated[
    str,
    Field(max_length=MAX_KEY_LENGTH, pattern=KEY_PATTERN.replace("+$", "*$"), examples=["order:"]),
]
# `RawRequest.key` and `check_key` validate it, with their own messages.
KeyInPath = Annotated[
    KeyText,
    Path(
        description="The key; a slash in it may be written as it is or percent-encoded.",
        examples=["order:42:paid"],
    ),
]


def optional(text: Mapping[str, Any]) -> WithJsonSchema:
    """Return how OpenAPI describes a text that may be left out."""
    return WithJsonSchema({"anyOf": [{"type": "string", **text}, {"type": "null"}]})


# Headers: an endpoint adds a `Header` that says what it does with them.
_Tags = Annotated[Any, optional({"pattern": ENTITY_TAGS_PATTERN}), SEVERAL_LINES]
IfMatchTags = Annotated[_Tags, PlainValidator(partial(parse_entity_tags, name="If-Match"))]
IfNoneMatchTags = Annotated[_Tags, PlainValidator(partial(parse_entity_tags, name="If-None-Match"))]
PreferText = Annotated[
    Any, PlainValidator(parse_prefer), optional({"examples": ["wait=25"]}), SEVERAL_LINES
]
# Of an Idempotency-Key.
_SCHEMA: Final = {
    "minLength": 1,
    "maxLength": 255,
    # Without quotes: clients of a pattern with both would quote the quotes.
    "pattern": "^[!#-~]+$",
    "examples": ["b7c0e5e2-3c0f-4f5e-9d0a-6f7b0c1d2e3f"],
}
IdempotencyKeyText = Annotated[str | None, PlainValidator(parse_idempotency_key), optional(_SCHEMA)]


def read_query(
    query_string: bytes, allowed: frozenset[str], errors: ParameterErrors
) -> dict[str, str]:
    """Return the parameters of a query; add the unknown, repeated or undecodable to `errors`."""
    parameters: dict[str, str] = {}
    if not query_string:
        return parameters
    for name, value in errors.collect(_query_fields, query_string) or ():
        if name not in allowed:
            errors.add(
                bad_parameter(
                    name[:64],
                    f"there is no parameter {name[:64]!r} here",
                    ", ".join(sorted(allowed)) or "no parameters",
                )
            )
        elif name in parameters:
            errors.add(bad_parameter(name, f"parameter {name} is given twice", "once"))
        else:
            parameters[name] = value
    return parameters


def _query_fields(query_string: bytes) -> list[tuple[str, str]]:
    if len(query_string) > MAX_QUERY_BYTES:
        raise bad_parameter(
            "query", f"the query has {len(query_string)} bytes", f"up to {MAX_QUERY_BYTES} bytes"
        )
    try:
        return parse_qsl(
            query_string.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=MAX_QUERY_FIELDS,
        )
    except ValueError as exc:
        raise bad_parameter(
            "query",
            f"the query cannot be read ({exc})",
            "name=value pairs joined by &, UTF-8, percent-encoded",
        ) from None
