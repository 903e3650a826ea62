"""Purgatory: park, fire, cancel, drain, and what it refuses. In virtual time."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from enum import StrEnum
from typing import Any

import pytest

from purgatory import (
    BadCursorError,
    CursorExpiredError,
    DelayedOperation,
    InvalidKeyError,
    InvalidTimeoutError,
    InvalidValueError,
    LimitReachedError,
    Limits,
    OperationEvent,
    Outcome,
    Purgatory,
    PurgatoryClosedError,
    Status,
    WrongThreadError,
)
from purgatory.testing import AutojumpEventLoop

Make = Callable[..., Purgatory]
Parked = asyncio.Task[Outcome]


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Run the async tests of this file in virtual time."""
    return "asyncio", {"loop_factory": AutojumpEventLoop}


class Waiting(DelayedOperation):
    """An operation of a user's own: completes once it is `completable`."""

    def __init__(self, delay_ms: int = 1_000) -> None:
        super().__init__(delay_ms)
        self.completable = False
        self.then: Callable[[], object] = lambda: None

    def try_complete(self) -> bool:
        return self.completable and self.force_complete()

    def on_complete(self) -> None:
        self.then()


async def parked(purgatory: Purgatory, *keys: str, timeout: float = 60, **options: Any) -> Parked:
    """A task that is parked by now."""
    before = purgatory.parked
    task = asyncio.create_task(purgatory.park(*keys, timeout=timeout, **options))
    await asyncio.sleep(0)
    assert purgatory.parked == before + 1
    return task


def now_ms() -> int:
    return round(asyncio.get_running_loop().time() * 1_000)


def outcomes(purgatory: Purgatory) -> tuple[int, int, int, int]:
    """How many fired, expired, were cancelled, were drained."""
    counts = purgatory.statistics()
    return counts.fired, counts.expired, counts.cancelled, counts.drained


# Parking and firing


async def test_a_parked_call_is_fired(make_purgatory: Make) -> None:
    """It returns the key, the value, a cursor to go on with, and how long it was parked."""
    async with make_purgatory() as purgatory:
        task = await parked(purgatory, "order:42:paid", "order:42:failed", timeout=25)
        await asyncio.sleep(1.5)
        fired = await purgatory.fire("order:42:paid", {"by": "card"})
        outcome = await task
        assert (fired.completed, fired.seq) == (1, 1)
        assert outcome == Outcome(
            Status.FIRED, "order:42:paid", {"by": "card"}, fired.cursor, 1_500
        )
        assert outcome.is_fired
        assert (purgatory.parked, purgatory.watched_keys()) == (0, {})


async def test_a_parked_call_expires(make_purgatory: Make) -> None:
    """At its deadline, with a cursor to go on with."""
    async with make_purgatory() as purgatory:
        began_ms = now_ms()
        outcome = await purgatory.park("key", timeout=2.5)
        assert now_ms() - began_ms == 2_500
        assert outcome == Outcome(Status.EXPIRED, None, None, outcome.cursor, 2_500)
        assert not outcome.is_fired
        await purgatory.fire("key", "later")
        again = await purgatory.park("key", timeout=1, cursor=outcome.cursor)
        assert (again.value, again.waited_ms) == ("later", 0)


async def test_a_parked_call_is_cancelled(make_purgatory: Make) -> None:
    """All of the key are, on whatever other keys; the cursor is good for another wait."""
    async with make_purgatory() as purgatory:
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


async def test_a_parked_call_is_drained(make_purgatory: Make) -> None:
    """At once, and so is whoever comes after; cursors are good for another wait."""
    async with make_purgatory() as purgatory:
        tasks = [await parked(purgatory, "a"), await parked(purgatory, "a", "b")]
        await purgatory.fire("c")
        assert await purgatory.drain() == 2
        late = await purgatory.park("a", timeout=30)
        head = purgatory.signals.cursor(purgatory.signals.head())
        for outcome in (await tasks[0], await tasks[1], late):
            assert outcome == Outcome(Status.DRAINED, None, None, head, 0)
        assert purgatory.is_draining and purgatory.statistics().is_draining


async def test_no_task_returns_before_its_time(make_purgatory: Make) -> None:
    """Never early and less than a tick late, for ticks of any length."""
    for tick_ms in (1, 7, 100):
        async with make_purgatory(tick_ms=tick_ms, wheel_size=4) as purgatory:
            for timeout in (0.001, 0.0305, 0.07, 1, 1.2345, 61):
                began = asyncio.get_running_loop().time()
                outcome = await purgatory.park("key", timeout=timeout)
                late = asyncio.get_running_loop().time() - began - timeout
                # 1 ms for the timeout itself, which is rounded up to a millisecond.
                assert -1e-9 <= late < (tick_ms + 1) / 1_000
                assert outcome.waited_ms >= timeout * 1_000 - 1e-6


async def test_firing_wakes_everybody_on_the_key_and_nobody_else(make_purgatory: Make) -> None:
    """In order of arrival, with one value for all of them."""
    async with make_purgatory() as purgatory:
        order: list[int] = []
        tasks = [await parked(purgatory, "a") for _ in range(5)]
        for number, task in enumerate(tasks):
            task.add_done_callback(lambda _, number=number: order.append(number))  # type: ignore[misc] # late binding
        other = await parked(purgatory, "b")
        value = {"shared": True}
        assert (await purgatory.fire("a", value)).completed == 5
        assert all(outcome.value is value for outcome in await asyncio.gather(*tasks))
        assert (order, other.done(), purgatory.parked) == ([0, 1, 2, 3, 4], False, 1)
        assert (await purgatory.fire("b")).completed == 1
        assert (await other).key == "b"


async def test_firing_without_anyone_waiting_is_kept(make_purgatory: Make) -> None:
    """For whoever has a cursor from before; who has none waits for what comes."""
    async with make_purgatory() as purgatory:
        before = (await purgatory.park("a", timeout=0)).cursor
        fired = [await purgatory.fire("a", number) for number in range(3)]
        assert [(f.seq, f.completed) for f in fired] == [(1, 0), (2, 0), (3, 0)]
        values: list[int] = []
        cursor = before
        while (outcome := await purgatory.park("a", timeout=1, cursor=cursor)).is_fired:
            values.append(outcome.value)
            cursor = outcome.cursor
        assert values == [0, 1, 2]
        assert (await purgatory.park("a", timeout=1)).status is Status.EXPIRED


async def test_several_keys_lose_nothing_between_them(make_purgatory: Make) -> None:
    """One cursor for all keys: what fired on any of them comes in order, once."""
    async with make_purgatory() as purgatory:
        cursor = (await purgatory.park("a", "b", timeout=0)).cursor
        for number, key in enumerate("abbcab"):
            await purgatory.fire(key, number)
        seen = []
        while (outcome := await purgatory.park("b", "a", timeout=0, cursor=cursor)).is_fired:
            seen.append((outcome.key, outcome.value))
            cursor = outcome.cursor
        assert seen == [("a", 0), ("b", 1), ("b", 2), ("a", 4), ("b", 5)]


async def test_a_signal_between_two_parks_is_not_lost(make_purgatory: Make) -> None:
    """A parked call that was fired goes on from just behind what it saw."""
    async with make_purgatory() as purgatory:
        task = await parked(purgatory, "a")
        await purgatory.fire("a", 1)
        await purgatory.fire("a", 2)
        outcome = await task
        assert outcome.value == 1
        assert (await purgatory.park("a", timeout=1, cursor=outcome.cursor)).value == 2


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


async def test_a_key_given_twice_counts_once(make_purgatory: Make) -> None:
    """It is one watch and one wake-up."""
    async with make_purgatory() as purgatory:
        task = await parked(purgatory, "a", "a")
        assert purgatory.watched_keys() == {"a": 1}
        assert (await purgatory.fire("a")).completed == 1
        await task


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


@pytest.mark.parametrize("timeout", [0, 0.0, -0.0])
async def test_a_timeout_of_zero_with_a_cursor_answers_what_fired(
    make_purgatory: Make, timeout: float
) -> None:
    """And a predicate that holds fires, too."""
    async with make_purgatory() as purgatory:
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


# Predicates


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


async def test_a_predicate_is_asked_whenever_a_key_fires(make_purgatory: Make) -> None:
    """A key that fires only makes it be tried; the one that made it true is in the outcome."""
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
        paid.add("b")
        assert len(asked) == 3 and not task.done()
        assert (await purgatory.fire("b", "second")).completed == 1
        outcome = await task
        assert (outcome.status, outcome.key, outcome.value) == (Status.FIRED, "b", "second")


async def test_a_predicate_may_be_checked_without_a_signal(make_purgatory: Make) -> None:
    """`check` tries what waits on a key, for conditions of one's own."""
    async with make_purgatory() as purgatory:
        state: list[int] = []
        task = await parked(purgatory, "a", until=lambda: state)
        assert await purgatory.check("a") == 0
        state.append(1)
        assert await purgatory.check("a") == 1
        outcome = await task
        assert (outcome.status, outcome.key, outcome.value) == (Status.FIRED, "a", None)


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
        assert not purgatory.watch(operation, ["z"])
        operation.completable = True
        await purgatory.fire("z", "of another key")
        assert (outcomes[0].status, outcomes[0].key, outcomes[0].value) == (
            Status.FIRED,
            None,
            None,
        )


async def test_a_predicate_that_never_holds_expires(make_purgatory: Make) -> None:
    """However often its key fires."""
    async with make_purgatory() as purgatory:
        task = await parked(purgatory, "a", timeout=1, until=lambda: False)
        assert [(await purgatory.fire("a")).completed for _ in range(3)] == [0, 0, 0]
        assert (await task).status is Status.EXPIRED


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("error", [ZeroDivisionError, LookupError, StopIteration])
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


# Cursors


async def test_cursors_one_for_each_key(make_purgatory: Make) -> None:
    """A key without one, or with None, counts from now on."""
    async with make_purgatory() as purgatory:
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


async def test_cursor_zero_is_the_earliest_that_is_kept(make_purgatory: Make) -> None:
    """It never expires."""
    async with make_purgatory(limits=Limits(max_signals_per_key=2)) as purgatory:
        for number in range(5):
            await purgatory.fire("a", number)
        assert (await purgatory.park("a", timeout=1, cursor="0")).value == 3
        assert (await purgatory.park("b", timeout=1, cursor="0")).status is Status.EXPIRED


async def test_an_expired_cursor_is_an_error(make_purgatory: Make) -> None:
    """It names the key, and the cursors to go on with; nothing is left behind."""
    async with make_purgatory(limits=Limits(max_signals_per_key=2)) as purgatory:
        cursor = (await purgatory.park("a", timeout=0)).cursor
        for number in range(3):
            await purgatory.fire("a", number)
        with pytest.raises(CursorExpiredError, match="no longer kept") as caught:
            await purgatory.park("b", "a", timeout=1, cursor=cursor)
        error = caught.value
        assert error.key == "a"
        assert (await purgatory.park("a", timeout=1, cursor=error.earliest)).value == 1
        head = await purgatory.park("a", timeout=1, cursor=error.head)
        assert head.status is Status.EXPIRED


async def test_a_cancelled_key_expires_its_cursors(make_purgatory: Make) -> None:
    """Cancelling drops the history."""
    async with make_purgatory() as purgatory:
        cursor = (await purgatory.fire("a")).cursor
        await purgatory.cancel("a")
        with pytest.raises(CursorExpiredError):
            await purgatory.park("a", timeout=1, cursor=cursor)
        assert (await purgatory.park("b", timeout=0, cursor=cursor)).status is Status.EXPIRED


async def test_a_cursor_of_another_purgatory_has_expired(make_purgatory: Make) -> None:
    """As after a restart: what it stands for is not known here."""
    async with make_purgatory() as purgatory, make_purgatory() as other:
        cursor = (await other.fire("a")).cursor
        with pytest.raises(CursorExpiredError, match="before a restart"):
            await purgatory.park("a", timeout=1, cursor=cursor)


@pytest.mark.parametrize("cursor", ["", "nonsense", "1", "999999999999-1 "])
async def test_a_bad_cursor_is_an_error(make_purgatory: Make, cursor: str) -> None:
    """Alone and in a mapping."""
    async with make_purgatory() as purgatory:
        for given in (cursor, {"a": cursor}):
            with pytest.raises(BadCursorError):
                await purgatory.park("a", timeout=1, cursor=given)


@pytest.mark.parametrize("cursor", [5, b"0", 0.5, ["0"], {"a": 5}, {"a": b"0"}])
async def test_a_cursor_of_the_wrong_type_is_a_type_error(
    make_purgatory: Make, cursor: Any
) -> None:
    """As every argument of the wrong type is."""
    async with make_purgatory() as purgatory:
        with pytest.raises(TypeError):
            await purgatory.park("a", timeout=1, cursor=cursor)


# Cancelling the task that waits


async def test_cancelling_the_task_takes_the_operation_out_at_once(make_purgatory: Make) -> None:
    """Before anything else happens: no watch, no timer, and the task is cancelled."""
    async with make_purgatory() as purgatory:
        task = await parked(purgatory, "a", "b")
        neighbour = await parked(purgatory, "a")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        counts = purgatory.statistics()
        assert (counts.parked, counts.watched, counts.timers, counts.cancelled) == (1, 1, 1, 1)
        assert (await purgatory.fire("a")).completed == 1
        await neighbour


async def test_cancelling_the_task_after_its_key_fired(make_purgatory: Make) -> None:
    """In the same turn of the loop: the operation has fired, the task is cancelled, no error."""
    async with make_purgatory() as purgatory:
        for fire_first in (True, False):
            task = await parked(purgatory, "a")
            if fire_first:
                assert (await purgatory.fire("a")).completed == 1
                task.cancel()
            else:
                task.cancel()
                await purgatory.fire("a")
            with pytest.raises(asyncio.CancelledError):
                await task
            assert purgatory.parked == 0


async def test_a_timeout_around_park(make_purgatory: Make) -> None:
    """Somebody else's deadline takes the operation out as well."""
    async with make_purgatory() as purgatory:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await purgatory.park("a", timeout=60)
        assert (purgatory.parked, purgatory.statistics().timers) == (0, 0)


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


async def test_an_idle_purgatory_does_not_wake_the_loop(make_purgatory: Make) -> None:
    """An hour with far timers costs as many wake-ups as the wheel has levels."""
    async with make_purgatory() as purgatory:
        tasks = [await parked(purgatory, "a", timeout=7_200 + number) for number in range(3)]
        await asyncio.sleep(3_600)
        levels = len(purgatory.statistics().levels)
        assert purgatory.statistics().wake_ups <= levels
        await purgatory.fire("a")
        await asyncio.gather(*tasks)


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


async def test_statistics_are_exact(make_purgatory: Make) -> None:
    """Of now and since the start."""
    async with make_purgatory() as purgatory:
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


async def test_listeners_hear_of_parked_calls(make_purgatory: Make) -> None:
    """The one hook for a journal and for metrics."""
    events: list[OperationEvent] = []
    async with make_purgatory(listeners=[events.append]) as purgatory:
        task = await parked(purgatory, "a", "b", timeout=5)
        await purgatory.fire("b")
        await task
        (began, ended) = events
        assert began.deadline_ms - began.at_ms == 5_000
        assert (ended.status, ended.keys, ended.key) == (Status.FIRED, ("a", "b"), "b")


# Operations of one's own


async def test_an_operation_of_ones_own(make_purgatory: Make) -> None:
    """Is watched until it completes, by a check or by its deadline."""
    async with make_purgatory() as purgatory:
        checked, expiring, done = Waiting(), Waiting(20), Waiting()
        assert not purgatory.watch(checked, ["a"])
        assert not purgatory.watch(expiring, iter(["a", "b"]))
        done.completable = checked.completable = True
        assert purgatory.watch(done, ["a"])
        assert await purgatory.check("a") == 1
        await asyncio.sleep(0.02)
        assert [o.status for o in (checked, expiring, done)] == [
            Status.FIRED,
            Status.EXPIRED,
            Status.FIRED,
        ]


async def test_an_operation_of_ones_own_without_delay(make_purgatory: Make) -> None:
    """Expires in one of the next turns of the loop, whatever else is timed."""
    async with make_purgatory() as purgatory:
        task = await parked(purgatory, "a", timeout=60)
        operation = Waiting(0)
        began_ms = now_ms()
        assert not purgatory.watch(operation, ["b"])
        for _ in range(5):
            await asyncio.sleep(0)
        assert (operation.status, now_ms()) == (Status.EXPIRED, began_ms)
        await purgatory.fire("a")
        await task


async def test_watch_takes_no_bare_string(make_purgatory: Make) -> None:
    """`"abc"` would be watched as three keys of one letter."""
    async with make_purgatory() as purgatory:
        with pytest.raises(TypeError, match="give a list of keys"):
            purgatory.watch(Waiting(), "abc")
        assert purgatory.watched_keys() == {}


async def test_watch_keeps_to_the_number_of_keys(make_purgatory: Make) -> None:
    """`max_keys_per_operation` holds for every operation."""
    async with make_purgatory(limits=Limits(max_keys_per_operation=2)) as purgatory:
        with pytest.raises(ValueError, match="2"):
            purgatory.watch(Waiting(), ["a", "b", "c"])
        assert purgatory.watched_keys() == {}


async def test_watch_may_be_exempt_from_the_bounds(make_purgatory: Make) -> None:
    """For what the application itself cannot do without, however many are parked."""
    async with make_purgatory(limits=Limits(max_parked=1)) as purgatory:
        task = await parked(purgatory, "a")
        operation = Waiting()
        with pytest.raises(LimitReachedError):
            purgatory.watch(operation, ["a"])
        assert not purgatory.watch(operation, ["a"], is_bounded=False)
        await purgatory.drain()
        assert ((await task).status, operation.status) == (Status.DRAINED, Status.DRAINED)


async def test_what_is_refused_is_counted(make_purgatory: Make) -> None:
    """By the bound that was reached, whichever way somebody would have been parked."""
    limits = Limits(max_parked=2, max_parked_per_key=1)
    async with make_purgatory(limits=limits) as purgatory:
        tasks = [await parked(purgatory, "a")]
        with pytest.raises(LimitReachedError):
            await purgatory.park("a", timeout=5)
        tasks.append(await parked(purgatory, "b"))
        with pytest.raises(LimitReachedError):
            await purgatory.park("c", timeout=5)
        with pytest.raises(LimitReachedError):
            purgatory.watch(Waiting(), ["c"])
        purgatory.count_refusal("a bound of our own")
        found = purgatory.statistics().refused
        assert found == {"max_parked_per_key": 1, "max_parked": 2, "a bound of our own": 1}
        # A picture of one moment.
        purgatory.count_refusal("a bound of our own")
        assert found["a bound of our own"] == 1
        await purgatory.drain()
        await asyncio.gather(*tasks)


async def test_watch_after_a_drain_is_refused(make_purgatory: Make) -> None:
    """An operation of one's own has no outcome to be given at once."""
    async with make_purgatory() as purgatory:
        await purgatory.drain()
        with pytest.raises(PurgatoryClosedError):
            purgatory.watch(Waiting(), ["a"])


# Opening, draining, closing


async def test_draining_twice_is_draining_once(make_purgatory: Make) -> None:
    """The second call waits for the first, and has its result."""
    async with make_purgatory() as purgatory:
        task = await parked(purgatory, "a")
        assert [await purgatory.drain() for _ in range(2)] == [1, 1]
        assert purgatory.begin_drain() is purgatory.begin_drain()
        assert (await task).status is Status.DRAINED


async def test_firing_still_works_while_draining(make_purgatory: Make) -> None:
    """Signals are kept for those who come back."""
    async with make_purgatory() as purgatory:
        await purgatory.drain()
        fired = await purgatory.fire("a", 1)
        assert (fired.seq, fired.completed) == (1, 0)
        assert await purgatory.cancel("b") == 0


async def test_it_closes_with_the_last_of_those_who_opened_it(make_purgatory: Make) -> None:
    """Each `open` needs its `close`."""
    purgatory = make_purgatory()
    is_open = [purgatory.is_open]
    purgatory.open()
    async with purgatory:
        task = await parked(purgatory, "a")
    is_open.append(purgatory.is_open)
    assert (task.done(), repr(purgatory)) == (False, "<Purgatory 'purgatory': open, 1 parked>")
    await purgatory.close()
    assert (await task).status is Status.DRAINED
    assert [*is_open, purgatory.is_open] == [False, True, False]


async def test_closing_is_idempotent(make_purgatory: Make) -> None:
    """Closing what is closed, or was never open, does nothing."""
    purgatory = make_purgatory()
    await purgatory.close()
    async with purgatory:
        pass
    await purgatory.close()
    await purgatory.close()


async def test_closing_from_two_tasks_at_once(make_purgatory: Make) -> None:
    """Both return once it is closed."""
    purgatory = make_purgatory()
    purgatory.open()
    task = await parked(purgatory, "a")
    await asyncio.gather(purgatory.close(), purgatory.close())
    assert (await task).status is Status.DRAINED


async def test_what_is_closed_is_not_opened_again(make_purgatory: Make) -> None:
    """Its history is gone: a new one is needed."""
    purgatory = make_purgatory()
    async with purgatory:
        pass
    with pytest.raises(PurgatoryClosedError, match="make a new one"):
        purgatory.open()


async def test_what_drains_is_not_opened_again(make_purgatory: Make) -> None:
    """It takes no more; whoever opens it now would never park anybody."""
    async with make_purgatory() as purgatory:
        await purgatory.drain()
        with pytest.raises(PurgatoryClosedError):
            purgatory.open()


async def test_it_is_open_on_one_loop(make_purgatory: Make) -> None:
    """Another loop is told to make its own."""
    errors: list[BaseException] = []
    async with make_purgatory() as purgatory:

        async def main() -> None:
            try:
                purgatory.open()
            except WrongThreadError as error:
                errors.append(error)

        thread = threading.Thread(target=lambda: asyncio.run(main()))
        thread.start()
        thread.join()
        assert "make one for each" in str(errors[0])


async def calls_of(purgatory: Purgatory) -> list[Callable[[], Coroutine[Any, Any, object]]]:
    """Every way in that belongs to the loop."""

    async def watch() -> None:
        purgatory.watch(Waiting(), ["a"])

    async def check() -> None:
        await purgatory.check("a")

    async def begin_drain() -> None:
        await purgatory.begin_drain()

    return [
        lambda: purgatory.park("a", timeout=1),
        lambda: purgatory.fire("a"),
        lambda: purgatory.cancel("a"),
        purgatory.drain,
        watch,
        check,
        begin_drain,
    ]


async def test_before_it_is_open_everything_is_refused(make_purgatory: Make) -> None:
    """With a word on how to open it."""
    for call in await calls_of(make_purgatory()):
        with pytest.raises(PurgatoryClosedError, match="use it inside `async with`"):
            await call()


async def test_after_it_is_closed_everything_is_refused(make_purgatory: Make) -> None:
    """Nothing can be left behind any more."""
    purgatory = make_purgatory()
    async with purgatory:
        pass
    for call in await calls_of(purgatory):
        with pytest.raises(PurgatoryClosedError):
            await call()


async def test_from_another_thread_everything_is_refused(make_purgatory: Make) -> None:
    """With a word on how to come in; nothing was changed."""
    async with make_purgatory() as purgatory:
        calls = await calls_of(purgatory)
        errors: list[str] = []

        def misuse() -> None:
            for call in calls:
                try:
                    asyncio.run(call())
                except WrongThreadError as error:
                    errors.append(str(error))

        thread = threading.Thread(target=misuse, name="the other")
        thread.start()
        thread.join()
        assert len(errors) == len(calls)
        assert all("'the other'" in error and "anyio.from_thread.run" in error for error in errors)
        assert (purgatory.parked, purgatory.signals.head(), purgatory.is_draining) == (0, 0, False)


async def test_the_body_of_async_with_may_fail(make_purgatory: Make) -> None:
    """It is closed all the same, and the error is the body's."""
    purgatory = make_purgatory()
    tasks: list[Parked] = []

    async def serve() -> None:
        async with purgatory:
            tasks.append(await parked(purgatory, "a"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await serve()
    assert (await tasks[0]).status is Status.DRAINED


async def test_many_purgatories_on_one_loop(make_purgatory: Make) -> None:
    """They know nothing of one another."""
    async with AsyncExitStack() as stack:
        purgatories = [await stack.enter_async_context(make_purgatory()) for _ in range(3)]
        tasks = [await parked(purgatory, "a", timeout=5) for purgatory in purgatories]
        await purgatories[0].fire("a")
        assert [(await task).status for task in tasks] == [
            Status.FIRED,
            Status.EXPIRED,
            Status.EXPIRED,
        ]


# What is refused


@pytest.mark.parametrize(
    "timeout",
    [float("nan"), float("inf"), -float("inf"), -1, -0.001, 1e300, 10**400],
    ids=repr,
)
async def test_a_timeout_out_of_range(make_purgatory: Make, timeout: float) -> None:
    """Is an InvalidTimeoutError, which is a ValueError, and says what is allowed."""
    async with make_purgatory() as purgatory:
        with pytest.raises(InvalidTimeoutError, match="give a number of seconds from 0 to"):
            await purgatory.park("a", timeout=timeout)


async def test_an_infinite_timeout_is_refused_whatever_the_limit(make_purgatory: Make) -> None:
    """A timeout is a finite number of seconds."""
    try:
        limits = Limits(max_timeout=float("inf"))
    except ValueError:
        return
    async with make_purgatory(limits=limits) as purgatory:
        with pytest.raises(InvalidTimeoutError):
            await purgatory.park("a", timeout=float("inf"))


@pytest.mark.parametrize("timeout", [True, False, "5", None, 1 + 0j, [1]], ids=repr)
async def test_a_timeout_that_is_no_number(make_purgatory: Make, timeout: Any) -> None:
    """Is a TypeError."""
    async with make_purgatory() as purgatory:
        with pytest.raises(TypeError, match="give seconds as a number"):
            await purgatory.park("a", timeout=timeout)


async def test_the_longest_timeout(make_purgatory: Make) -> None:
    """Is allowed, and can be cancelled."""
    async with make_purgatory() as purgatory:
        task = await parked(purgatory, "a", timeout=purgatory.limits.max_timeout)
        await purgatory.cancel("a")
        await task


@pytest.mark.parametrize("seconds", [0.07, 0.1, 2.007, 4.001, 4.35, 0.000_000_001])
def test_seconds_become_milliseconds_rounded_up(seconds: float) -> None:
    """Without the errors of binary fractions: 2.007 s is 2,007 ms, and 1 ns is 1 ms."""
    expected = max(1, round(seconds * 1_000))
    assert Purgatory().delay_ms(seconds) == expected


@pytest.mark.parametrize(
    "key", ["", "x" * 257, "a\nb", "\x00", "\x7f", "\x85", "\ud800"], ids=ascii
)
async def test_a_key_that_is_refused(make_purgatory: Make, key: str) -> None:
    """By park, fire and cancel alike, before anything is changed."""
    async with make_purgatory() as purgatory:
        for timeout in (0, 1):
            with pytest.raises(InvalidKeyError):
                await purgatory.park("good", key, timeout=timeout)
        with pytest.raises(InvalidKeyError):
            await purgatory.fire(key)
        with pytest.raises(InvalidKeyError):
            await purgatory.cancel(key)
        assert (purgatory.parked, purgatory.signals.head()) == (0, 0)


@pytest.mark.parametrize("key", ["a", "x" * 256, "a b", "é\u00a0\u200d\ue000", "🙂", "a/b?c#d%"])
async def test_a_key_that_is_allowed(make_purgatory: Make, key: str) -> None:
    """1 to 256 characters, of whatever script."""
    async with make_purgatory() as purgatory:
        task = await parked(purgatory, key)
        await purgatory.fire(key)
        assert (await task).key == key


@pytest.mark.parametrize("key", [5, None, b"a", ("a",), ["a"]], ids=repr)
async def test_a_key_that_is_no_string(make_purgatory: Make, key: Any) -> None:
    """Is a TypeError."""
    async with make_purgatory() as purgatory:
        with pytest.raises(TypeError):
            await purgatory.park(key, timeout=1)
        with pytest.raises(TypeError):
            await purgatory.fire(key)
        assert (purgatory.parked, purgatory.signals.head()) == (0, 0)


async def test_no_keys_at_all(make_purgatory: Make) -> None:
    """Nothing could ever fire it."""
    async with make_purgatory() as purgatory:
        with pytest.raises(ValueError, match="0 keys: an operation watches 1 to 100"):
            await purgatory.park(timeout=1)


async def test_a_value_that_is_refused_wakes_nobody(make_purgatory: Make) -> None:
    """Who waits goes on waiting."""
    recursive: list[object] = []
    recursive.append(recursive)
    async with make_purgatory(limits=Limits(max_value_bytes=10)) as purgatory:
        task = await parked(purgatory, "a")
        for value in (float("nan"), {1}, recursive, "x" * 9, b"x"):
            with pytest.raises(InvalidValueError):
                await purgatory.fire("a", value)
        assert (task.done(), purgatory.signals.head(), purgatory.parked) == (False, 0, 1)
        assert (await purgatory.fire("a", "x" * 8)).completed == 1
        assert (await task).value == "x" * 8


# Limits


async def test_the_limit_of_parked_operations(make_purgatory: Make) -> None:
    """One more is refused by name; a place that is left can be taken."""
    async with make_purgatory(limits=Limits(max_parked=2)) as purgatory:
        tasks = [await parked(purgatory, "a"), await parked(purgatory, "b")]
        with pytest.raises(LimitReachedError, match="2 operations wait already") as caught:
            await purgatory.park("c", timeout=1)
        assert (caught.value.limit, caught.value.maximum, purgatory.parked) == ("max_parked", 2, 2)
        with pytest.raises(LimitReachedError):
            purgatory.watch(Waiting(), ["c"])
        await purgatory.fire("a")
        tasks.append(await parked(purgatory, "c"))
        await purgatory.drain()
        await asyncio.gather(*tasks)


async def test_the_limit_of_parked_operations_on_a_key(make_purgatory: Make) -> None:
    """Another key has places of its own."""
    async with make_purgatory(limits=Limits(max_parked_per_key=2)) as purgatory:
        tasks = [await parked(purgatory, "a", "b"), await parked(purgatory, "a")]
        with pytest.raises(LimitReachedError, match="on key 'a' already") as caught:
            await purgatory.park("b", "a", timeout=1)
        assert (caught.value.limit, caught.value.maximum) == ("max_parked_per_key", 2)
        tasks.append(await parked(purgatory, "b"))
        await purgatory.drain()
        await asyncio.gather(*tasks)


async def test_the_limit_of_keys(make_purgatory: Make) -> None:
    """The same key twice is one key."""
    async with make_purgatory(limits=Limits(max_keys_per_operation=2)) as purgatory:
        with pytest.raises(ValueError, match="3 keys: an operation watches 1 to 2"):
            await purgatory.park("a", "b", "c", timeout=1)
        task = await parked(purgatory, "a", "b", "a")
        await purgatory.fire("b")
        await task


async def test_the_limit_of_a_timeout(make_purgatory: Make) -> None:
    """The limit itself is allowed."""
    async with make_purgatory(limits=Limits(max_timeout=2.5)) as purgatory:
        assert (await purgatory.park("a", timeout=2.5)).status is Status.EXPIRED
        with pytest.raises(InvalidTimeoutError, match=r"from 0 to 2\.5"):
            await purgatory.park("a", timeout=2.501)


async def test_the_limits_of_the_history(make_purgatory: Make) -> None:
    """Signals per key, in all, and bytes: what is oldest makes way."""
    for limits, kept in [
        (Limits(max_signals_per_key=2), (4, 12)),
        (Limits(max_signals=3), (3, 9)),
        (Limits(max_signal_bytes=10, max_value_bytes=10), (3, 9)),
    ]:
        async with make_purgatory(limits=limits) as purgatory:
            for key in "aaabbb":
                await purgatory.fire(key, "x")
            signals = purgatory.statistics().signals
            assert (signals.signals, signals.bytes) == kept


async def test_the_limit_of_age(make_purgatory: Make) -> None:
    """A signal is kept for that long, and a third more at most."""
    async with make_purgatory(limits=Limits(max_signal_age=60)) as purgatory:
        cursor = (await purgatory.park("a", timeout=0)).cursor
        await purgatory.fire("a", 1)
        await asyncio.sleep(60)
        assert (await purgatory.park("a", timeout=0, cursor=cursor)).value == 1
        await asyncio.sleep(20.01)
        with pytest.raises(CursorExpiredError):
            await purgatory.park("a", timeout=0, cursor=cursor)
        assert purgatory.statistics().signals.signals == 0


@pytest.mark.parametrize("name", Limits.__slots__)
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_a_limit_is_above_zero(name: str, value: float) -> None:
    """Anything else is a ValueError that names it."""
    options: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=f"{name} is .*: a limit is a finite number above zero"):
        Limits(**options)


async def test_a_signal_reaches_those_who_wait_whatever_the_bounds(make_purgatory: Make) -> None:
    """A fire that was accepted wakes who is parked, also where its value is not kept for long."""
    try:
        limits = Limits(max_signal_bytes=8)
        purgatory = make_purgatory(limits=limits)
    except ValueError:
        return
    async with purgatory:
        task = await parked(purgatory, "a", timeout=1)
        try:
            await purgatory.fire("a", "x" * 20)
        except InvalidValueError:
            await purgatory.fire("a")
        assert (await task).status is Status.FIRED
