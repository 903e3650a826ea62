"""Sharing a round trip: whatever becomes of it, nobody who waits is forgotten."""

from __future__ import annotations

import asyncio

import pytest

from purgatory.jobs.redis.group_commit import GroupCommit


class OddError(Exception):
    """Made of something else than its text, as asyncio.IncompleteReadError is."""

    def __init__(self, wanted: int, found: int) -> None:
        super().__init__(f"{found} of {wanted}")


async def test_everyone_is_told_of_an_error_that_cannot_be_copied() -> None:
    """Also whoever asks next."""

    async def send(steps: list[bytes]) -> list[bytes]:
        raise OddError(2, 1)

    commit = GroupCommit(send)
    ends = await asyncio.gather(*(commit.do([b"s"]) for _ in range(3)), return_exceptions=True)
    assert [str(end) for end in ends] == ["1 of 2"] * 3
    with pytest.raises(OddError):
        await commit.do([b"s"])


async def test_nobody_waits_for_a_round_trip_that_will_not_be_made() -> None:
    """Where the loop ends, neither who is on the way nor who is next."""
    is_sent = asyncio.Event()

    async def send(steps: list[bytes]) -> list[bytes]:
        is_sent.set()
        await asyncio.Event().wait()
        return []

    commit = GroupCommit(send)
    first = asyncio.create_task(commit.do([b"first"]))
    await is_sent.wait()
    second = asyncio.create_task(commit.do([b"second"]))
    await asyncio.sleep(0)
    assert commit._task is not None
    commit._task.cancel()
    async with asyncio.timeout(10):
        ends = await asyncio.gather(first, second, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends)
