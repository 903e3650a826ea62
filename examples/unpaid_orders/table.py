"""The table that the demonstration prints."""

from __future__ import annotations

from collections.abc import Iterable

from purgatory.timer import Clock, SystemClock

NS_PER_MS = 1_000_000


class Table:
    """Prints rows: time, event, orders, parked operations, connections in use."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        """Start the clock of the table."""
        self._clock: Clock = SystemClock() if clock is None else clock
        self._start_ms = self.now_ms()
        self.failures: list[str] = []

    def now_ms(self) -> int:
        """Return the monotonic time in milliseconds."""
        return self._clock.now_ns() // NS_PER_MS

    def head(self, names: Iterable[str]) -> None:
        """Print the header."""
        self._print("time", "event", names, "parked", "connections")

    def row(self, event: str, states: Iterable[str], parked: str, connections: str) -> None:
        """Print an event and the resulting state."""
        seconds = (self.now_ms() - self._start_ms) / 1000
        self._print(f"{seconds:.2f} s", event, states, parked, connections)

    def expect(self, is_met: bool, expectation: str) -> None:
        """Print and record an expectation that is not met."""
        if not is_met:
            self.failures.append(expectation)
            print(f"        NOT MET: {expectation}", flush=True)

    def _print(
        self, time: str, event: str, states: Iterable[str], parked: str, connections: str
    ) -> None:
        columns = "".join(f"{state:<11}" for state in states)
        print(f"{time:>7}  {event:<44}  {columns}{parked:>6}{connections:>12}", flush=True)
