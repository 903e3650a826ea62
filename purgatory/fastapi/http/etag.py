"""Entity tags, and their comparison in conditional requests (RFC 9110, 8.8.3 and 13.1)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

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
