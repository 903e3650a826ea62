"""The table that the demonstration prints."""

from __future__ import annotations

from examples.acks_all.schemas import PartitionState
from purgatory.timer import Clock, SystemClock

NS_PER_MS = 1_000_000


class Table:
    """Prints rows: time, event, high watermark, in-sync replicas, latency."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        """Start the clock of the table."""
        self._clock: Clock = SystemClock() if clock is None else clock
        self._start_ms = self.now_ms()
        self.failures: list[str] = []

    def now_ms(self) -> int:
        """Return the monotonic time in milliseconds, for latencies."""
        return self._clock.now_ns() // NS_PER_MS

    def head(self) -> None:
        """Print the header."""
        self._print("time", "event", "high watermark", "ISR", "latency")

    def row(self, event: str, state: PartitionState, latency_ms: int | None = None) -> None:
        """Print an event and the resulting state."""
        self._print(
            f"{(self.now_ms() - self._start_ms) / 1000:.2f} s",
            event,
            str(state.high_watermark),
            " ".join(map(str, state.isr)),
            "" if latency_ms is None else f"{latency_ms} ms",
        )

    def expect(self, is_met: bool, expectation: str) -> None:
        """Print and record an expectation that is not met."""
        if not is_met:
            self.failures.append(expectation)
            print(f"        NOT MET: {expectation}", flush=True)

    def _print(self, time: str, event: str, high_watermark: str, isr: str, latency: str) -> None:
        print(f"{time:>7}  {event:<66}{high_watermark:>14}  {isr:<6}{latency:>9}", flush=True)
