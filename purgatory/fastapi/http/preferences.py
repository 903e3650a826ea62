"""The Prefer header (RFC 7240)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

from purgatory.fastapi.http.wait_duration import wait_seconds

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


_NO_PREFERENCES: Final = Preferences()


def parse_preferences(headers: Sequence[str]) -> Preferences:
    """Return what the Prefer headers say: the first of each name counts."""
    if not headers:
        return _NO_PREFERENCES
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
