"""A timer at Kafka's tick of 1 ms and 3 buckets, whose tasks note when they ran."""

from collections.abc import Callable
from dataclasses import dataclass

from purgatory.testing import MockClock
from purgatory.timer import SystemTimer, TimerTask

HOUR_MS = 3_600_000


class Note(TimerTask):
    """Notes its name and when it ran, then does what it was told to do."""

    def __init__(self, bench: "Bench", delay_ms: int, name: str) -> None:
        super().__init__(delay_ms)
        self.bench = bench
        self.name = name
        self.then: Callable[[], object] = lambda: None

    def run(self) -> None:
        self.bench.notes.append((self.name, self.bench.clock.wall_ms()))
        self.then()


@dataclass
class Bench:
    """A timer, its clock, and the tasks that ran, each with the time."""

    timer: SystemTimer
    clock: MockClock
    notes: list[tuple[str, int]]

    def add(self, delay_ms: int, name: str = "", then: Callable[[], object] | None = None) -> Note:
        task = Note(self, delay_ms, name)
        if then is not None:
            task.then = then
        self.timer.add(task)
        return task

    def step(self) -> int:
        """Move the clock to the next expiration and advance; return how many tasks ran."""
        next_ms = self.timer.next_expiration_ms()
        assert next_ms is not None
        self.clock.advance(max(0, next_ms - self.clock.wall_ms()))
        return self.timer.advance_clock()

    def run_out(self) -> int:
        """Step until nothing is pending; return how many steps that took."""
        steps = 0
        while len(self.timer):
            self.step()
            steps += 1
            assert steps < 1_000
        return steps

    def after(self, ms: int) -> list[str]:
        """Let time pass in one leap; return the names of what ran."""
        self.clock.advance(ms)
        before = len(self.notes)
        self.timer.advance_clock()
        return self.names()[before:]

    def names(self) -> list[str]:
        return [name for name, _ in self.notes]

    def times(self) -> list[int]:
        return [time_ms for _, time_ms in self.notes]
