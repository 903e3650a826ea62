"""Batches of fires into shared signals: what is wrong with one is told as in one process."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI

from purgatory import Limits, Purgatory
from purgatory.fastapi import ALLOW_ANYONE, install
from tests.cases import cases
from tests.unit.exchange import Exchange
from tests.unit.shared_logs import Logs


async def fire(items: list[dict[str, Any]], *, is_shared: bool) -> Any:
    """Return the refusal of a batch."""
    limits = Limits(max_value_bytes=10)
    purgatory, app = Purgatory(signals=Logs() if is_shared else None, limits=limits), FastAPI()
    install(app, purgatory, authorize=ALLOW_ANYONE)
    async with purgatory:
        reply = (
            await Exchange(
                "/purgatory/keys",
                {"Content-Type": "application/json"},
                method="POST",
                body=[json.dumps(items).encode()],
            )
            .begin(app)
            .reply()
        )
    assert reply.status == 422
    return reply.json()


@cases("wrong", [{"key": "a\x01"}, {"key": "b", "value": "x" * 20}])
async def test_the_wrong_item_is_named(wrong: dict[str, Any]) -> None:
    """By its place in the batch."""
    items = [{"key": "a"}, wrong, {"key": "c"}]
    refusal = await fire(items, is_shared=True)
    assert refusal == await fire(items, is_shared=False)
    assert "1" in json.dumps(refusal)
