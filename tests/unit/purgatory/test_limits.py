"""Arguments that are refused, and bounds that are reached."""

import asyncio
from dataclasses import fields
from typing import Any

import pytest

from purgatory import (
    CursorExpiredError,
    InvalidKeyError,
    InvalidTimeoutError,
    InvalidValueError,
    LimitReachedError,
    Limits,
    Purgatory,
    Status,
)
from purgatory.timer import MAX_DELAY_MS
from tests.cases import cases
from tests.unit.purgatory.waiting import Make, Waiting, parked

# What is refused


@cases("timeout", [float("nan"), float("inf"), -float("inf"), -1, -0.001, 1e300, 10**400])
async def test_a_timeout_out_of_range(make_purgatory: Make, timeout: float) -> None:
    """Is an InvalidTimeoutError, which is a ValueError, and says what is allowed."""
    async with make_purgatory() as purgatory:
        with pytest.raises(InvalidTimeoutError, match="give a number of seconds from 0 to"):
            await purgatory.park("a", timeout=timeout)


@cases("timeout", [True, False, "5", None, 1 + 0j, [1]])
async def test_a_timeout_that_is_no_number(make_purgatory: Make, timeout: Any) -> None:
    """Is a TypeError."""
    async with make_purgatory() as purgatory:
        with pytest.raises(TypeError, match="give seconds as a number"):
            await purgatory.park("a", timeout=timeout)


@cases("seconds", [0.07, 0.1, 2.007, 4.001, 4.35, 0.000_000_001])
def test_seconds_become_milliseconds_rounded_up(seconds: float) -> None:
    """Without the errors of binary fractions: 2.007 s is 2,007 ms, and 1 ns is 1 ms."""
    expected = max(1, round(seconds * 1_000))
    assert Purgatory().delay_ms(seconds) == expected


@cases("key", ["", "x" * 257, "a\nb", "\x00", "\x7f", "\x85", "\ud800"])
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
        with pytest.raises(
            LimitReachedError, match=r"2 operations wait already.*Limits\(max_parked="
        ) as caught:
            await purgatory.park("c", timeout=1)
        assert (caught.value.limit, caught.value.maximum, purgatory.parked) == ("max_parked", 2, 2)
        with pytest.raises(LimitReachedError):
            purgatory.park_operation(Waiting(), ["c"])
        await purgatory.fire("a")
        tasks.append(await parked(purgatory, "c"))
        await purgatory.drain()
        await asyncio.gather(*tasks)


@cases("character, size", [("k", 1), ("\u0439", 4), ("\U0001f511", 4)])
async def test_the_limit_of_parked_bytes(make_purgatory: Make, character: str, size: int) -> None:
    """Several keys count by the memory of their text; one more is refused, unless for one key."""
    keys = [character * 200 + str(number) for number in range(3)]
    taken = 3 * (128 + 201 * size)
    async with make_purgatory(limits=Limits(max_parked_bytes=taken)) as purgatory:
        tasks = [await parked(purgatory, *keys)]
        assert purgatory.statistics().parked_bytes == taken
        with pytest.raises(
            LimitReachedError, match=rf"take {taken} bytes.*Limits\(max_parked_bytes="
        ) as caught:
            await purgatory.park("a", "b", timeout=1)
        assert (caught.value.limit, caught.value.maximum) == ("max_parked_bytes", taken)
        with pytest.raises(LimitReachedError):
            purgatory.park_operation(Waiting(), ["a", "b"])
        tasks.append(await parked(purgatory, keys[0]))
        assert purgatory.statistics().parked_bytes == taken
        assert purgatory.statistics().refused == {"max_parked_bytes": 2}
        await purgatory.fire(keys[1])
        assert purgatory.statistics().parked_bytes == 0
        tasks.append(await parked(purgatory, "a", "b"))
        assert purgatory.statistics().parked_bytes == 258
        await purgatory.drain()
        assert purgatory.statistics().parked_bytes == 0
        await asyncio.gather(*tasks)


async def test_a_limit_of_one_operation(make_purgatory: Make) -> None:
    """The grammar is right."""
    async with make_purgatory(limits=Limits(max_parked=1)) as purgatory:
        task = await parked(purgatory, "a")
        with pytest.raises(LimitReachedError, match="1 operation waits already"):
            await purgatory.park("c", timeout=1)
        await purgatory.fire("a")
        await task


async def test_the_limit_of_parked_operations_on_a_key(make_purgatory: Make) -> None:
    """Another key has places of its own."""
    async with make_purgatory(limits=Limits(max_parked_per_key=2)) as purgatory:
        tasks = [await parked(purgatory, "a", "b"), await parked(purgatory, "a")]
        with pytest.raises(
            LimitReachedError, match=r"on key 'a' already.*Limits\(max_parked_per_key="
        ) as caught:
            await purgatory.park("b", "a", timeout=1)
        assert (caught.value.limit, caught.value.maximum) == ("max_parked_per_key", 2)
        tasks.append(await parked(purgatory, "b"))
        await purgatory.drain()
        await asyncio.gather(*tasks)


async def test_the_limit_of_keys(make_purgatory: Make) -> None:
    """The same key twice is one key."""
    async with make_purgatory(limits=Limits(max_keys_per_operation=2)) as purgatory:
        for keys, text in ((), "0 keys: .* 1 to 2.*at least one$"), ("abc", "3 keys: .*give fewer"):
            with pytest.raises(ValueError, match=text):
                await purgatory.park(*keys, timeout=1)
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


@cases("name", [each.name for each in fields(Limits)])
@cases("value", [0, -1, float("nan"), float("inf")])
def test_a_limit_is_above_zero(name: str, value: float) -> None:
    """Anything else is a ValueError that names it."""
    options: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=f"{name} is .*: a limit is a finite number above zero"):
        Limits(**options)


async def test_a_limit_of_timeouts_beyond_that_of_the_timer(make_purgatory: Make) -> None:
    """Is that of the timer, a hundred years, to the millisecond."""
    longest = MAX_DELAY_MS / 1000
    async with make_purgatory(limits=Limits(max_timeout=10 * longest)) as purgatory:
        assert purgatory.delay_ms(longest) == MAX_DELAY_MS
        task = await parked(purgatory, "a", timeout=longest)
        with pytest.raises(InvalidTimeoutError, match=f"from 0 to {longest:.0f}$"):
            await purgatory.park("a", timeout=longest + 0.001)
        await purgatory.cancel("a")
        await task


def test_what_is_kept_by_default() -> None:
    """As the documentation of the limits says."""
    limits = Limits()
    assert (limits.max_signals_per_key, limits.max_signals) == (1_000, 100_000)
    assert (limits.max_signal_age, limits.max_signal_bytes) == (600, 2**26)
    assert limits.max_value_bytes == 2**16
