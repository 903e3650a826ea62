"""The parameters of keys: each declared once, for the parser and for OpenAPI."""

from __future__ import annotations

from functools import partial
from typing import Final

from purgatory.fastapi.http.etag import EntityTags, parse_entity_tags
from purgatory.fastapi.http.idempotency import idempotency_key
from purgatory.fastapi.http.parameters import Parameter, Parameters, prefix_filter, whole_number
from purgatory.fastapi.watch.parameters import KEY

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
PREFIX: Final = prefix_filter("Only keys that begin with this.")
LIMIT: Final = whole_number("limit", default=100, description="Keys in the response.")

FIRE: Final = Parameters(KEY, IDEMPOTENCY_KEY, IF_MATCH)
FIRE_BATCH: Final = Parameters(IDEMPOTENCY_KEY)
ONE_KEY: Final = Parameters(KEY)
LIST: Final = Parameters(PREFIX, LIMIT)
