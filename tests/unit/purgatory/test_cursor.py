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
