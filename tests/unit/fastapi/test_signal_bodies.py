"""The bodies of fires: how large they may be."""

from __future__ import annotations

import json

from purgatory import Limits
from purgatory.fastapi.keys.schemas import batch_json, signal_json
from tests.cases import cases


@cases("value_bytes", [1, 3, 100, 1_000, 4_095, 65_536])
def test_the_largest_value_fits_into_its_body(value_bytes: int) -> None:
    """Escaped, as clients may send it, alone and in a batch."""
    limits = Limits(max_value_bytes=value_bytes)
    character = "\u00e9" if value_bytes > 3 else "1"
    size = max(1, (value_bytes - 2) // 2)
    value = character * size if value_bytes > 3 else 1
    body = json.dumps({"value": value}).encode()
    assert len(body) <= signal_json(limits).max_bytes
    assert signal_json(limits).parse(body).value == value
    key = "\u00e9" * 256
    [item] = batch_json(limits).parse(json.dumps([{"key": key, "value": value}]).encode())
    assert (item.key, item.value) == (key, value)
