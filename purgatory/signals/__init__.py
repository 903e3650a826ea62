"""Signals with cursors, so that nothing is lost between two waits.

Here: signals, their histories, and the operation that waits for them. Not here: operations without
signals (`operations`), and the purgatory that is open on an event loop (`event_loop`).
"""

from purgatory.signals.memory import MemorySignals, Signal
from purgatory.signals.model import SignalStatistics
from purgatory.signals.wait_operation import ANY, Condition, WaitOperation

__all__ = [
    "ANY",
    "Condition",
    "MemorySignals",
    "Signal",
    "SignalStatistics",
    "WaitOperation",
]
