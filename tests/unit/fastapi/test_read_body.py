"""Reading the body of a request."""

from __future__ import annotations

from typing import Any

import pytest

from purgatory.fastapi.http.bodies.byte_budgets import IncomingRequests
from purgatory.fastapi.http.bodies.request_body import MAX_DISCARDED, read_body
from purgatory.fastapi.http.problems import Problem
from tests.unit.exchange import Exchange


def _exchange(announced: int, body: list[bytes]) -> Exchange:
    return Exchange("/", {"Content-Length": str(announced)}, method="POST", body=body)


async def _read(exchange: Exchange, limit: int) -> Any:
    return await read_body(exchange.scope, exchange.receive, limit, IncomingRequests())


async def test_a_limit_may_be_above_what_is_read_and_dropped() -> None:
    """However large a body may be, one within its limit is read."""
    limit = MAX_DISCARDED + 10
    # As announced, though it is shorter: what the server hands over is all that counts.
    assert await _read(_exchange(limit, [b"ab", b"c"]), limit) == b"abc"
    with pytest.raises(Problem) as refusal:
        await _read(_exchange(limit + 1, [b"abc"]), limit)
    assert refusal.value.kind.slug == "body-too-large"
    assert str(limit) in refusal.value.detail
