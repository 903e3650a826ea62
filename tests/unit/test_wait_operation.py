"""The parts of WaitOperation that no law covers."""

import pytest

from purgatory.signals import ANY, Condition, MemorySignals, WaitOperation
from purgatory.testing import MockClock


@pytest.fixture
def signals(clock: MockClock) -> MemorySignals:
    return MemorySignals(clock=clock)


def test_a_wait_for_any_key_is_the_default(signals: MemorySignals) -> None:
    """One signal on one of the keys is enough."""
    wait = WaitOperation(1, signals, ("a", "b"), 0)
    assert wait.condition is ANY and (ANY.min_signals, ANY.needed_keys) == (1, 1)
    assert wait.positions == (0, 0)


def test_positions_of_their_own(signals: MemorySignals) -> None:
    """A position for each key is kept; of one key, as if it were for all."""
    assert WaitOperation(1, signals, ("a", "b"), (3, 5)).positions == (3, 5)
    single = WaitOperation(1, signals, ("a",), (3,))
    assert (single.positions, single.position) == ((3,), 3)


def test_a_dropped_history_meets_a_condition(signals: MemorySignals) -> None:
    """What is gone counts, however many signals were wanted."""
    signals.append("a", None)
    wait = WaitOperation(1, signals, ("a",), 0, Condition(min_signals=3))
    assert not wait.try_complete()
    signals.drop("a")
    with pytest.raises(NotImplementedError, match=r"WaitOperation does not define on_complete\(\)"):
        wait.try_complete()
