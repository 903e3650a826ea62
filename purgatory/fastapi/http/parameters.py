"""Parameters of endpoints: one declaration makes the strict parser and the OpenAPI description.

Values are not parsed by pydantic: reading texts, it takes " 5", "5.0" and "1_0" for whole numbers,
and its errors do not name what is allowed in the words that clients of these endpoints know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, Literal, ParamSpec, TypeVar
from urllib.parse import parse_qsl

from fastapi import Path
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from purgatory.fastapi.http.problems import Problem, bad_parameter, release_frames
from purgatory.fastapi.http.raw_request import RawRequest, only_line
from purgatory.fastapi.http.schemas import KEY_PATTERN
from purgatory.operations.watch_key import MAX_KEY_LENGTH

Args = ParamSpec("Args")
Result = TypeVar("Result")
Value = TypeVar("Value")

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


# Compared by identity, and so hashed as fast as any object: it is the key of its value.
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parameter(Generic[Value]):
    """One parameter: how its text is parsed, and how OpenAPI describes it."""

    name: str
    """As clients write it; headers are found in any case."""
    location: Literal["path", "query", "header"]
    description: str
    parse: Callable[[str], Value]
    """Returns the value of a text; raises Problem."""
    default: Value
    """The value of a request without this parameter."""
    documented_default: Any = None
    """The same as clients would write it; None if leaving it out has a meaning of its own."""
    type: Any = str
    """The type in OpenAPI, of a value that is given."""
    schema: Mapping[str, Any] = field(default_factory=dict)
    """Bounds and examples in OpenAPI, as keywords of FastAPI's `Query`, `Path` and `Header`."""
    is_list: bool = False
    """True iff several header lines make one value, as if joined by commas (RFC 9110, 5.3)."""
    is_required: bool = False
    """True iff OpenAPI says that it must be given, as it does of those in the path."""

    def join(self, lines: Sequence[str]) -> str:
        """Return several header lines as one text; raise Problem unless it is a list."""
        return ", ".join(lines) if self.is_list else only_line(lines, self.name)


class ParameterValues(dict["Parameter[Any]", Any]):
    """The values that one request gives to parameters: `values[PARAMETER]`."""

    if TYPE_CHECKING:

        def __getitem__(self, parameter: Parameter[Value]) -> Value:
            """Return the value of `parameter`, or its default."""
            ...

    def __missing__(self, parameter: Parameter[Value]) -> Value:
        """Return the default of a parameter that was not given."""
        return parameter.default

    def by_name(self) -> dict[str, Any]:
        """Return the values by the names of their parameters."""
        return {parameter.name: value for parameter, value in self.items()}


# Shared, and never filled.
NO_VALUES: Final = ParameterValues()


class Parameters:
    """All parameters of one endpoint: anything else in a query is refused, and so are repeats."""

    def __init__(self, *declared: Parameter[Any]) -> None:
        """Declare the parameters, those in the path among them; see `routing.endpoint_spec`."""
        self.declared = declared
        self._query = {item.name: item for item in declared if item.location == "query"}
        self._query_names = frozenset(self._query)
        self._headers = [
            (item.name.lower().encode(), item) for item in declared if item.location == "header"
        ]
        self.header_names = frozenset(name for name, _ in self._headers)
        """The lower-case names of the headers."""

    def parse(self, raw: RawRequest) -> ParameterValues:
        """Return the values in a request; raise one Problem for all that are wrong."""
        # Most requests of most endpoints have no parameter at all.
        if not raw.query_string and not (self.header_names and raw.has_any(self.header_names)):
            return NO_VALUES
        errors = ParameterErrors()
        values = ParameterValues()
        self.parse_query(raw.query_string, values, errors)
        if self._headers:
            self.parse_headers(raw, values, errors)
        errors.raise_if_any()
        return values

    def parse_query(
        self, query_string: bytes, values: ParameterValues, errors: ParameterErrors
    ) -> None:
        """Add the values in a query to `values`, and what is wrong with it to `errors`."""
        for name, text in read_query(query_string, self._query_names, errors).items():
            parameter = self._query[name]
            try:
                values[parameter] = parameter.parse(text)
            except Problem as problem:
                errors.add(problem)

    def parse_headers(
        self, raw: RawRequest, values: ParameterValues, errors: ParameterErrors
    ) -> None:
        """Add the values in the headers to `values`, and what is wrong with them to `errors`."""
        for name, parameter in self._headers:
            lines = raw.headers_named(name)
            if lines:
                try:
                    text = lines[0] if len(lines) == 1 else parameter.join(lines)
                    values[parameter] = parameter.parse(text)
                except Problem as problem:
                    errors.add(problem)


NO_PARAMETERS: Final = Parameters()


def whole_number(
    name: str, *, default: int, description: str, maximum: int = MAX_LIMIT
) -> Parameter[int]:
    """Declare a number in the query, from 1 to `maximum`."""

    def parse(text: str) -> int:
        if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS:
            number = int(text)
            if 1 <= number <= maximum:
                return number
        raise bad_parameter(name, f"{name} is {text[:64]!r}", f"a whole number from 1 to {maximum}")

    return Parameter(
        name=name,
        location="query",
        description=description,
        parse=parse,
        default=default,
        documented_default=default,
        type=int,
        schema={"ge": 1, "le": maximum},
    )


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


# Types of parameters of plain endpoints, which add their `Query` or `Path`.
WholeNumber = Annotated[int, Field(ge=1, le=MAX_LIMIT), BeforeValidator(_digits)]
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
    """Return what refuses texts as `parse` does; FastAPI takes other types for other things."""

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
