"""Dedupe keys of different owners in one store."""

from __future__ import annotations

import re

from purgatory.jobs.model.owner import owner_of

_OWNED = re.compile(r"~[0-9a-f]{16}~(.+)", re.DOTALL)


def owned_dedupe_key(dedupe_key: str, owner: str) -> str:
    """Return what is stored for a dedupe key of `owner`: equal keys of others are other keys."""
    return f"~{owner_of(owner)}~{dedupe_key}"


def shown_dedupe_key(dedupe_key: str) -> str:
    """Return the dedupe key as its owner gave it."""
    match = _OWNED.fullmatch(dedupe_key)
    return dedupe_key if match is None else match[1]
