"""Parked calls and what ends them: fires, deadlines, cancellations, drains. In virtual time."""

import asyncio
from datetime import UTC, datetime
from enum import StrEnum

import pytest
from pydantic import BaseModel

from purgatory import DelayedOperation, Limits, Outcome, Status
from purgatory.operations import OperationEvent
from tests.cases import cases
from tests.unit.purgatory.waiting import Make, now_ms, parked

# Parking and firing


async def test_a_parked_call_is_fired(make_purgatory: Make) -> None:
    """It returns the key, the value, a cursor to go on with, and how long it was parked."""
    async with make_purgatory() as purgatory:
        task = await parked(purgatory, "order:42:paid", "order:42:failed", timeout=25)
        await asyncio.sleep(1.5)
        fired = await purgatory.fire("order:42:paid", {"by": "card"})
        outcome = await task
        assert (fired.completed, fired.seq, fired.jobs, fired.jobs_pending) == (1, 1, 0, False)
        assert outcome == Outcome(
            Status.FIRED, "order:42:paid", {"by": "card"}, fired.cursor, 1_500
        )
        assert outcome.is_fired and outcome
        assert (purgatory.parked, purgatory.watched_keys()) == (0, {})


async def test_a_parked_call_expires(make_purgatory: Make) -> None:
    """At its deadline, with a cursor to go on with."""
    async with make_purgatory() as purgatory:
        began_ms = now_ms()
        outcome = await purgatory.park("key", timeout=2.5)
        assert now_ms() - began_ms == 2_500
        assert outcome == Outcome(Status.EXPIRED, None, None, outcome.cursor, 2_500)
        assert not outcome.is_fired and not outcome
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


@cases(
    "value, expected",
    [((1, 2), "[1, 2]"), ({1: "a"}, "{'1': 'a'}"), (Status.FIRED, "'fired'"), (0.5, "0.5")],
)
async def test_a_value_is_as_json_has_it(
    make_purgatory: Make, value: object, expected: str
) -> None:
    """Whether or not a key has fired since."""
    async with make_purgatory() as purgatory:
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


# Mistakes


async def test_a_pydantic_model_is_fired_as_json(make_purgatory: Make) -> None:
    """Every waiter gets the values that the model dumps, like a watcher over HTTP."""
    async with make_purgatory() as purgatory:
        task = await parked(purgatory, "a")
        await purgatory.fire("a", Payment(by="card", at=datetime(2027, 1, 1, tzinfo=UTC)))
        assert (await task).value == {"by": "card", "at": "2027-01-01T00:00:00Z"}
        [signal] = purgatory.signals.read("a", 0, 1)
        assert signal.encoded == b'{"by":"card","at":"2027-01-01T00:00:00Z"}'


class Payment(BaseModel):
    by: str
    at: datetime
