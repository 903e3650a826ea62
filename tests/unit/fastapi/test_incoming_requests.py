"""Requests that have not arrived completely, and the bound on their bytes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from purgatory.fastapi.http.bounds import MAX_DISCARDED, IncomingRequests, read_body
from purgatory.fastapi.http.responses import Problem
from tests.cases import cases
from tests.unit.exchange import Exchange


class _Lingering:
    """A connection that is read on, after it was refused, until its client has closed."""

    def __init__(self, incoming: IncomingRequests) -> None:
        self.incoming = incoming
        self.problems: list[Problem] = []

    def refuse(self, problem: Problem) -> None:
        self.problems.append(problem)
        if len(self.problems) == 1:
            self.incoming.hold(self, 0)


async def test_any_number_of_small_requests_makes_room_for_a_large_one() -> None:
    """Each is refused once, without recursion, and keeps a deadline."""
    incoming = IncomingRequests(60, 1000)
    small = [_Lingering(incoming) for _ in range(1000)]
    for request in small:
        incoming.hold(request, 1)
    large = _Lingering(incoming)
    incoming.hold(large, 5000)
    assert [len(request.problems) for request in small] == [1] * 1000
    assert large.problems == []
    assert (len(incoming), incoming.held_bytes) == (1001, 5000)


async def test_only_what_frees_memory_is_refused() -> None:
    """The oldest that hold bytes, and no more of them than needed."""
    incoming = IncomingRequests(60, 100)
    requests = empty, first, second, third = [_Lingering(incoming) for _ in range(4)]
    for request, size in ((empty, 0), (first, 50), (second, 50), (third, 10)):
        incoming.hold(request, size)
    assert [len(request.problems) for request in requests] == [0, 1, 0, 0]
    incoming.hold(second, 0)
    incoming.hold(third, 101)
    assert [len(request.problems) for request in requests] == [0, 1, 0, 0]
    for request in requests:
        incoming.release(request)
    assert (len(incoming), incoming.held_bytes) == (0, 0)


def _body(*chunks: bytes) -> Any:
    messages = [
        {"type": "http.request", "body": chunk, "more_body": number < len(chunks)}
        for number, chunk in enumerate(chunks, 1)
    ]

    async def receive() -> Any:
        return messages.pop(0)

    return {"headers": [(b"content-length", b"%d" % len(b"".join(chunks)))]}, receive


async def test_a_reading_that_refuses_itself_is_not_cancelled() -> None:
    """The cancellation would arrive later: at the next await of the endpoint."""
    incoming = IncomingRequests(60, 100)
    task = asyncio.current_task()
    assert task is not None
    scope, receive = _body(b"x" * 60, b"y", b"z")

    async def receive_beside_others() -> Any:
        message = await receive()
        if message["body"] == b"y":
            # 100 bytes are held, as many as may be; this message has one more.
            incoming.hold(_Lingering(incoming), 40)
        return message

    with pytest.raises(Problem) as refusal:
        await read_body(scope, receive_beside_others, 1000, incoming)
    assert refusal.value.kind.slug == "receiving-full"
    assert (task.cancelling(), incoming.held_bytes) == (0, 40)
    await asyncio.sleep(0)


@cases("is_cancelled", [True, False])
async def test_a_refusal_hides_no_cancellation(is_cancelled: bool) -> None:
    """A task that is cancelled in the turn in which its request is refused ends as cancelled."""
    incoming = IncomingRequests(60, 100)
    received: asyncio.Queue[Any] = asyncio.Queue()
    received.put_nowait({"type": "http.request", "body": b"x", "more_body": True})
    scope, _ = _body(b"xy")
    reading = asyncio.ensure_future(read_body(scope, received.get, 1000, incoming))
    await asyncio.sleep(0)
    assert incoming.held_bytes == 1
    incoming.hold(_Lingering(incoming), 100)
    if is_cancelled:
        reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled() == is_cancelled
    if not is_cancelled:
        assert isinstance(reading.exception(), Problem)


@cases("more", [0, 1])
@cases("is_announced", [True, False])
async def test_so_much_of_a_body_is_discarded(more: int, *, is_announced: bool) -> None:
    """Up to the end, so that the client reads the response; beyond that, no more is read."""
    half = MAX_DISCARDED // 2
    pieces = [b"x" * half, b"x" * (half - 1), b"x" * (1 + more), b""]
    length = {"Content-Length": str(MAX_DISCARDED + more)}
    framing = length if is_announced else {"Transfer-Encoding": "chunked"}
    exchange = Exchange("/", framing, method="POST", body=pieces)
    received = 0

    async def receive() -> Any:
        nonlocal received
        received += 1
        return await exchange.receive()

    with pytest.raises(Problem, match="larger than 10 bytes"):
        await read_body(exchange.scope, receive, 10, IncomingRequests())
    assert received == (4 if not more else 0 if is_announced else 3)
