"""How long the turns of an event loop are."""

from __future__ import annotations

import asyncio
import selectors

from tests.benchmarks.comparison.process import thread_cpu_ns


class TurnSelector(selectors.DefaultSelector):
    """Notes the longest CPU time of the loop's own thread from one sleep to the next.

    By the clock on the wall, every other process that gets its time slice would be a long turn.
    """

    def __init__(self) -> None:
        super().__init__()
        self.longest_ns = 0
        self._began_ns = thread_cpu_ns()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """End a turn, wait as ever, and begin the next."""
        self.longest_ns = max(self.longest_ns, thread_cpu_ns() - self._began_ns)
        events = super().select(timeout)
        self._began_ns = thread_cpu_ns()
        return events


class TurnLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose longest turn is known."""

    def __init__(self) -> None:
        self.turns = TurnSelector()
        super().__init__(self.turns)

    def forget(self) -> None:
        """Begin anew: importing and compiling were no turns of a service."""
        self.turns.longest_ns = 0

    @property
    def longest_ms(self) -> float:
        """The longest turn that has ended."""
        return self.turns.longest_ns / 1_000_000
