"""Parked calls and what ends them: fires, deadlines, predicates, cursors, cancellations, drains."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel

from purgatory import (
    DelayedOperation,
    InvalidKeyError,
    Limits,
    Outcome,
    Purgatory,
    PurgatoryClosedError,
    Status,
    WrongThreadError,
)
from purgatory.operations import OperationEvent
from purgatory.testing import AutojumpEventLoop, current_clock
from tests.cases import cases
from tests.unit.purgatory.waiting import Make, Waiting, now_ms, outcomes, parked

# Parking and firing


async def test_a_parked_call_is_fired(purgatory: Purgatory) -> None:
    """It returns the key, the value, a cursor to go on with, and how long it was parked."""
    task = await parked(purgatory, "order:42:paid", "order:42:failed", timeout=25)
    await asyncio.sleep(1.5)
    fired = await purgatory.fire("order:42:paid", {"by": "card"})
    outcome = await task
    assert (fired.completed, fired.seq, fired.jobs, fired.jobs_pending) == (1, 1, 0, False)
    assert outcome == Outcome(Status.FIRED, "order:42:paid", {"by": "card"}, fired.cursor, 1_500)
    assert outcome.is_fired and outcome
    assert (purgatory.parked, purgatory.watched_keys()) == (0, {})


async def test_a_parked_call_expires(purgatory: Purgatory) -> None:
    """At its deadline, with a cursor to go on with."""
    began_ms = now_ms()
    outcome = await purgatory.park("key", timeout=2.5)
    assert now_ms() - began_ms == 2_500
    assert outcome == Outcome(Status.EXPIRED, None, None, outcome.cursor, 2_500)
    assert not outcome.is_fired and not outcome
    await purgatory.fire("key", "later")
    again = await purgatory.park("key", timeout=1, cursor=outcome.cursor)
    assert (again.value, again.waited_ms) == ("later", 0)


async def test_a_parked_call_is_cancelled(purgatory: Purgatory) -> None:
    """All of the key are, on whatever other keys; the cursor is good for another wait."""
    first, second = await parked(purgatory, "a"), await parked(purgatory, "b", "a")
    other = await parked(purgatory, "b")
    assert await purgatory.cancel("a") == 2
    for task in (first, second):
        outcome = await task
        assert outcome == Outcome(Status.CANCELLED, None, None, outcome.cursor, 0)
        assert (await purgatory.park("a", timeout=0, cursor=outcome.cursor)).value is None
    assert (purgatory.parked, purgatory.watched_keys()) == (1, {"b": 1})
    assert await purgatory.cancel("a") == 0
    await purgatory.fire("b")
    assert (await other).status is Status.FIRED


async def test_a_parked_call_is_drained(purgatory: Purgatory) -> None:
    """At once, and so is whoever comes after; cursors are good for another wait."""
    tasks = [await parked(purgatory, "a"), await parked(purgatory, "a", "b")]
    await purgatory.fire("c")
    assert await purgatory.drain() == 2
    late = await purgatory.park("a", timeout=30)
    head = purgatory.signals.cursor(purgatory.signals.head())
    for outcome in (await tasks[0], await tasks[1], late):
        assert outcome == Outcome(Status.DRAINED, None, None, head, 0)
    assert purgatory.is_draining and purgatory.statistics().is_draining


@pytest.mark.parametrize(
    ("value", "expected"),
    [((1, 2), "[1, 2]"), ({1: "a"}, "{'1': 'a'}"), (Status.FIRED, "'fired'"), (0.5, "0.5")],
)
async def test_a_value_is_as_json_has_it(
    purgatory: Purgatory, value: object, expected: str
) -> None:
    """Whether or not a key has fired since."""
    task = await parked(purgatory, "a")
    await purgatory.fire("a", value)
    assert repr((await task).value) == expected
    await purgatory.fire("b")
    outcomes = [await purgatory.park("a", timeout=1, cursor="0") for _ in range(2)]
    assert [repr(outcome.value) for outcome in outcomes] == [expected] * 2


class Topic(StrEnum):
    ORDERS = "orders"


async def test_a_key_may_be_a_string_of_a_class_of_its_own(make_purgatory: Make) -> None:
    """The members of an enumeration, say; they and plain strings are the same keys."""
    purgatory = make_purgatory(limits=Limits(max_signals_per_key=1, max_signals=1))
    async with purgatory:
        by_signal = await parked(purgatory, Topic.ORDERS)
        by_predicate = await parked(purgatory, Topic.ORDERS, until=lambda: by_signal.done())
        await purgatory.fire(Topic.ORDERS, 1)
        assert ((await by_signal).key, (await by_signal).value) == ("orders", 1)
        await purgatory.fire("orders", 2)
        assert ((await by_predicate).key, (await by_predicate).value) == ("orders", 2)
        without_signal = await parked(purgatory, Topic.ORDERS)
        purgatory.signals.append(Topic.ORDERS, 3)
        purgatory.signals.append("another", None)
        await purgatory.check("orders")
        assert ((await without_signal).key, (await without_signal).value) == ("orders", None)


async def test_a_parked_call_that_is_completed_by_hand(make_purgatory: Make) -> None:
    """By a listener, which gets the operation: fired, by no key; nobody waits for ever."""
    operations: list[DelayedOperation] = []
    listeners = [lambda event: operations.append(event.operation)]
    async with make_purgatory(listeners=listeners) as purgatory:
        task = await parked(purgatory, "a", timeout=5)
        assert operations[0].force_complete()
        await asyncio.wait([task], timeout=60)
        is_done = task.done()
        task.cancel()
        assert is_done
        outcome = await task
        assert outcome == Outcome(Status.FIRED, None, None, outcome.cursor, 0)


# A timeout of zero asks, and does not park


async def test_a_timeout_of_zero_without_a_cursor_expires_at_once(make_purgatory: Make) -> None:
    """In the same turn of the loop; nothing was watched or timed."""
    events: list[OperationEvent] = []
    async with make_purgatory(listeners=[events.append]) as purgatory:
        await purgatory.fire("a", 1)
        parking = purgatory.park("a", timeout=0)
        with pytest.raises(StopIteration) as stopped:
            parking.send(None)
        assert stopped.value.value.status is Status.EXPIRED
        assert (events, purgatory.statistics().wake_ups) == ([], 0)


@cases("timeout", [0, 0.0, -0.0])
async def test_a_timeout_of_zero_with_a_cursor_answers_what_fired(
    purgatory: Purgatory, timeout: float
) -> None:
    """And a predicate that holds fires, too."""
    cursor = (await purgatory.park("a", timeout=timeout)).cursor
    await purgatory.fire("a", 1)
    assert (await purgatory.park("a", timeout=timeout, cursor=cursor)).value == 1
    held = await purgatory.park("a", timeout=timeout, until=lambda: True)
    assert held.status is Status.FIRED
    fails = await purgatory.park("a", timeout=timeout, until=lambda: False)
    assert fails.status is Status.EXPIRED


async def test_a_timeout_of_zero_is_answered_when_the_purgatory_is_full(
    make_purgatory: Make,
) -> None:
    """Who does not wait takes no place."""
    async with make_purgatory(limits=Limits(max_parked=1)) as purgatory:
        task = await parked(purgatory, "a")
        assert (await purgatory.park("a", timeout=0)).status is Status.EXPIRED
        await purgatory.cancel("a")
        await task


async def test_a_pydantic_model_is_fired_as_json(purgatory: Purgatory) -> None:
    """Every waiter gets the values that the model dumps, like a watcher over HTTP."""
    task = await parked(purgatory, "a")
    await purgatory.fire("a", Payment(by="card", at=datetime(2027, 1, 1, tzinfo=UTC)))
    assert (await task).value == {"by": "card", "at": "2027-01-01T00:00:00Z"}
    [signal] = purgatory.signals.read("a", 0, 1)
    assert signal.encoded == b'{"by":"card","at":"2027-01-01T00:00:00Z"}'


class Payment(BaseModel):
    by: str
    at: datetime


ANSWERS = st.lists(st.sampled_from(["no", "no", "yes", "error", "stop", "coroutine"]), max_size=6)
EVENTS = st.lists(st.tuples(st.sampled_from(["fire", "check"]), st.sampled_from("abc")), max_size=6)
# A StopIteration cannot come out of a coroutine as it is.
RAISED: dict[str, Any] = {"error": LookupError, "stop": (RuntimeError, TypeError)}


@given(answers=ANSWERS, events=EVENTS)
@example(answers=["no"] * 3 + ["yes"], events=[("fire", "a"), ("check", "a")])
def test_a_predicate_is_asked_until_it_holds(
    answers: list[str], events: list[tuple[str, str]]
) -> None:
    """Before and once its keys are watched, and when one fires; what it raises ends the wait."""
    with asyncio.Runner(loop_factory=AutojumpEventLoop) as runner:
        runner.run(_ask([*answers, *["no"] * 8], events))


async def _ask(answers: list[str], events: list[tuple[str, str]]) -> None:
    asked: list[str] = []

    async def holds() -> bool:
        raise AssertionError("it is not awaited")

    def until() -> Any:
        asked.append(answers[len(asked)])
        if asked[-1] == "error":
            raise LookupError("on purpose")
        if asked[-1] == "stop":
            raise StopIteration
        return holds() if asked[-1] == "coroutine" else asked[-1] == "yes"

    async with Purgatory(clock=current_clock()) as purgatory:
        task = asyncio.create_task(purgatory.park("a", "b", timeout=60, until=until))
        await asyncio.sleep(0)
        last: str | None = None
        values: dict[str | None, Any] = {}
        assert len(asked) == (2 if answers[0] == "no" else 1)
        for number, (event, key) in enumerate(events):
            if asked[-1] != "no":
                break
            assert purgatory.watched_keys() == {"a": 1, "b": 1} and not task.done()
            before = len(asked)
            await (purgatory.fire(key, number) if event == "fire" else purgatory.check(key))
            assert len(asked) == before + (key != "c")
            last = key
            if event == "fire":
                values[key] = number
        if asked[-1] in ("yes", "no"):
            is_over = asked[-1] == "yes"
            assert await purgatory.cancel("a") == (not is_over)
            outcome = await task
            by = last if is_over else None
            status = Status.FIRED if is_over else Status.CANCELLED
            assert outcome == Outcome(status, by, values.get(by), outcome.cursor, 0)
        elif asked[-1] == "coroutine":
            with pytest.raises(TypeError, match=r"async function.* park\(\.\.\.\) in a loop"):
                await task
        else:
            with pytest.raises(RAISED[asked[-1]]):
                await task
        assert purgatory.parked == 0


@pytest.mark.parametrize("is_raising", [False, True])
async def test_a_predicate_that_ends_its_own_operation(
    purgatory: Purgatory, *, is_raising: bool
) -> None:
    """What it raises or returns after that changes nothing: the first end counts."""
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


async def test_cursors_one_for_each_key(purgatory: Purgatory) -> None:
    """A key without one, or with None, counts from now on."""
    start = (await purgatory.park("a", timeout=0)).cursor
    for key in "abc":
        await purgatory.fire(key, key)
    choices: list[tuple[Mapping[str, str | None], str | None]] = [
        ({"b": start}, "b"),
        ({"a": None, "c": start}, "c"),
        ({"b": "0", "c": "0"}, "b"),
        ({}, None),
    ]
    for cursor, expected in choices:
        outcome = await purgatory.park("a", "b", "c", timeout=1, cursor=cursor)
        assert (outcome.key, outcome.value) == (expected, expected)


@cases("cursor", [5, b"0", 0.5, ["0"], {"a": 5}, {"a": b"0"}])
async def test_a_cursor_of_the_wrong_type_is_a_type_error(
    purgatory: Purgatory, cursor: Any
) -> None:
    """As every argument of the wrong type is."""
    with pytest.raises(TypeError):
        await purgatory.park("a", timeout=1, cursor=cursor)


async def test_what_fires_after_the_cursor_was_taken_counts(purgatory: Purgatory) -> None:
    """Also if it fires before the wait begins, on whichever of the keys."""
    await purgatory.fire("a", "before")
    since = purgatory.cursor("a")
    await purgatory.fire("a", "between")
    outcome = await purgatory.park("a", timeout=0, cursor=since)
    assert (outcome.status, outcome.value) == (Status.FIRED, "between")
    since = purgatory.cursor("a", "b")
    await purgatory.fire("b", "on another key")
    outcome = await purgatory.park("a", "b", timeout=0, cursor=since)
    assert (outcome.key, outcome.value) == ("b", "on another key")


async def test_bad_keys_and_misuse_are_refused(make_purgatory: Make) -> None:
    """As `park` refuses them: a cursor that no wait can use helps nobody."""
    async with make_purgatory(limits=Limits(max_keys_per_operation=2)) as purgatory:
        with pytest.raises(InvalidKeyError):
            purgatory.cursor("")
        for keys in ((), ("a", "b", "c")):
            with pytest.raises(ValueError, match="1 to 2"):
                purgatory.cursor(*keys)
        with pytest.raises(WrongThreadError):
            await asyncio.to_thread(purgatory.cursor, "a")
    with pytest.raises(PurgatoryClosedError):
        purgatory.cursor("a")


# Cost


async def test_parking_makes_no_task_and_arms_one_timer(make_purgatory: Make) -> None:
    """Thousands wait on the tasks of their callers, and the loop has one timer for all."""
    loop = asyncio.get_running_loop()
    scheduled: list[asyncio.TimerHandle] = loop._scheduled  # type: ignore[attr-defined] # no public way
    async with make_purgatory() as purgatory:
        tasks_before = len(asyncio.all_tasks())
        tasks = [
            asyncio.create_task(purgatory.park(f"key {number % 100}", timeout=30 + number / 1_000))
            for number in range(3_000)
        ]
        await asyncio.sleep(0)
        assert purgatory.parked == 3_000
        assert len(asyncio.all_tasks()) == tasks_before + 3_000
        assert sum(not handle.cancelled() for handle in scheduled) == 1
        for number in range(100):
            await purgatory.fire(f"key {number}")
        assert {outcome.status for outcome in await asyncio.gather(*tasks)} == {Status.FIRED}
        # Those who were cancelled left it alone: one handle still, for nobody.
        assert sum(not handle.cancelled() for handle in scheduled) == 1
    assert sum(not handle.cancelled() for handle in scheduled) == 0


async def test_a_purgatory_that_waits_for_nothing_arms_nothing(make_purgatory: Make) -> None:
    """Once the last deadline has come and the history is too old, the loop can sleep for ever."""
    async with make_purgatory(limits=Limits(max_signal_age=60)) as purgatory:
        await purgatory.park("a", timeout=1)
        await purgatory.fire("a")
        assert purgatory.statistics().timers == 1
        await asyncio.sleep(300)
        counts = purgatory.statistics()
        assert (counts.timers, counts.signals.signals) == (0, 0)
        await asyncio.sleep(300)
        assert purgatory.statistics().wake_ups == counts.wake_ups


async def test_statistics_are_exact(purgatory: Purgatory) -> None:
    """Of now and since the start."""
    tasks = [
        await parked(purgatory, "a", "b", timeout=10),
        await parked(purgatory, "b", timeout=1),
        await parked(purgatory, "c", timeout=100),
        await parked(purgatory, "d", timeout=100),
        await parked(purgatory, "e", timeout=100),
    ]
    counts = purgatory.statistics()
    assert (counts.parked, counts.watched, counts.keys, counts.timers) == (5, 6, 5, 5)
    assert sum(level.tasks for level in counts.levels) == 5
    assert counts.levels[0].tick_ms == 1
    assert outcomes(purgatory) == (0, 0, 0, 0)
    assert (purgatory.waiting("b"), purgatory.waiting("x")) == (2, 0)
    await tasks[1]
    await purgatory.fire("a", "12")
    await purgatory.cancel("c")
    tasks[4].cancel()
    await asyncio.wait(tasks[:3] + tasks[4:])
    assert outcomes(purgatory) == (1, 1, 2, 0)
    await purgatory.drain()
    counts = purgatory.statistics()
    assert outcomes(purgatory) == (1, 1, 2, 1)
    assert (counts.parked, counts.watched, counts.keys) == (0, 0, 0)
    # The timer that is left is that of the history.
    assert (counts.timers, counts.signals.signals, counts.signals.bytes) == (1, 1, 4)
    assert (counts.longest_lateness_ms, counts.is_draining) == (0, True)
    await tasks[3]


async def test_what_ran_late_is_in_the_statistics(purgatory: Purgatory) -> None:
    """The longest lateness of a timer, and for how long expirations held the loop."""
    clock = current_clock()
    task = await parked(purgatory, "a", timeout=1)
    clock.advance(1_007)
    assert (await task).waited_ms == 1_007
    counts = purgatory.statistics()
    assert (counts.longest_lateness_ms, counts.longest_turn_ms) == (7, 0)
    operation = Waiting(1_000)
    operation.then = lambda: clock.advance(250)
    assert not purgatory.park_operation(operation, ["b"])
    task = await parked(purgatory, "a", timeout=1)
    await task
    assert operation.is_completed
    counts = purgatory.statistics()
    assert (counts.longest_lateness_ms, counts.longest_turn_ms) == (250, 250)
