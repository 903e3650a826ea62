"""Responses that their clients do not read, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from purgatory.fastapi.http.bounds import UnreadResponses
from purgatory.fastapi.servers.server_context import MAX_BATCH, WriteBatcher
from tests.virtual_time import anyio_backend  # noqa: F401 # a fixture

pytestmark = pytest.mark.anyio


class _Response:
    """A connection with a response that its client reads, or does not."""

    def __init__(self, size: int) -> None:
        self.unread_bytes = size
        self.is_closed = False

    def give_up(self) -> None:
        self.is_closed = True


async def test_who_reads_nothing_is_closed_and_who_is_slow_is_not() -> None:
    """At each deadline anything that was read since the last one is enough."""
    unread = UnreadResponses(10, 1000)
    idle, slow = _Response(500), _Response(100)
    for response in (idle, slow):
        unread.hold(response, response.unread_bytes)
    for left in (99, 98, 97):
        slow.unread_bytes = left
        await asyncio.sleep(10.1)
        assert (idle.is_closed, slow.is_closed) == (True, False)
        assert (len(unread), unread.held_bytes) == (1, left)
    await asyncio.sleep(10.1)
    assert slow.is_closed and (len(unread), unread.held_bytes) == (0, 0)


async def test_a_response_that_is_sent_and_does_not_end_is_closed() -> None:
    """At its first deadline: nothing is left of it that the client could read."""
    unread = UnreadResponses(10, 1000)
    stuck = _Response(100)
    unread.hold(stuck, 100)
    stuck.unread_bytes = 0
    await asyncio.sleep(10.1)
    assert stuck.is_closed and (len(unread), unread.held_bytes) == (0, 0)


async def test_the_oldest_response_makes_room() -> None:
    """By what is unread of it now; one that alone takes all of the room is sent."""
    unread = UnreadResponses(60, 100)
    first, second, third = responses = [_Response(50), _Response(50), _Response(40)]
    unread.hold(first, 50)
    unread.hold(second, 50)
    first.unread_bytes = 10
    unread.hold(third, 40)
    assert [response.is_closed for response in responses] == [False, False, False]
    assert unread.held_bytes == 100
    large = _Response(500)
    unread.hold(large, 500)
    assert [response.is_closed for response in responses] == [True, True, True]
    assert not large.is_closed and (len(unread), unread.held_bytes) == (1, 500)
    unread.release(large)
    assert (len(unread), unread.held_bytes) == (0, 0)


class _Sink:
    """A transport that notes the length of what is written."""

    def __init__(self) -> None:
        self.written: list[int] = []

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.written.append(len(data))


async def test_long_responses_do_not_wait_for_the_end_of_the_turn() -> None:
    """Very many may be written in one; short ones wait, and the order is kept."""
    sink: Any = _Sink()
    writes = WriteBatcher(asyncio.get_running_loop(), before=list)
    for size in (10, 20, MAX_BATCH - 30, 1, 5, MAX_BATCH):
        writes.write(sink, b"x" * size)
    assert sink.written == [10, 20, MAX_BATCH - 30, 1, 5, MAX_BATCH]
    writes.write(sink, b"x")
    assert len(sink.written) == 6
    await asyncio.sleep(0)
    assert sink.written[6:] == [1]
