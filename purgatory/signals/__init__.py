"""What fired, in order, with cursors: so that nothing is lost between two waits."""

from purgatory.signals.base import Signal, Signals, SignalStatistics
from purgatory.signals.memory import MemorySignals

__all__ = ["MemorySignals", "Signal", "SignalStatistics", "Signals"]
