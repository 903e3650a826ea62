"""At the bounds of MemorySignals: whose signals make way, and which keys are forgotten."""

from __future__ import annotations

import tracemalloc

from purgatory.signals import MemorySignals
from purgatory.testing import MockClock
from tests.cases import cases


def bounded(**bounds: int) -> MemorySignals:
    return MemorySignals(clock=MockClock(), **bounds)


def kept(signals: MemorySignals, *owners: str | None) -> list[list[object]]:
    return [[signal.value for signal in signals.read(f"of {owner}", 0, 99)] for owner in owners]


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
