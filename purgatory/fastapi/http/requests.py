"""Requests as a server received them, before anything is validated, and the access they need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote_to_bytes

from starlette.types import Receive, Scope

from purgatory.fastapi.http.responses import bad_parameter

T = TypeVar("T")


class Action(StrEnum):
    """What a request does."""

    WAIT = "wait"
    """Watch a key, get its cursor, end a wait by its id."""
    FIRE = "fire"
    """Fire a key."""
    DEFER = "defer"
    """Add a job; get one by its id, reschedule, run or cancel it. Its keys need WAIT besides."""
    OPERATE = "operate"
    """Drop a key, retry, pause and resume jobs, act from the dashboard; and read-only: list keys,
    waits, jobs, statistics."""
    METRICS = "metrics"
    """Read the metrics, which OPERATE allows too."""


@dataclass(frozen=True, slots=True)
class Access:
    """One action of a request, on a key or a job if it is about one."""

    action: Action
    key: str | None = None
    job: str | None = None
    """The id of the job, if it is about one."""
    dedupe_key: str | None = None
    """The dedupe key of the job to be added, if it has one."""
    is_read_only: bool = False
    """True iff it is an OPERATE that changes nothing, as the dashboard's view is."""


READ: Final = Access(Action.OPERATE, is_read_only=True)
"""What operators read: statistics, lists, the dashboard."""


class Permit:
    """What one request may do. Subclasses restrict it; this class allows everything."""

    __slots__ = ("identity",)

    identity: str | None
    """The client, never a secret; None if unknown: then its address identifies it."""

    def __init__(self, identity: str | None = None) -> None:
        """Name the client, who alone knows its ids, Idempotency-Keys and dedupe keys."""
        self.identity = identity

    def dedupe_owner(self, dedupe_key: str) -> str | None:
        """Return whose dedupe key it is; None if it is shared with `Purgatory.defer`.

        Clients without an identity are one owner, named by the empty string: what a handler that is
        closed to HTTP adds in Python must not be found or replaced by them.
        """
        return self.identity or ""

    def check(self, access: Access) -> None:
        """Raise Problem unless the request may do that."""

    def allows(self, access: Access) -> bool:
        """Return True iff the request may do that."""
        return True

    def check_keys(self, action: Action, keys: Iterable[str]) -> None:
        """Raise Problem unless the request may do that to each of `keys`."""


UNRESTRICTED = Permit()
"""The permit of everyone if there is no access control."""

Authenticate = Callable[["RawRequest"], Permit]
"""Returns the permit of a request; raises Problem 401 for an unknown client."""


def ALLOW_ANYONE(raw: RawRequest) -> Permit:  # noqa: N802 - used as a constant
    """Pass it as `authorize=`: every client that reaches the endpoints may do everything."""
    return UNRESTRICTED


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
    values: dict[str, Any] = field(default_factory=dict)
    """The parameters in the query and the headers, as the endpoint declares them: set once they
    are checked."""
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

    def find(self, look: Callable[[RawRequest], T]) -> T:
        """Return what `look` finds in the headers, and in nothing else of the request.

        Servers that know the headers of an earlier request look once.
        """
        return look(self)


def encoded_path(path: str) -> str:
    """Return a decoded path percent-encoded, so that it has no control characters."""
    return quote(path, safe=_OF_PATHS, errors="replace")


def only_line(lines: Sequence[str], name: str) -> str:
    """Return the only line of header `name`; raise Problem for several."""
    if len(lines) > 1:
        raise bad_parameter(name, f"header {name} is given twice", "once")
    return lines[0]


IDENTITY = "purgatory.identity"
"""The key of an ASGI scope with the identity of the client, if a dependency has found it."""


class AsgiRequest(RawRequest):
    """A request that reads its ASGI scope on demand."""

    __slots__ = ("receive", "scope")

    receive: Receive
    """That of the request, for an endpoint that waits in its task."""

    def __init__(self, scope: Scope, path_value: str) -> None:
        """Hold the request of `scope`, whose path ends with `path_value`."""
        self.query_string = scope["query_string"]
        self.headers = scope["headers"]
        self.path_value = path_value
        self.body = b""
        self.permit = UNRESTRICTED
        self.values = {}
        self._by_name = None
        self.scope = scope

    @property
    def path(self) -> str:  # type: ignore[override] # read only
        """The decoded path, for `instance` in problem details."""
        path: str = self.scope["path"]
        return path

    @property
    def raw_path(self) -> bytes:  # type: ignore[override] # read only
        """The path as it was sent, if the server provides it."""
        raw_path: bytes | None = self.scope.get("raw_path")
        return raw_path or self.path.encode("utf-8", "surrogatepass")

    @property
    def client(self) -> str:  # type: ignore[override] # read only
        """The address of the client; empty if unknown."""
        return (self.scope.get("client") or ("",))[0]
