"""Access to the endpoints: bearer tokens with scopes, own identities, and trusted hosts."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from os import PathLike
from pathlib import Path
from typing import Any, Final

from fastapi import Depends, Request

from purgatory.fastapi.http.requests import (
    IDENTITY,
    UNRESTRICTED,
    Access,
    Action,
    AsgiRequest,
    Permit,
    RawRequest,
)
from purgatory.fastapi.http.responses import Problem

MAX_TOKENS: Final = 10_000
MIN_TOKEN_LENGTH: Final = 16
_SCOPE: Final = re.compile(
    r"(wait|fire):(\S*?)(\*?)|(defer):(\S+)\*|observe|operate|metrics|defer|\*"
)
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")
_TOKEN: Final = r"[A-Za-z0-9._~+/=-]{1,512}"  # noqa: S105 - what a token looks like
_CREDENTIALS: Final = re.compile(rf"bearer +({_TOKEN})", re.IGNORECASE)
# A # within a scope belongs to the key.
_COMMENT: Final = re.compile(r"(^|\s)#.*")
_HOW_TO_MAKE_ONE: Final = "`purgatory token SCOPE` makes one"
_PAIRS: Final = 'give pairs of strings, such as [("a-long-random-token", "wait:orders:* defer")]'


@dataclass(frozen=True, slots=True)
class Scope:
    """What a token allows: `wait:orders:*`, `fire:orders:42`, `operate`, `metrics`, `defer` or `*`.

    `observe` is the part of `operate` that changes nothing.
    `defer:PREFIX*` is `defer` with the dedupe keys that begin with the prefix, which all tokens of
    such a scope share. Other dedupe keys belong to the token.
    """

    action: str
    prefix: str = ""
    is_prefix: bool = True

    @classmethod
    def parse(cls, text: str) -> Scope:
        """Return the scope that `text` names; raise ValueError, which does not show `text`.

        What stands in the place of a scope may be another token.
        """
        match = _SCOPE.fullmatch(text)
        if match is None:
            raise ValueError(
                "write wait:PREFIX* or fire:PREFIX*, or either with a key and no star; observe, "
                "operate, metrics, defer, defer:PREFIX*, or * for everything"
            )
        if match[4] is not None:
            return cls(match[4], match[5])
        if match[1] is None:
            return cls(text)
        return cls(match[1], match[2], bool(match[3]))

    def allows(self, access: Access) -> bool:
        """Return True iff `access` is within this scope."""
        if self.action == "*":
            return True
        if access.action is Action.METRICS:
            return self.action in (Action.METRICS, "observe", Action.OPERATE)
        if self.action == "observe":
            return access.action is Action.OPERATE and access.is_read_only
        if self.action != access.action:
            return False
        key = access.dedupe_key if access.action is Action.DEFER else access.key
        if key is None or access.action is Action.OPERATE:
            return True
        return key.startswith(self.prefix) if self.is_prefix else key == self.prefix


class TokenPermit(Permit):
    """What the scopes of a token allow."""

    __slots__ = ("_scopes",)

    def __init__(self, identity: str, scopes: tuple[Scope, ...]) -> None:
        """Allow `scopes`; `identity` is a short part of the token's hash."""
        super().__init__(identity)
        self._scopes = scopes

    def dedupe_owner(self, dedupe_key: str) -> str | None:
        """Return the token, unless a scope shares the dedupe key with others."""
        wanted = Access(Action.DEFER, dedupe_key=dedupe_key)
        is_shared = any(
            scope.action == "*" or (scope.prefix and scope.allows(wanted)) for scope in self._scopes
        )
        return None if is_shared else self.identity

    def allows(self, access: Access) -> bool:
        """Return True iff one of the scopes allows it."""
        return any(scope.allows(access) for scope in self._scopes)

    def check_keys(self, action: Action, keys: Iterable[str]) -> None:
        """Raise Problem unless the request may do that to each of `keys`, which may be many."""
        scopes = [scope for scope in self._scopes if scope.action in (action, "*")]
        prefixes = tuple(scope.prefix for scope in scopes if scope.is_prefix)
        names = {scope.prefix for scope in scopes if not scope.is_prefix}
        for key in keys:
            if not key.startswith(prefixes) and key not in names:
                self.check(Access(action, key))

    def check(self, access: Access) -> None:
        """Raise Problem 403 unless one of the scopes allows it."""
        if self.allows(access):
            return
        raise Problem(
            "forbidden",
            f"the token does not allow this: use one with the scope {_scope_for(access)}",
            headers={"WWW-Authenticate": 'Bearer error="insufficient_scope"'},
        )


class BearerTokens:
    """Bearer tokens, of which only hashes are kept, and their scopes. Pass it as `authorize=`.

    Every token is compared in constant time, and all of them whichever matches, so that the time
    of a 401 reveals nothing.
    """

    def __init__(self, entries: Iterable[tuple[str, str]]) -> None:
        """Take pairs of a token, or `sha256:` and its hash in hex, and its scopes.

        Scopes are separated by white space. Raises ValueError for a token that is too short or that
        no header can hold, for an invalid scope, for the same token twice, for no tokens and for
        more than 10,000. Tokens are named by their number, and never shown.
        """
        self._permits: list[tuple[bytes, TokenPermit]] = []
        if isinstance(entries, (str, bytes, Mapping)):
            raise TypeError(f"entries is a {type(entries).__name__}: {_PAIRS}")
        for number, entry in enumerate(entries, 1):
            token, scopes = _pair(entry, number)
            digest = _digest(token, number)
            parsed = tuple(
                _scope(scope, place, number) for place, scope in enumerate(scopes.split(), 1)
            )
            if not parsed:
                raise ValueError(
                    f"token {number} has no scope, and so allows nothing: write its scopes after "
                    f"it, such as wait:orders:* defer; {_HOW_TO_MAKE_ONE}"
                )
            self._permits.append((digest, TokenPermit(f"token-{digest.hex()[:16]}", parsed)))
        if not 0 < len(self._permits) <= MAX_TOKENS:
            hint = "" if self._permits else f": {_HOW_TO_MAKE_ONE}"
            raise ValueError(f"there are {len(self._permits)} tokens, not 1 to {MAX_TOKENS}{hint}")
        if len({digest for digest, _ in self._permits}) < len(self._permits):
            raise ValueError("a token is given twice: give all of its scopes in one place")

    @classmethod
    def from_text(cls, text: str) -> BearerTokens:
        """Read lines (or parts between semicolons) of a token or its hash, and its scopes.

        A # that begins a line or a word begins a comment. Raises ValueError as the constructor
        does; an empty line has no number.
        """
        entries = []
        for line in re.split(r"[\n;]", text):
            token, *scopes = _COMMENT.sub("", line).split(maxsplit=1) or [""]
            if token:
                entries.append((token, "".join(scopes)))
        return cls(entries)

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> BearerTokens:
        """Read a file as `from_text` does, without a byte order mark."""
        return cls.from_text(Path(path).read_text(encoding="utf-8-sig"))

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self._permits)

    def __call__(self, raw: RawRequest) -> Permit:
        """Return what the token of a request allows; raise Problem 401 without a known token."""
        header = raw.header(b"authorization")
        match = None if header is None else _CREDENTIALS.fullmatch(header.strip())
        digest = b"" if match is None else hashlib.sha256(match[1].encode()).digest()
        found = None
        for known, permit in self._permits:
            if hmac.compare_digest(known, digest):
                found = permit
        if found is None:
            raise Problem(
                "unauthorized",
                "this needs a known token: send Authorization: Bearer <token>",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return found


def new_token() -> tuple[str, str]:
    """Return a new token, and its hash for a file of tokens."""
    token = secrets.token_urlsafe(32)
    return token, f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


def _scope_for(access: Access) -> str:
    """Return the scopes that allow `access`, without the key, which a 403 does not reveal."""
    match access:
        case Access(Action.WAIT | Action.FIRE as action, key=key):
            return f"{action}:PREFIX*" + ("" if key is None else ", with a PREFIX of the key")
        case Access(Action.DEFER, dedupe_key=str()):
            return "defer, or defer:PREFIX* with a PREFIX of the dedupe key"
        case Access(Action.OPERATE, is_read_only=True):
            return "observe, or operate"
        case Access(Action.METRICS):
            return "metrics, observe or operate"
    return str(access.action)


def _scope(text: str, place: int, number: int) -> Scope:
    try:
        return Scope.parse(text)
    except ValueError as exc:
        # By its place: it may be another token.
        raise ValueError(
            f"token {number} has an invalid scope, the one at place {place}: {exc}"
        ) from None


def _pair(entry: object, number: int) -> tuple[str, str]:
    """Return the token and its scopes; raise TypeError, which does not show them."""
    match entry:
        case (str(token), str(scopes)):
            return token, scopes
    raise TypeError(f"entry {number} is no pair of a token and its scopes: {_PAIRS}")


def _digest(token: str, number: int) -> bytes:
    if _HASH.fullmatch(token):
        return bytes.fromhex(token.removeprefix("sha256:"))
    if len(token) < MIN_TOKEN_LENGTH:
        raise ValueError(
            f"token {number} has a length of {len(token)}, less than {MIN_TOKEN_LENGTH}, and could "
            f"be guessed; {_HOW_TO_MAKE_ONE}"
        )
    if re.fullmatch(_TOKEN, token) is None:
        # A mistyped hash, too: taken for a token, no client would have it.
        raise ValueError(
            f"token {number} is neither sha256: and 64 digits of 0-9a-f, nor a token: up to 512 of "
            "A-Z a-z 0-9 . _ ~ + / = -"
        )
    return hashlib.sha256(token.encode()).digest()


def identifying(authorize: Callable[..., Any]) -> Callable[..., Any]:
    """Return a dependency that calls `authorize` and keeps the string that it returns.

    It raises TypeError for what is neither a string nor None.
    """

    # Async, though it awaits nothing: FastAPI calls others in its threads, all of which may be
    # taken by the waiters of the very key that this request is about to fire.
    async def keep(request: Request, identity: Any = Depends(authorize)) -> None:  # noqa: B008 - FastAPI's own way
        if isinstance(identity, str):
            request.scope[IDENTITY] = identity or None
        elif identity is not None:
            raise TypeError(
                f"authorize returned a {type(identity).__qualname__}, which cannot be the identity "
                "of a client: return a string, such as str(user.id), or None; to refuse, "
                "raise HTTPException(403)"
            )

    return keep


def identified(raw: RawRequest) -> Permit:
    """Return the permit of a client that `authorize` has admitted, with its identity if known."""
    identity = raw.scope.get(IDENTITY) if isinstance(raw, AsgiRequest) else None
    return UNRESTRICTED if identity is None else Permit(identity)


MAX_REMEMBERED = 100
# What urlsplit would take for more than a name and a port, and what no name has.
_NAME = re.compile(r"[^\x00-\x20\x7f\"#%&'()*+,/:;<=>?@\[\\\]^`{|}]+")
# RFC 9110, 7.2, without percent-encoding.
_HOST = re.compile(rf"(?:({_NAME.pattern})|\[([0-9A-Fa-f:.]+)\])(?::[0-9]*)?")


class TrustedHosts:
    """Allows everything if the Host of the request is trusted. Pass it as `authorize=`.

    A web page can let its own name point to an address of its reader's network, and then send any
    request there as to its own origin, and read the responses. The name in Host gives it away.
    Addresses, and `localhost` with all names below it, are always trusted: no page has these.
    """

    def __init__(self, hosts: Iterable[str] = ()) -> None:
        """Trust also `hosts`: names without a port; `*` is all names.

        Raises ValueError for what is not a name, and TypeError for a string of names.
        """
        # A string is an iterable of strings, and never what was meant.
        if isinstance(hosts, str):
            raise TypeError(f"hosts is the string {hosts!r}: give a list, [{hosts!r}]")
        self._hosts = frozenset(map(_name, hosts))
        # Values of Host that were trusted before: few, and looked up for each request. Others are
        # not kept, as strangers send them, as long as they like.
        self._trusted: set[str] = set()

    def __call__(self, raw: RawRequest) -> Permit:
        """Return the permit that allows everything; raise Problem 421 for another host."""
        return raw.find(self._permit)

    def _permit(self, raw: RawRequest) -> Permit:
        lines = raw.headers_named(b"host")
        header = lines[0] if len(lines) == 1 else ""
        if header in self._trusted:
            return UNRESTRICTED
        if "*" in self._hosts or self._is_trusted(header):
            if len(self._trusted) < MAX_REMEMBERED:
                self._trusted.add(header)
            return UNRESTRICTED
        raise Problem(
            "untrusted-host",
            f"Host is {header[:64]!r}: only addresses, localhost and the names in "
            "TrustedHosts([...]), of the service in PURGATORY_ALLOWED_HOSTS, are accepted, which "
            "keeps pages of other web sites out",
            param="Host",
            allowed="an address, localhost, or a name that the operators trust",
        )

    def _is_trusted(self, header: str) -> bool:
        match = _HOST.fullmatch(header)
        if match is None:
            return False
        name, address = match.groups("")
        host = name.lower().removesuffix(".")
        if host == "localhost" or host.endswith(".localhost") or host in self._hosts:
            return True
        try:
            IPv6Address(address) if address else IPv4Address(host)
        except ValueError:
            return False
        return True


def _name(host: str) -> str:
    name = host.lower().removesuffix(".")
    if name != "*" and _NAME.fullmatch(name) is None:
        raise ValueError(
            f"{host!r} is not the name of a host: give it without a port, scheme or wildcard, such "
            "as 'shop.internal', or '*' for all names"
        )
    return name
