"""URLs of servers, as they may be shown."""

from __future__ import annotations

import re

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# A host, maybe with its port, and a path: what there is without a user and a password.
_PLAIN = re.compile(r"((\[[0-9A-Fa-f:.]+\]|[^:=]+)(:[0-9]+)?(/[^:=]*)?)?")
_HIDDEN = "***"
_SHOWN = 200


def without_password(url: str) -> str:
    """Return what may be shown of `url`, even of one that is none: no user, password or query.

    Such as `redis://***@host:6379/0`. What cannot be told from a password is left out, too.
    """
    match = _SCHEME.match(url)
    scheme = "" if match is None else match[0]
    if not scheme and "=" in url:
        # The other form that PostgreSQL knows: "host=... password=...".
        return _HIDDEN
    hidden, at, address = url[len(scheme) :].rpartition("@")
    if "?" in hidden or "#" in hidden:
        # There may be passwords in a query, and parts of them behind an @.
        address = ""
    address = re.split("[?#]", address, maxsplit=1)[0]
    if at:
        address = f"{_HIDDEN}@{address}"
    elif not _PLAIN.fullmatch(address):
        # Such as where the host was forgotten.
        address = _HIDDEN
    return f"{scheme}{address}"[:_SHOWN]


def no_redis_url(url: str) -> ValueError:
    """Return what to raise for what is no URL of a Redis, in place of what a parser said of it.

    Where there is a slash in a password, that quotes a part of it.
    """
    return ValueError(
        f"{without_password(url)!r} is no URL of a Redis: give redis://HOST:PORT/NUMBER, "
        "rediss:// or unix:///PATH, with what is no letter or digit of a password percent-encoded"
    )
