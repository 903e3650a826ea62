"""Signals in memory, by a clock that stands still."""

from collections.abc import Callable

import pytest

from purgatory.signals import MemorySignals
from purgatory.testing import MockClock


@pytest.fixture
def make(clock: MockClock) -> Callable[..., MemorySignals]:
    def make_signals(**bounds: int) -> MemorySignals:
        return MemorySignals(clock=clock, **bounds)

    return make_signals


@pytest.fixture
def signals(make: Callable[..., MemorySignals]) -> MemorySignals:
    return make()
