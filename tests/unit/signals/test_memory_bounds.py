"""At the bounds of MemorySignals: whose signals make way, and which keys are forgotten."""

from __future__ import annotations

import tracemalloc

import pytest

from purgatory.errors import InvalidValueError
from purgatory.signals import MemorySignals
from purgatory.testing import MockClock
from tests.cases import cases


def bounded(**bounds: int) -> MemorySignals:
    return MemorySignals(clock=MockClock(), **bounds)


def fire(signals: MemorySignals, owner: str | None, *values: object) -> None:
    """Fire values on a key of each owner's own."""
    for value in values:
        signals.append(f"of {owner}", value, owner)


def kept(signals: MemorySignals, *owners: str | None) -> list[list[object]]:
    return [[signal.value for signal in signals.read(f"of {owner}", 0, 99)] for owner in owners]


@cases("size, is_taken", [(64 * 1024, True), (64 * 1024 + 1, False)])
def test_a_value_has_up_to_64_kib_by_default(size: int, is_taken: bool) -> None:
    """As JSON, with its quotes."""
    value = "x" * (size - 2)
    if is_taken:
        assert bounded().append("k", value).value == value
    else:
        with pytest.raises(InvalidValueError, match="more than the limit of 65536"):
            bounded().append("k", value)


def test_an_owner_with_an_equal_part_makes_way_for_itself() -> None:
    """Two of six, of three owners, are enough to trim the own oldest signal."""
    signals = bounded(max_signals=5)
    fire(signals, "a", 1, 2)
    fire(signals, "b", 3, 4)
    fire(signals, "c", 5, 6)
    assert kept(signals, "a", "b", "c") == [[1, 2], [3, 4], [6]]


@cases("owner", ["b", None])
def test_others_make_way_for_the_only_signal_of_an_owner(owner: str | None) -> None:
    """However large it is: trimmed at once, it would reach nobody."""
    signals = bounded(max_bytes=10, max_value_bytes=10)
    fire(signals, "a", 1, 2)
    fire(signals, owner, "12345678")
    assert kept(signals, "a", owner) == [[], ["12345678"]]


@cases("max_bytes, counts", [(25, [2, 2]), (24, [1, 3])])
def test_shares_are_of_what_is_full(max_bytes: int, counts: list[int]) -> None:
    """Of the number of signals if there are too many, unless their bytes are too many."""
    signals = bounded(max_signals=4, max_bytes=max_bytes, max_value_bytes=20)
    fire(signals, "a", "123456789", "123456789")
    fire(signals, "b", 1, 2, 3)
    assert [len(values) for values in kept(signals, "a", "b")] == counts


@cases("by_bytes", [True, False])
def test_the_largest_share_makes_way(*, by_bytes: bool) -> None:
    """Of bytes if these are too many, else of signals: whoever came first, and whoever fires."""
    bounds = {"max_bytes": 30} if by_bytes else {"max_signals": 7}
    for owners in (("large", "many"), ("many", "large")):
        signals = bounded(**bounds, max_value_bytes=20)
        for owner in owners:
            if owner == "large":
                fire(signals, owner, "12345678", "12345678")
            else:
                fire(signals, owner, 1, 2, 3, 4, 5)
        fire(signals, "new", *(["1234567"] if by_bytes else [7]))
        left = [len(values) for values in kept(signals, "large", "many", "new")]
        assert left == ([1, 5, 1] if by_bytes else [2, 4, 1])


@cases("keys, forgotten", [(6, 0), (7, 1), (8, 2)])
def test_twice_as_many_keys_as_signals_are_remembered(keys: int, forgotten: int) -> None:
    """Of keys that are not, cursors from before the last signal of the last one are expired."""
    signals = bounded(max_signals=3)
    for number in range(keys):
        signals.append(f"key {number}", number)
    assert signals.earliest("another") == forgotten


def test_a_dropped_value_takes_no_memory() -> None:
    """Not even if it was the last one that was fired or read."""
    signals = bounded(max_bytes=10_000_000, max_value_bytes=10_000_000)
    tracemalloc.start()
    try:
        signals.append("k", "x" * 5_000_000)
        signals.drop("k")
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 500_000


def test_dropping_everything_leaves_nothing() -> None:
    """All cursors are expired, of whatever key; what fires later is behind them."""
    signals = bounded(max_signals=3)
    fire(signals, "a", 1)
    fire(signals, "b", 2)
    signals.drop("of b")
    signals.drop_all(10)
    statistics = signals.statistics()
    assert (statistics.signals, statistics.bytes, statistics.keys) == (0, 0, 0)
    assert (
        {signals.earliest(key) for key in ("of a", "of b", "another")} == {signals.head()} == {10}
    )
    assert signals.append("of a", 3).offset == 11
    assert signals.statistics().keys == 1
