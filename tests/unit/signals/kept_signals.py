"""What is kept of signals."""

from purgatory.signals import MemorySignals


def values(signals: MemorySignals, key: str) -> list[object]:
    """Everything that is kept of a key."""
    return [signal.value for signal in signals.read(key, 0, 1_000_000)]


def kept(signals: MemorySignals) -> tuple[int, int, int]:
    """Signals, bytes, keys."""
    statistics = signals.statistics()
    return statistics.signals, statistics.bytes, statistics.keys
