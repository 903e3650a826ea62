"""Reading the body of a request."""

from __future__ import annotations

from typing import Any

import pytest

from purgatory.fastapi.http.bounds import MAX_DISCARDED, IncomingRequests, read_body
from purgatory.fastapi.http.responses import Problem
from tests.cases import cases
from tests.unit.exchange import Exchange


def _exchange(announced: int, body: list[bytes]) -> Exchange:
    return Exchange("/", {"Content-Length": str(announced)}, method="POST", body=body)


@cases("more", [0, 1])
@cases("is_announced", [True, False])
async def test_so_much_of_a_body_is_discarded(more: int, *, is_announced: bool) -> None:
    """Up to the end, so that the client reads the response; beyond that, no more is read."""
    half = MAX_DISCARDED // 2
    pieces = [b"x" * half, b"x" * (half - 1), b"x" * (1 + more), b""]
    exchange = _exchange(MAX_DISCARDED + more, pieces)
    if not is_announced:
        exchange = Exchange("/", {"Transfer-Encoding": "chunked"}, method="POST", body=pieces)
    received = 0

    async def receive() -> Any:
        nonlocal received
        received += 1
        return await exchange.receive()

    with pytest.raises(Problem, match="larger than 10 bytes"):
        await read_body(exchange.scope, receive, 10, IncomingRequests())
    assert received == (4 if not more else 0 if is_announced else 3)
