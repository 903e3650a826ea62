"""Work of many callers: in shared batches, and a turn of the event loop at a time."""

from __future__ import annotations

import asyncio
import gc
import weakref
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextvars import ContextVar

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from purgatory.group_commit import GroupCommit
from purgatory.jobs.redis.shards import MAX_BYTES, MAX_STEPS, StepBatches
from purgatory.testing import MockClock
from purgatory.turn_budget import TURN_NS, TurnBudget, is_turn_taken, resume_in_turn
from tests.cases import cases
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


costs = st.lists(st.integers(min_value=0, max_value=2 * TURN_NS), max_size=50)


class _Turns:
    """The turns of the event loop, each with the costs of the work that was done in it."""

    def __init__(self) -> None:
        self.costs: list[dict[int, list[int]]] = []

    async def work(self, worker: int, costs: list[int]) -> TurnBudget:
        clock = MockClock()
        budget = TurnBudget(clock=clock)
        for cost in costs:
            clock.advance_ns(cost)
            self.costs[-1].setdefault(worker, []).append(cost)
            await budget.yield_if_spent()
        return budget

    async def all(self, workers: list[list[int]]) -> list[TurnBudget]:
        """Return the budgets of workers with these costs, once all of them are done."""
        working = [
            asyncio.ensure_future(self.work(worker, costs)) for worker, costs in enumerate(workers)
        ]
        while not all(each.done() for each in working):
            self.costs.append({})
            await asyncio.sleep(0)
        return [each.result() for each in working]


@given(costs=costs)
def test_a_turn_ends_with_the_item_that_spends_it(costs: list[int]) -> None:
    """Each turn but the last has used its 2 ms, and none begins an item after that."""
    turns = _Turns()
    [budget] = asyncio.run(turns.all([costs]))
    done = [turn[0] for turn in turns.costs if turn]
    assert [cost for turn in done for cost in turn] == costs
    assert all(sum(turn[:-1]) < TURN_NS for turn in done)
    assert all(sum(turn) >= TURN_NS for turn in done[:-1])
    # The last item may have spent the turn that it was in.
    assert 0 <= budget.turns - max(len(done), 1) <= 1


@given(workers=st.lists(costs, min_size=2, max_size=5))
def test_the_work_of_many_takes_no_longer_in_a_turn(workers: list[list[int]]) -> None:
    """Only one of those that have spent a turn resumes in each, in order, and all finish."""
    turns = _Turns()
    asyncio.run(turns.all(workers))
    for worker, costs in enumerate(workers):
        assert [cost for turn in turns.costs for cost in turn.get(worker, ())] == costs
    begun: set[int] = set()
    for turn in turns.costs:
        assert len(turn.keys() & begun) <= 1
        begun |= turn.keys()


def test_who_gives_up_stops_nobody() -> None:
    """Others resume although one of those before them was cancelled while it waited."""

    async def cancel_first() -> list[bool]:
        clock = MockClock()
        budgets = [TurnBudget(clock=clock) for _ in range(3)]
        clock.advance_ns(TURN_NS)
        waiting = [asyncio.ensure_future(budget.yield_if_spent()) for budget in budgets]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.wait(waiting)
        return [each.cancelled() for each in waiting]

    assert asyncio.run(cancel_first()) == [True, False, False]


def test_callbacks_have_a_turn_each() -> None:
    """In order; one that fails stops no other, and one that goes on waits behind the others."""

    async def call_all() -> list[str]:
        called: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: called.append("failed"))

        def go_on() -> None:
            called.append(f"first, {is_turn_taken()}")
            resume_in_turn(lambda: called.append("again"))

        resume_in_turn(go_on)
        resume_in_turn(lambda: 1 / 0)
        resume_in_turn(lambda: called.append("last"))
        assert is_turn_taken()
        for turn in range(1, 5):
            await asyncio.sleep(0)
            assert len(called) == turn
        assert not is_turn_taken()
        return called

    assert asyncio.run(call_all()) == ["first, False", "failed", "last", "again"]


def test_every_second_turn_is_for_all() -> None:
    """What everyone waits for is not behind many requests, nor they behind it."""

    async def call_all() -> str:
        called: list[str] = []
        for _ in range(4):
            resume_in_turn(lambda: called.append("-"))
        for _ in range(6):
            resume_in_turn(lambda: called.append("a"), for_all=True)
        for _ in range(10):
            await asyncio.sleep(0)
        return "".join(called)

    assert asyncio.run(call_all()) == "a-a-a-a-aa"


@cases("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_waits_ends_with_a_closed_loop(new_loop: Callable[[], AbstractEventLoop]) -> None:
    """Nothing of the process keeps the loop, though nobody has resumed."""
    loop = new_loop()
    clock = MockClock()
    budget = TurnBudget(clock=clock)
    clock.advance_ns(TURN_NS)
    # `stop` is called in the first turn, before the budget's.
    loop.call_soon(loop.stop)
    task = loop.create_task(budget.yield_if_spent())
    loop.run_forever()
    loop.close()
    assert not task.done()
    left = weakref.ref(loop)
    del loop, task
    gc.collect()
    assert left() is None
