"""A request as the server received it, before anything is believed of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote_to_bytes

from purgatory.fastapi.http.permit import UNRESTRICTED, Permit
from purgatory.fastapi.http.problems import Problem, bad_parameter
from purgatory.fastapi.http.validation_errors import ParameterErrors

# Parameters in a query, all endpoints together, are fewer than ten.
MAX_QUERY_FIELDS = 20
MAX_QUERY_BYTES = 4096
# Signals in an answer, or entries in a list.
MAX_LIMIT = 1000
# Of a number in a query.
MAX_DIGITS = 15


@dataclass(slots=True)
class RawRequest:
    """What the endpoints read, from whichever server interface it came."""

    path: str
    """The decoded path, for `instance` in problem details."""
    raw_path: bytes
    query_string: bytes
    headers: Iterable[tuple[bytes, bytes]]
    tail: str = ""
    """What follows the endpoint's own address: a key or an id."""
    body: bytes = b""
    client: str = ""
    """The address of who asks; empty where it is not needed or not known."""
    permit: Permit = UNRESTRICTED
    """What the request may do: set before anything else is read."""
    _by_name: dict[bytes, list[bytes]] | None = None
    """The headers, once one of them was asked for: several are, as a rule."""

    def key(self) -> str:
        """Return the tail as a key; raise Problem for bytes that are not UTF-8."""
        # Servers decode a path leniently, so what was not UTF-8 arrives as U+FFFD.
        if "\ufffd" in self.tail:
            try:
                unquote_to_bytes(self.raw_path).decode()
            except UnicodeDecodeError:
                raise bad_parameter(
                    "key", "the key in the path is not UTF-8", "UTF-8, percent-encoded"
                ) from None
        return self.tail

    def header(self, name: bytes) -> str | None:
        """Return the one header of that lower-case name, or None; raise Problem for two."""
        values = self.headers_named(name)
        if len(values) > 1:
            title = name.decode().title()
            raise bad_parameter(title, f"header {title} is given twice", "once")
        return values[0] if values else None

    def headers_named(self, name: bytes) -> list[str]:
        """Return every header of that lower-case name."""
        if self._by_name is None:
            self._by_name = {}
            for key, value in self.headers:
                self._by_name.setdefault(key, []).append(value)
        return [value.decode("latin-1") for value in self._by_name.get(name, ())]

    def has_any(self, names: frozenset[bytes]) -> bool:
        """Return True iff there is a header of one of those lower-case names."""
        # Written out: a generator takes three times as long, and this is asked for each request.
        for name, _ in self.headers:  # noqa: SIM110
            if name in names:
                return True
        return False

    def query(self, allowed: frozenset[str]) -> dict[str, str]:
        """Return the query's parameters; raise Problem for any unknown, twice or not UTF-8."""
        if not self.query_string:
            # As of most requests.
            return {}
        wrong = ParameterErrors()
        parameters = read_query(self.query_string, allowed, wrong)
        wrong.refuse()
        return parameters


def read_query(
    query_string: bytes, allowed: frozenset[str], wrong: ParameterErrors
) -> dict[str, str]:
    """Return a query's parameters; keep in `wrong` what is unknown, twice or not UTF-8."""
    parameters: dict[str, str] = {}
    if not query_string or _read_plainly(query_string, allowed, parameters):
        return parameters
    parameters.clear()
    for name, value in wrong.read(_query_fields, query_string) or ():
        if name not in allowed:
            wrong.add(
                bad_parameter(
                    name[:64],
                    f"there is no parameter {name[:64]!r} here",
                    ", ".join(sorted(allowed)) or "no parameters",
                )
            )
        elif name in parameters:
            wrong.add(bad_parameter(name, f"parameter {name} is given twice", "once"))
        else:
            parameters[name] = value
    return parameters


def _read_plainly(query_string: bytes, allowed: frozenset[str], parameters: dict[str, str]) -> bool:
    """Read a query by splitting alone; False where there is more to it, or wrong with it.

    Most queries are so plain, and `parse_qsl` is five times slower.
    """
    if len(query_string) > MAX_QUERY_BYTES or not query_string.isascii():
        return False
    if b"%" in query_string or b"+" in query_string:
        return False
    for field in query_string.decode().split("&"):
        name, equals, value = field.partition("=")
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


def whole_number(
    query: Mapping[str, str], name: str, default: int, maximum: int = MAX_LIMIT
) -> int:
    """Return a parameter from 1 to `maximum`; raise Problem for anything else."""
    text = query.get(name)
    if text is None:
        return default
    if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS:
        number = int(text)
        if 1 <= number <= maximum:
            return number
    allowed = f"a whole number from 1 to {maximum}"
    raise bad_parameter(name, f"{name} is {text[:64]!r}", allowed)


def body_too_large(limit: int) -> Problem:
    """Return the refusal of a body beyond `limit` bytes."""
    return Problem(
        "body-too-large",
        f"the body is larger than {limit} bytes, which is the limit here",
        # What is still on its way is not worth reading.
        headers={"Connection": "close"},
        limit=limit,
    )
