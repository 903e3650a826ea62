"""The parameters of keys: each declared once, for the parser and for OpenAPI."""

from __future__ import annotations

from functools import partial
from typing import Final

from purgatory.errors import InvalidKeyError
from purgatory.fastapi.http.etag import EntityTags, parse_entity_tags
from purgatory.fastapi.http.idempotency import idempotency_key
from purgatory.fastapi.http.parameters import Parameter, Parameters, whole_number
from purgatory.fastapi.http.problems import bad_parameter
from purgatory.fastapi.http.schemas import KEY_PATTERN
from purgatory.fastapi.watch.parameters import KEY
from purgatory.operations.watch_key import check_key


def parse_prefix(text: str) -> str:
    """Return the beginning of keys, which may be empty; raise Problem if no key begins so."""
    try:
        check_key(text or "any")
    except InvalidKeyError as exc:
        allowed = "up to 256 characters, none of them control"
        raise bad_parameter("prefix", f"no key begins with it: {exc.detail}", allowed) from exc
    return text


IDEMPOTENCY_KEY: Final = idempotency_key(
    "a repeat of it within ten minutes gets the first response, and does nothing."
)
IF_MATCH: Final[Parameter[EntityTags | None]] = Parameter(
    name="If-Match",
    location="header",
    description='`"<cursor>"`: only if nothing fired since.',
    parse=partial(parse_entity_tags, name="If-Match"),
    default=None,
    is_list=True,
)
PREFIX: Final[Parameter[str]] = Parameter(
    name="prefix",
    location="query",
    description="Only keys that begin with this.",
    parse=parse_prefix,
    default="",
    documented_default="",
    schema={
        "max_length": 256,
        "pattern": KEY_PATTERN.replace("+$", "*$"),
        "examples": ["order:"],
    },
)
LIMIT: Final = whole_number("limit", default=100, description="Keys in the response.")

FIRE: Final = Parameters(KEY, IDEMPOTENCY_KEY, IF_MATCH)
FIRE_BATCH: Final = Parameters(IDEMPOTENCY_KEY)
ONE_KEY: Final = Parameters(KEY)
LIST: Final = Parameters(PREFIX, LIMIT)
