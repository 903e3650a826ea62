"""Cursors: what was missed, what has expired, and what is none."""

from collections.abc import Mapping
from typing import Any

import pytest

from purgatory import BadCursorError, CursorExpiredError, Limits, Status
from tests.cases import cases
from tests.unit.purgatory.waiting import Make


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


async def test_a_cursor_of_another_purgatory_has_expired(make_purgatory: Make) -> None:
    """As after a restart: what it stands for is not known here."""
    async with make_purgatory() as purgatory, make_purgatory() as other:
        cursor = (await other.fire("a")).cursor
        with pytest.raises(CursorExpiredError, match="before a restart"):
            await purgatory.park("a", timeout=1, cursor=cursor)


@cases("cursor", ["", "nonsense", "1", "999999999999-1 "])
async def test_a_bad_cursor_is_an_error(make_purgatory: Make, cursor: str) -> None:
    """Alone and in a mapping."""
    async with make_purgatory() as purgatory:
        for given in (cursor, {"a": cursor}):
            with pytest.raises(BadCursorError):
                await purgatory.park("a", timeout=1, cursor=given)


@cases("cursor", [5, b"0", 0.5, ["0"], {"a": 5}, {"a": b"0"}])
async def test_a_cursor_of_the_wrong_type_is_a_type_error(
    make_purgatory: Make, cursor: Any
) -> None:
    """As every argument of the wrong type is."""
    async with make_purgatory() as purgatory:
        with pytest.raises(TypeError):
            await purgatory.park("a", timeout=1, cursor=cursor)
