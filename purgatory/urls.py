"""URLs of servers, as they may be shown."""

from __future__ import annotations

import re

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SHOWN = 200


def without_password(url: str) -> str:
    """Return what may be shown of `url`, even of one that is none: no user, password or query.

    Such as `redis://***@host:6379/0`. What cannot be told from a password is left out, too.
    """
    match = _SCHEME.match(url)
    scheme = "" if match is None else match[0]
    hidden, at, address = url[len(scheme) :].rpartition("@")
    if "?" in hidden or "#" in hidden:
        # There may be passwords in a query, and parts of them behind an @.
        address = ""
    address = re.split("[?#]", address, maxsplit=1)[0]
    return f"{scheme}{'***@' if at else ''}{address}"[:_SHOWN]
