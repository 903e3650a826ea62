"""Listeners and operations of one's own."""

import asyncio
from typing import Any

import pytest

from purgatory import (
    InvalidKeyError,
    LimitReachedError,
    Limits,
    Status,
)
from purgatory.operations import OperationEvent
from tests.cases import cases
from tests.unit.purgatory.waiting import Make, Waiting, now_ms, parked


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


async def test_an_operation_of_ones_own(make_purgatory: Make) -> None:
    """Is watched until it completes, by a check or by its deadline."""
    async with make_purgatory() as purgatory:
        checked, expiring, done = Waiting(), Waiting(20), Waiting()
        assert not purgatory.park_operation(checked, ["a"])
        assert not purgatory.park_operation(expiring, iter(["a", "b"]))
        done.completable = checked.completable = True
        assert purgatory.park_operation(done, ["a"])
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
        assert not purgatory.park_operation(operation, ["b"])
        for _ in range(5):
            await asyncio.sleep(0)
        assert (operation.status, now_ms()) == (Status.EXPIRED, began_ms)
        await purgatory.fire("a")
        await task


@cases("key, error", [("", InvalidKeyError), (b"k", TypeError)])
async def test_park_operation_checks_each_key(
    make_purgatory: Make, key: Any, error: type[Exception]
) -> None:
    """As `park` does: nobody could fire them."""
    async with make_purgatory() as purgatory:
        with pytest.raises(error, match="key"):
            purgatory.park_operation(Waiting(), ["a", key])
        assert purgatory.watched_keys() == {}


@cases("keys", ["abc", None, 42])
async def test_park_operation_takes_lists_of_keys_only(make_purgatory: Make, keys: Any) -> None:
    """`"abc"` would be watched as three keys of one letter."""
    async with make_purgatory() as purgatory:
        with pytest.raises(TypeError, match=f"keys is .*{keys}.*: give a list of keys, such as"):
            purgatory.park_operation(Waiting(), keys)
        assert purgatory.watched_keys() == {}


async def test_watch_keeps_to_the_number_of_keys(make_purgatory: Make) -> None:
    """`max_keys_per_operation` holds for every operation."""
    async with make_purgatory(limits=Limits(max_keys_per_operation=2)) as purgatory:
        with pytest.raises(ValueError, match="2"):
            purgatory.park_operation(Waiting(), ["a", "b", "c"])
        assert purgatory.watched_keys() == {}


async def test_watch_may_be_exempt_from_the_bounds(make_purgatory: Make) -> None:
    """For what the application itself cannot do without, however many are parked."""
    async with make_purgatory(limits=Limits(max_parked=1)) as purgatory:
        task = await parked(purgatory, "a")
        operation = Waiting()
        with pytest.raises(LimitReachedError):
            purgatory.park_operation(operation, ["a"])
        assert not purgatory.park_operation(operation, ["a"], is_bounded=False)
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
            purgatory.park_operation(Waiting(), ["c"])
        purgatory.count_refusal("a bound of our own")
        found = purgatory.statistics().refused
        assert found == {"max_parked_per_key": 1, "max_parked": 2, "a bound of our own": 1}
        # A picture of one moment.
        purgatory.count_refusal("a bound of our own")
        assert found["a bound of our own"] == 1
        await purgatory.drain()
        await asyncio.gather(*tasks)
