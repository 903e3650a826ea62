"""Text from outside in logs, errors and terminals: URLs without credentials, escaped characters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

# At the end of a scheme: the URL names a node of a cluster, or Sentinels.
CLUSTER: Final = "+cluster"
SENTINEL: Final = "+sentinel"
REDIS_SCHEMES: Final = (
    "redis",
    "rediss",
    "unix",
    *(f"{scheme}{suffix}" for suffix in (CLUSTER, SENTINEL) for scheme in ("redis", "rediss")),
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# Hosts, with optional ports, and a path: an address without user and password.
_HOST = r"(\[[0-9A-Fa-f:.]+\]|[^:=,]+)(:[0-9]+)?"
_PLAIN = re.compile(rf"({_HOST}(,{_HOST})*(/[^:=]*)?)?")
_HIDDEN = "***"
_SHOWN = 200


def redacted(url: str) -> str:
    """Return `url` without user, password and query, such as `redis://***@host:6379/0`.

    Also for invalid URLs: anything that may be part of a password is left out.
    """
    match = _SCHEME.match(url)
    scheme = "" if match is None else match[0]
    if not scheme and "=" in url:
        # PostgreSQL's other form: "host=... password=...".
        return _HIDDEN
    hidden, at, address = url[len(scheme) :].rpartition("@")
    if "?" in hidden or "#" in hidden:
        # A query may contain a password with an @ in it.
        address = ""
    address = re.split("[?#]", address, maxsplit=1)[0]
    if at:
        address = f"{_HIDDEN}@{address}"
    elif not _PLAIN.fullmatch(address):
        # Such as a URL without a host.
        address = _HIDDEN
    return f"{scheme}{address}"[:_SHOWN]


def either(schemes: Sequence[str]) -> str:
    """Return what a URL may begin with, such as "redis:, rediss: or unix:", for errors."""
    *first, last = (f"{scheme}:" for scheme in schemes)
    return f"{', '.join(first)} or {last}"


def invalid_redis_url(url: str, complaint: str = "is not a Redis URL") -> ValueError:
    """Return the error for an invalid Redis URL, which says what is wrong and what to give.

    It replaces the parser's error, which quotes part of a password that contains a slash.
    """
    return ValueError(
        f"{redacted(url)!r} {complaint}: give redis://HOST:PORT/NUMBER, rediss://, "
        "unix:///PATH, redis+cluster://NODE:PORT or "
        "redis+sentinel://SENTINEL:PORT,SENTINEL:PORT/SERVICE, with special characters in the "
        "password percent-encoded"
    )


def escaped(text: str) -> str:
    r"""Return `text` with control characters and the like escaped, such as `\n` and `\x1b`.

    Otherwise a line feed in it could forge a line of a log, and an escape sequence could control a
    terminal.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )
