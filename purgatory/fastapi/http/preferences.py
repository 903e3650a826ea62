"""Waits and preferences, as clients write them (RFC 7240)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from purgatory.fastapi.http.etag import EntityTags
from purgatory.fastapi.http.problems import bad_parameter

_WAIT: Final = re.compile(r"([0-9]{1,10}(?:\.[0-9]{1,9})?)(ms|s|m)?")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, None: 1.0}
ALLOWED_WAIT: Final = "seconds such as 25 or 2.5, or with a unit: 500ms, 25s, 1m"
_PREFERENCE: Final = re.compile(
    r'\s*([!#$%&\'*+\-.^_`|~0-9A-Za-z]+)\s*(?:=\s*("[^"]*"|[^\s;,"]*))?'
)


def is_wait(text: str) -> bool:
    """Return True iff `wait_seconds` takes it."""
    return _WAIT.fullmatch(text) is not None


# Cached: clients ask for few different waits, and each of them again and again.
@lru_cache(maxsize=1024)
def wait_seconds(text: str, param: str) -> float:
    """Return a wait in seconds; raise Problem, naming `param`, for what is none."""
    match = _WAIT.fullmatch(text)
    if match is None:
        raise bad_parameter(param, f"{param} is {text[:64]!r}", ALLOWED_WAIT)
    return float(match[1]) * _SECONDS[match[2]]


@dataclass(frozen=True, slots=True)
class Preferences:
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


def parse_entity_tags(headers: Sequence[str], name: str) -> EntityTags | None:
    """Return what the headers `name` say, None without one; raise Problem for what is no list."""
    if not headers:
        return None
    tags = EntityTags.parse([header.encode("latin-1") for header in headers])
    if tags is None:
        raise bad_parameter(
            name,
            f"{name} is {', '.join(headers)[:64]!r}",
            "ETags of earlier answers, in quotes and with commas between them, or *",
        )
    return tags


def parse_etag_cursor(header: str | None) -> str | None:
    """Return the cursor in an If-None-Match of one entity tag, or None without one."""
    if header is None:
        return None
    text = header.strip().removeprefix("W/")
    if len(text) < 2 or text[0] != '"' or text[-1] != '"' or '"' in text[1:-1]:
        raise bad_parameter(
            "If-None-Match",
            f"If-None-Match is {header[:64]!r}",
            'one cursor in quotes: "<cursor>"',
        )
    return text[1:-1]
