"""A request as the server received it, before anything is validated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from purgatory.fastapi.http.authorization import UNRESTRICTED, Permit
from purgatory.fastapi.http.problems import bad_parameter

# RFC 3986: all that need not be encoded within a path.
_OF_PATHS: Final = "/:@!$&'()*+,;="


@dataclass(slots=True)
class RawRequest:
    """The request that endpoints read, independent of the server interface."""

    path: str
    """The decoded path, for `instance` in problem details."""
    raw_path: bytes
    query_string: bytes
    headers: Iterable[tuple[bytes, bytes]]
    path_value: str = ""
    """The decoded value of the parameter at the end of the path: a key, an id or a name."""
    body: bytes = b""
    client: str = ""
    """The address of the client; empty if not needed or unknown."""
    permit: Permit = UNRESTRICTED
    """What the request may do: set before anything else is read."""
    _by_name: dict[bytes, list[bytes]] | None = None
    """The headers by name, made on first use."""

    @property
    def address(self) -> str:
        """The path, percent-encoded: for headers, and for clients to send again."""
        return encoded_path(self.path)

    def key(self) -> str:
        """Return `path_value` as a key; raise Problem for bytes that are not UTF-8."""
        # Servers decode a path leniently: bytes that are not UTF-8 arrive as U+FFFD.
        if "\ufffd" in self.path_value:
            try:
                unquote_to_bytes(self.raw_path).decode()
            except UnicodeDecodeError:
                raise bad_parameter(
                    "key", "the key in the path is not UTF-8", "UTF-8, percent-encoded"
                ) from None
        return self.path_value

    def header(self, name: bytes) -> str | None:
        """Return the only header of a lower-case name, or None; raise Problem for two."""
        lines = self.headers_named(name)
        return only_line(lines, name.decode().title()) if lines else None

    def headers_named(self, name: bytes) -> list[str]:
        """Return every header of a lower-case name."""
        if self._by_name is None:
            self._by_name = {}
            for key, value in self.headers:
                self._by_name.setdefault(key, []).append(value)
        # Not every server strips white space behind a value (RFC 9110, 5.5).
        return [value.strip(b" \t").decode("latin-1") for value in self._by_name.get(name, ())]

    def has_any(self, names: frozenset[bytes]) -> bool:
        """Return True iff there is a header of one of these lower-case names."""
        # A loop: a generator takes three times as long, and this runs for each request.
        for name, _ in self.headers:  # noqa: SIM110
            if name in names:
                return True
        return False


def encoded_path(path: str) -> str:
    """Return a decoded path percent-encoded, so that it has no control characters."""
    return quote(path, safe=_OF_PATHS, errors="replace")


def only_line(lines: Sequence[str], name: str) -> str:
    """Return the only line of header `name`; raise Problem for several."""
    if len(lines) > 1:
        raise bad_parameter(name, f"header {name} is given twice", "once")
    return lines[0]
