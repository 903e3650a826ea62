"""`purgatory.cursor`: read a database, then wait, and miss nothing in between."""

import asyncio

import pytest

from purgatory import InvalidKeyError, Limits, PurgatoryClosedError, Status, WrongThreadError
from tests.unit.purgatory.waiting import Make


async def test_what_fires_after_the_cursor_was_taken_counts(make_purgatory: Make) -> None:
    """Also if it fires before the wait begins, on whichever of the keys."""
    async with make_purgatory() as purgatory:
        await purgatory.fire("a", "before")
        since = purgatory.cursor("a")
        await purgatory.fire("a", "between")
        outcome = await purgatory.park("a", timeout=0, cursor=since)
        assert (outcome.status, outcome.value) == (Status.FIRED, "between")
        since = purgatory.cursor("a", "b")
        await purgatory.fire("b", "on another key")
        outcome = await purgatory.park("a", "b", timeout=0, cursor=since)
        assert (outcome.key, outcome.value) == ("b", "on another key")


async def test_what_fired_before_the_cursor_was_taken_does_not_count(make_purgatory: Make) -> None:
    """The database had it already: the call is parked until its deadline."""
    async with make_purgatory() as purgatory:
        await purgatory.fire("a")
        outcome = await purgatory.park("a", timeout=1, cursor=purgatory.cursor("a"))
        assert (outcome.status, outcome.waited_ms) == (Status.EXPIRED, 1_000)


async def test_a_cursor_is_that_of_the_outcome_of_a_wait_at_the_same_time(
    make_purgatory: Make,
) -> None:
    """One kind of value, whether it comes from `cursor`, `park` or `fire`."""
    async with make_purgatory() as purgatory:
        fired = await purgatory.fire("a")
        outcome = await purgatory.park("a", timeout=0, cursor="0")
        assert purgatory.cursor("a") == fired.cursor == outcome.cursor


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
