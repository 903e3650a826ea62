"""Parameters of endpoints: one annotation makes the strict parser and the OpenAPI description.

Reading texts, pydantic takes " 5", "5.0" and "1_0" for whole numbers: the types here do not. Its
errors become ours, which name the value and what is allowed in words.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Final, ParamSpec, TypeVar, get_args
from urllib.parse import parse_qsl

from fastapi import Path, params
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)

from purgatory.fastapi.http.problems import Problem, bad_parameter, release_frames
from purgatory.fastapi.http.raw_request import RawRequest, only_line
from purgatory.fastapi.http.schemas import KEY_PATTERN, allowed_words
from purgatory.operations.watch_key import MAX_KEY_LENGTH

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
        """Add the values in a query to `values`, and what is wrong with it to `errors`."""
        parameters = self._parameters
        for name, text in read_query(query_string, self._query_names, errors).items():
            try:
                values[name] = parameters[name].parse(text)
            except Problem as problem:
                errors.add(problem)

    def parse_headers(
        self, raw: RawRequest, values: dict[str, Any], errors: ParameterErrors
    ) -> None:
        """Add the values in the headers to `values`, and what is wrong with them to `errors`."""
        for header, name in self._header_names.items():
            lines = raw.headers_named(header)
            if lines:
                try:
                    values[name] = self._parameters[name].parse_lines(lines)
                except Problem as problem:
                    errors.add(problem)


def _annotations(signature: inspect.Signature, kind: type[params.Param]) -> dict[str, Any]:
    """Return the annotations of the parameters that `signature` has in a place."""
    return {
        each.name: each.annotation
        for each in signature.parameters.values()
        if any(isinstance(item, kind) for item in get_args(each.annotation)[1:])
    }


def _digits(text: Any) -> Any:
    """Refuse what only pydantic takes for a whole number: " 5", "5.0", "1_0"."""
    if isinstance(text, str) and not (
        text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS
    ):
        raise ValueError
    return text


def _flag(text: Any) -> Any:
    """Refuse what only pydantic takes for a boolean: "1", "yes", "TRUE"."""
    if isinstance(text, str) and text not in ("true", "false"):
        raise ValueError
    return text


# Types of parameters: an endpoint adds its `Query` or `Header`.
WholeNumber = Annotated[int, Field(ge=1, le=MAX_LIMIT), BeforeValidator(_digits)]


def whole_number(maximum: int) -> Any:
    """Return the type of a number from 1 to `maximum`."""
    return Annotated[int, Field(ge=1, le=maximum), BeforeValidator(_digits)]


Flag = Annotated[bool, BeforeValidator(_flag)]
KeyText = Annotated[str, Field(min_length=1, max_length=MAX_KEY_LENGTH, pattern=KEY_PATTERN)]
"""A key, or what is written as keys are."""
Prefix = Annotated[
    str,
    Field(max_length=MAX_KEY_LENGTH, pattern=KEY_PATTERN.replace("+$", "*$"), examples=["order:"]),
]
KeyInPath = Annotated[
    str,
    Path(
        description="The key; a slash in it may be written as it is or percent-encoded.",
        examples=["order:42:paid"],
        # For OpenAPI: `RawRequest.key` and `check_key` validate it, with their own messages.
        json_schema_extra={"minLength": 1, "maxLength": MAX_KEY_LENGTH, "pattern": KEY_PATTERN},
    ),
]


def checked(parse: Callable[[str], object]) -> AfterValidator:
    """Return what refuses texts as `parse` does; FastAPI is confused by values of other types."""

    def check(text: str) -> str:
        parse(text)
        return text

    return AfterValidator(check)


def optional(text: Mapping[str, Any]) -> WithJsonSchema:
    """Return how OpenAPI describes a text that may be left out."""
    return WithJsonSchema({"anyOf": [{"type": "string", **text}, {"type": "null"}]})


def read_query(
    query_string: bytes, allowed: frozenset[str], errors: ParameterErrors
) -> dict[str, str]:
    """Return the parameters of a query; add the unknown, repeated or undecodable to `errors`."""
    parameters: dict[str, str] = {}
    if not query_string or _read_plainly(query_string, allowed, parameters):
        return parameters
    parameters.clear()
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


def _read_plainly(query_string: bytes, allowed: frozenset[str], parameters: dict[str, str]) -> bool:
    """Fill `parameters` by splitting alone; return False if that is not enough.

    It is for most queries, and `parse_qsl` is five times slower.
    """
    if len(query_string) > MAX_QUERY_BYTES or not query_string.isascii():
        return False
    if b"%" in query_string or b"+" in query_string:
        return False
    for item in query_string.decode().split("&"):
        name, equals, value = item.partition("=")
        if not equals or name not in allowed or name in parameters:
            return False
        parameters[name] = value
    return True


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
