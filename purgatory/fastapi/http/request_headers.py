"""Headers of requests: entity tags (RFC 9110, 8.8.3 and 13.1), Prefer (RFC 7240), and durations."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

from purgatory.fastapi.http.problems import bad_parameter

# etagc: no spaces and no quotes; commas are allowed, so that a list cannot be split at them.
_TAG: Final = re.compile(rb'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')
# A tag without its quotes: of a list of these, nobody knows where one ends.
_UNQUOTED: Final = re.compile(rb"(?:W/)?([\x21\x23-\x2b\x2d-\x7e\x80-\xff]+)")
# A field in OpenAPI, without the empty elements that are accepted all the same.
ENTITY_TAGS_PATTERN: Final = r'^(\*|(W/)?"[!#-~]*"( *, *(W/)?"[!#-~]*")*)$'
# Of one field: a client has few representations, and each of these may be looked up.
MAX_TAGS: Final = 100
_SEPARATOR: Final = re.compile(rb"[ \t]*(?:,[ \t]*)+|[ \t]*$")


def opaque_tag(etag: bytes) -> bytes | None:
    """Return the quoted part of a tag, for weak comparison; None if it is not a tag."""
    match = _TAG.fullmatch(etag.strip(b" \t"))
    return None if match is None else match[1]


@dataclass(frozen=True, slots=True)
class EntityTags:
    """The tags of an If-None-Match or If-Match field, or `*` for any."""

    opaque_tags: frozenset[bytes]
    is_any: bool = False
    strong_tags: frozenset[bytes] = frozenset()
    """Those of `opaque_tags` that are named without `W/`."""

    @classmethod
    def parse(cls, fields: Sequence[bytes]) -> EntityTags | None:
        """Return the tags of several field lines; None if they do not follow the RFC.

        None for more than MAX_TAGS, too.
        """
        text = b",".join(fields).strip(b" \t")
        if text == b"*":
            return cls(frozenset(), is_any=True)
        tags: set[bytes] = set()
        strong: set[bytes] = set()
        # A list may begin with empty elements (5.6.1).
        position = len(text) - len(text.lstrip(b", \t"))
        while position < len(text):
            tag = _TAG.match(text, position)
            separator = tag and _SEPARATOR.match(text, tag.end())
            if tag is None or separator is None or len(tags) == MAX_TAGS:
                return None
            tags.add(tag[1])
            if not tag[0].startswith(b"W/"):
                strong.add(tag[1])
            position = separator.end()
        return cls(frozenset(tags), strong_tags=frozenset(strong)) if tags else None

    @classmethod
    def parse_leniently(cls, fields: Sequence[bytes]) -> EntityTags | None:
        """Return the tags, as `parse` does, or a single one that lacks its quotes."""
        tags = cls.parse(fields)
        if tags is None and len(fields) == 1:
            bare = _UNQUOTED.fullmatch(fields[0].strip(b" \t"))
            if bare is not None:
                return cls(frozenset({b'"' + bare[1] + b'"'}))
        return tags

    def match(self, etag: bytes) -> bool:
        """Return True iff the client has the representation with this ETag.

        Compared weakly: `W/"1"` and `"1"` are equal. An invalid ETag matches nothing.
        """
        opaque = opaque_tag(etag)
        return opaque is not None and (self.is_any or opaque in self.opaque_tags)

    def match_strongly(self, etag: bytes) -> bool:
        """Return True iff If-Match permits a change of the representation with this ETag.

        Compared strongly (8.8.3.2): the same octets, and neither side weak.
        """
        return opaque_tag(etag) == etag and (self.is_any or etag in self.strong_tags)


def parse_entity_tags(text: str, name: str) -> EntityTags:
    """Return the tags in the header `name`; raise Problem if it is not a list of tags."""
    tags = EntityTags.parse([text.encode("latin-1")])
    if tags is None:
        raise bad_parameter(
            name,
            f"{name} is {text[:64]!r}",
            f"up to {MAX_TAGS} ETags of earlier responses, in quotes and with commas between them, "
            "or *",
        )
    return tags


# For OpenAPI too: a regular expression that JavaScript also reads.
WAIT_PATTERN: Final = r"^[0-9]{1,10}(\.[0-9]{1,9})?(ms|s|m)?$"
_WAIT: Final = re.compile(WAIT_PATTERN)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "": 1.0}
# From here on the answer may come a little early, so that polls do not return in step.
JITTER_FROM_SECONDS: Final = 5.0
ALLOWED_WAIT: Final = "seconds such as 25 or 2.5, or with a unit: 500ms, 25s, 1m"


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


def jittered(wait: float) -> float:
    """Return the seconds until the wait ends: 90-100 % of a long wait, all of a short one."""
    if wait < JITTER_FROM_SECONDS:
        return wait
    # Short of all of it, to leave the loop's own lag within the promise.
    return wait * (0.9 + 0.085 * random.random())  # noqa: S311 - spreads reconnects


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
