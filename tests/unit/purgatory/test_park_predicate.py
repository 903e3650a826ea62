"""Parked calls with a predicate."""

import asyncio
from typing import Any

import pytest

from purgatory import Outcome, Status
from tests.cases import cases
from tests.unit.purgatory.waiting import Make, Waiting, outcomes, parked


async def test_a_predicate_that_holds_at_once(make_purgatory: Make) -> None:
    """Is asked once; nothing is watched."""
    async with make_purgatory() as purgatory:
        asked: list[bool] = []

        def holds() -> bool:
            asked.append(True)
            return True

        outcome = await purgatory.park("a", timeout=1, until=holds)
        assert outcome == Outcome(Status.FIRED, None, None, outcome.cursor, 0)
        assert len(asked) == 1


async def test_a_predicate_that_begins_to_hold_while_watching(make_purgatory: Make) -> None:
    """Is asked again once the keys are watched, so that nothing falls in between."""
    async with make_purgatory() as purgatory:
        watched: list[dict[str, int]] = []

        def holds() -> bool:
            watched.append(purgatory.watched_keys())
            return len(watched) == 2

        outcome = await purgatory.park("a", "b", timeout=1, until=holds)
        assert (outcome.status, outcome.key, outcome.waited_ms) == (Status.FIRED, None, 0)
        assert watched == [{}, {"a": 1, "b": 1}]


async def test_a_predicate_may_ask_since_when_its_own_call_waits(make_purgatory: Make) -> None:
    """The deadline starts once it was asked while watching: until then, since 0."""
    async with make_purgatory() as purgatory:
        inspection = purgatory.inspection()
        starts: list[int | None] = []

        def holds() -> bool:
            starts.append(inspection.oldest_start_ms("a"))
            return len(starts) == 3

        task = await parked(purgatory, "a", until=holds)
        begun_ms = inspection.oldest_start_ms("a")
        await purgatory.fire("a")
        assert (await task).status is Status.FIRED
        assert starts == [None, 0, begun_ms]


async def test_a_predicate_is_asked_whenever_a_key_fires(make_purgatory: Make) -> None:
    """A key that fires only makes it be tried; the fire that made it true is in the outcome."""
    async with make_purgatory() as purgatory:
        paid: set[str] = set()
        asked: list[set[str]] = []

        def all_paid() -> bool:
            asked.append(set(paid))
            return paid == {"a", "b"}

        task = await parked(purgatory, "a", "b", until=all_paid)
        assert len(asked) == 2
        await purgatory.fire("c")
        assert len(asked) == 2
        paid.add("a")
        assert (await purgatory.fire("a", "first")).completed == 0
        assert (await purgatory.fire("b", "too early")).completed == 0
        paid.add("b")
        assert len(asked) == 4 and not task.done()
        assert (await purgatory.fire("b", "second")).completed == 1
        outcome = await task
        assert (outcome.status, outcome.key, outcome.value) == (Status.FIRED, "b", "second")


async def test_a_predicate_may_check_other_keys(make_purgatory: Make) -> None:
    """And the outcome still names the key that made it be asked."""
    async with make_purgatory() as purgatory:
        state: list[int] = []

        def holds() -> bool:
            assert purgatory.check("other").result() == 0
            return bool(state)

        other = await parked(purgatory, "other", until=lambda: False)
        task = await parked(purgatory, "a", until=holds)
        state.append(1)
        await purgatory.fire("a", "it")
        assert ((await task).key, (await task).value) == ("a", "it")
        await purgatory.cancel("other")
        await other


async def test_a_predicate_that_holds_from_the_start_names_no_key_of_others(
    make_purgatory: Make,
) -> None:
    """Also where a callback of another key's walk drives the call, as web servers may."""
    async with make_purgatory() as purgatory:
        outcomes: list[Outcome] = []

        def send_eagerly() -> None:
            answers = iter([False, True])
            with pytest.raises(StopIteration) as stopped:
                purgatory.park("a", timeout=5, until=lambda: next(answers)).send(None)
            outcomes.append(stopped.value.value)

        operation = Waiting()
        operation.then = send_eagerly
        assert not purgatory.park_operation(operation, ["z"])
        operation.completable = True
        await purgatory.fire("z", "of another key")
        assert (outcomes[0].status, outcomes[0].key, outcomes[0].value) == (
            Status.FIRED,
            None,
            None,
        )


@cases("number", [1, 2, 3])
@cases("error", [ZeroDivisionError, LookupError, StopIteration])
async def test_what_a_predicate_raises_is_raised_by_park(
    make_purgatory: Make, number: int, error: type[Exception]
) -> None:
    """At the first try, at the second and on a fire; at once, and nothing is left behind."""
    async with make_purgatory() as purgatory:
        tries: list[int] = []

        def holds() -> bool:
            tries.append(1)
            if len(tries) == number:
                raise error("on purpose")
            return False

        task = asyncio.create_task(purgatory.park("a", timeout=60, until=holds))
        await asyncio.sleep(0)
        neighbour = asyncio.create_task(purgatory.park("a", timeout=60))
        await asyncio.sleep(0)
        await purgatory.fire("a", 1)
        await asyncio.wait([task], timeout=1)
        assert task.done() and (await neighbour).value == 1
        # A StopIteration cannot come out of a coroutine as it is.
        with pytest.raises((RuntimeError, TypeError) if error is StopIteration else error):
            await task
        assert (purgatory.parked, len(tries)) == (0, number)


@cases("number", [1, 2, 3])
async def test_a_predicate_that_returns_a_coroutine(make_purgatory: Make, number: int) -> None:
    """It would always hold: a TypeError at once, and no warning of what nobody awaited."""

    async def holds() -> bool:
        raise AssertionError("it is not awaited")

    async with make_purgatory() as purgatory:
        tries: list[int] = []

        def until() -> Any:
            tries.append(1)
            return holds() if len(tries) == number else False

        task = asyncio.create_task(purgatory.park("a", timeout=60, until=until))
        await asyncio.sleep(0)
        await purgatory.fire("a")
        with pytest.raises(TypeError, match=r"async function.* park\(\.\.\.\) in a loop"):
            await task
        assert (purgatory.parked, len(tries)) == (0, number)


@cases("truth", [1, "yes", [0]])
async def test_a_predicate_may_return_anything_that_is_true(
    make_purgatory: Make, truth: object
) -> None:
    """As in `while`; what is false goes on waiting."""
    async with make_purgatory() as purgatory:
        answers: list[object] = [0, "", truth]
        task = await parked(purgatory, "a", until=lambda: answers.pop(0))
        await purgatory.fire("a", 7)
        assert (await task).value == 7


async def test_a_predicate_whose_caller_was_cancelled(make_purgatory: Make) -> None:
    """In the same turn of the loop: what it raises has nobody to go to, and is no error of ours."""
    async with make_purgatory() as purgatory:
        is_failing = False

        def until() -> bool:
            if is_failing:
                raise ZeroDivisionError("on purpose")
            return False

        task = await parked(purgatory, "a", until=until)
        is_failing = True
        fired = asyncio.ensure_future(purgatory.fire("a"))
        task.cancel()
        assert (await fired).completed <= 1
        with pytest.raises((asyncio.CancelledError, ZeroDivisionError)):
            await task
        assert purgatory.parked == 0


@cases("is_raising", [False, True])
async def test_a_predicate_that_ends_its_own_operation(
    make_purgatory: Make, *, is_raising: bool
) -> None:
    """What it raises or returns after that changes nothing: the first end counts."""
    async with make_purgatory() as purgatory:
        drains: list[asyncio.Future[int]] = []

        def until() -> bool:
            if not is_fired:
                return False
            drains.append(purgatory.begin_drain())
            if is_raising:
                raise ZeroDivisionError("on purpose")
            return True

        is_fired = False
        task = await parked(purgatory, "a", until=until)
        is_fired = True
        assert (await purgatory.fire("a")).completed == 0
        assert ((await task).status, await drains[0]) == (Status.DRAINED, 1)
        assert outcomes(purgatory) == (0, 0, 0, 1)
