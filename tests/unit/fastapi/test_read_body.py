"""Reading the body of a request."""

from __future__ import annotations

from typing import Any

import pytest

from purgatory.fastapi.http.bounds import IncomingRequests
from purgatory.fastapi.http.problems import Problem
from purgatory.fastapi.http.request_body import MAX_DISCARDED, read_body
from tests.cases import cases
from tests.unit.exchange import Exchange


def _exchange(announced: int, body: list[bytes]) -> Exchange:
    return Exchange("/", {"Content-Length": str(announced)}, method="POST", body=body)


async def _read(exchange: Exchange, limit: int) -> Any:
    return await read_body(exchange.scope, exchange.receive, limit, IncomingRequests())


async def test_a_limit_may_be_above_what_is_read_and_dropped() -> None:
    """However large a body may be, one within its limit is read."""
    limit = MAX_DISCARDED + 10
    assert await _read(_exchange(limit, [limit * b"x"]), limit) == limit * b"x"
    with pytest.raises(Problem) as refusal:
        await _read(_exchange(limit + 1, [b"abc"]), limit)
    assert refusal.value.kind.slug == "body-too-large"
    assert str(limit) in refusal.value.detail


@cases("sizes", [[10], [4, 6]])
async def test_a_body_has_up_to_its_limit(sizes: list[int]) -> None:
    """In any number of pieces, and without a length announced."""
    body = [b"x" * size for size in sizes]
    exchange = Exchange("/", {"Transfer-Encoding": "chunked"}, method="POST", body=body)
    assert await _read(exchange, 10) == b"x" * 10
    exchange = Exchange("/", {"Transfer-Encoding": "chunked"}, method="POST", body=[*body, b"x"])
    with pytest.raises(Problem, match=r"larger than 10 bytes.*: send fewer items"):
        await _read(exchange, 10)


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
