"""Durations of waits, and the Prefer header (RFC 7240)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from purgatory.fastapi.http.problems import bad_parameter

# For OpenAPI too: a regular expression that JavaScript also reads.
WAIT_PATTERN: Final = r"^[0-9]{1,10}(\.[0-9]{1,9})?(ms|s|m)?$"
_WAIT: Final = re.compile(WAIT_PATTERN)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "": 1.0}
# Characters of a header.
MAX_CACHED: Final = 512
ALLOWED_WAIT: Final = "seconds such as 25 or 2.5, or with a unit: 500ms, 25s, 1m"
_PREFERENCE: Final = re.compile(
    r'\s*([!#$%&\'*+\-.^_`|~0-9A-Za-z]+)\s*(?:=\s*("[^"]*"|[^\s;,"]*))?'
)


def is_wait(text: str) -> bool:
    """Return True iff `wait_seconds` accepts `text`."""
    return _WAIT.fullmatch(text) is not None


# Cached: clients send few different waits, each again and again.
@lru_cache(maxsize=1024)
def wait_seconds(text: str, param: str) -> float:
    """Return a wait in seconds; raise Problem that names `param` if `text` is not one."""
    match = _WAIT.fullmatch(text)
    if match is None:
        raise bad_parameter(param, f"{param} is {text[:64]!r}", ALLOWED_WAIT)
    unit = match[2] or ""
    return float(text.removesuffix(unit)) * _SECONDS[unit]


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
        for item in header.split(","):
            match = _PREFERENCE.match(item)
            if match is not None:
                found.setdefault(match[1].lower(), (match[2] or "").strip('"'))
    wait = wait_seconds(found["wait"], "Prefer: wait") if "wait" in found else None
    return Preferences(wait, found.get("return", "").lower() == "minimal")


def parse_prefer(text: str) -> Preferences:
    """Return the preferences in one header line, or in several joined by commas."""
    # Cached unless it is long: clients send few different ones, each again and again.
    return (_parse_cached if len(text) <= MAX_CACHED else parse_preferences)((text,))


_parse_cached = lru_cache(maxsize=1024)(parse_preferences)
