"""Sharing a transaction or a round trip: whatever becomes of it, nobody who waits is forgotten."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from purgatory.group_commit import GroupCommit
from purgatory.jobs.redis.shards import MAX_BYTES, MAX_STEPS, StepBatches
from tests.patience import PATIENCE_S


class OddError(Exception):
    """Made of something else than its text, as asyncio.IncompleteReadError is."""

    def __init__(self, wanted: int, found: int) -> None:
        super().__init__(f"{found} of {wanted}")


async def test_everyone_is_told_of_an_error_that_cannot_be_copied() -> None:
    """Also whoever asks next."""

    async def run(batch: list[str]) -> list[str]:
        raise OddError(2, 1)

    commit = GroupCommit(run, weigh=len, max_weight=100)
    ends = await asyncio.gather(*(commit.submit("s") for _ in range(3)), return_exceptions=True)
    assert [str(end) for end in ends] == ["1 of 2"] * 3
    with pytest.raises(OddError):
        await commit.submit("s")


async def test_each_has_an_error_of_its_own() -> None:
    """Of its batch, or of what it asked for alone."""

    async def run(batch: list[str]) -> list[object]:
        if "all" in batch:
            raise ValueError("for all")
        return [KeyError(asked) if asked == "bad" else asked for asked in batch]

    commit = GroupCommit(run, weigh=len, max_weight=100)
    ends = await asyncio.gather(commit.submit("all"), commit.submit("b"), return_exceptions=True)
    assert all(isinstance(end, ValueError) and str(end) == "for all" for end in ends)
    assert ends[0] is not ends[1]
    ends = await asyncio.gather(*map(commit.submit, ("a", "bad", "b")), return_exceptions=True)
    assert ends[::2] == ["a", "b"] and isinstance(ends[1], KeyError)


async def test_each_error_has_the_cause_of_the_one() -> None:
    """The log of each shows what was behind it."""
    cause = OSError("no route")

    async def run(batch: list[str]) -> list[str]:
        raise ValueError("for all") from cause

    commit = GroupCommit(run, weigh=len, max_weight=100)
    ends = await asyncio.gather(*map(commit.submit, "ab"), return_exceptions=True)
    assert [isinstance(end, ValueError) and end.__cause__ for end in ends] == [cause, cause]


async def test_a_batch_is_what_came_meanwhile_and_bounded() -> None:
    """In order; who weighs more than that has one alone, and who left is left out."""
    batches: list[list[str]] = []

    async def run(batch: list[str]) -> list[str]:
        batches.append(batch)
        await asyncio.sleep(0)
        return batch

    commit = GroupCommit(run, weigh=len, max_weight=3)
    asked = ["a", "bb", "c", "dddd", "e", "left", "ff"]
    futures = [commit.submit(each) for each in asked]
    futures[5].cancel()
    await commit.join()
    assert batches == [["a", "bb"], ["c"], ["dddd"], ["e", "ff"]]
    assert [future.result() for future in futures if not future.cancelled()] == [
        "a", "bb", "c", "dddd", "e", "ff",
    ]  # fmt: skip


async def test_a_round_trip_is_bounded_by_steps_and_by_bytes() -> None:
    """Each caller has its own results; a row of steps that is too long is sent in parts."""
    sent: list[list[bytes]] = []

    async def send(steps: list[bytes]) -> list[bytes]:
        sent.append(steps)
        return [b"done " + step for step in steps]

    commit = StepBatches(send)
    many = [b"%d" % number for number in range(2 * MAX_STEPS + 1)]
    large = b"x" * (MAX_BYTES // 2 + 1)
    asked = [[b"a", b"b"], many, [b"c"], [large], [large], []]
    found = await asyncio.gather(*map(commit.run, asked))
    assert found == [[b"done " + step for step in steps] for steps in asked]
    # What is sent in parts comes last: a row that is short enough is queued by the call itself.
    assert [len(steps) for steps in sent] == [4, 1, MAX_STEPS, MAX_STEPS, 1]


async def test_nobody_waits_for_a_round_trip_that_will_not_be_made() -> None:
    """Where the loop ends, neither who is on the way nor who is next."""
    is_sent = asyncio.Event()

    async def run(batch: list[str]) -> list[str]:
        is_sent.set()
        await asyncio.Event().wait()
        return batch

    commit = GroupCommit(run, weigh=len, max_weight=100)
    first = commit.submit("first")
    await is_sent.wait()
    second = commit.submit("second")
    await asyncio.sleep(0)
    assert commit._task is not None
    commit._task.cancel()
    async with asyncio.timeout(PATIENCE_S):
        ends = await asyncio.gather(first, second, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends)


async def test_nobody_waits_for_a_batch_that_will_not_begin() -> None:
    """Where the loop ends before the task's first step; and who asks later is answered."""

    async def run(batch: list[str]) -> list[str]:
        return batch

    commit = GroupCommit(run, weigh=len, max_weight=100)
    first = commit.submit("first")
    assert commit._task is not None
    commit._task.cancel()
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(asyncio.CancelledError):
            await first
        await commit.join()
        assert await commit.submit("second") == "second"


async def test_a_batch_runs_in_no_callers_context() -> None:
    """It is shared: the caller that begins it lends it nothing."""
    name = ContextVar("name", default="nobody")

    async def run(batch: list[str]) -> list[str]:
        return [name.get() for _ in batch]

    commit = GroupCommit(run, weigh=len, max_weight=100)
    name.set("first")
    seen = await asyncio.gather(commit.submit("a"), commit.submit("b"))
    assert list(seen) == ["nobody"] * 2
