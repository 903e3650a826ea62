"""What fired, in order, with cursors: so that nothing is lost between two waits."""

from purgatory.signals.base import Signals, SignalStatistics
from purgatory.signals.memory import MemorySignals
from purgatory.signals.signal import Signal

__all__ = ["MemorySignals", "Signal", "SignalStatistics", "Signals"]
