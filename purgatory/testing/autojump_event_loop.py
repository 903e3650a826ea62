"""An event loop that never sleeps (trio: autojump)."""

from __future__ import annotations

import asyncio
import selectors

from purgatory.testing.mock_clock import MockClock
from purgatory.testing.working_threads import Activity, WorkingThreads
from purgatory.timer.clock import SystemClock
from purgatory.timer.seconds import Seconds, seconds_of

# Real seconds between two looks at threads that are at work.
_PAUSE_S = 0.001
# Jumps in one run: those of an idle worker in 47 days, which take 10 to 20 s of real time.
_MAX_JUMPS = 1_000_000
_NS_PER_DAY = 86_400_000_000_000
# Looks in a row that find threads waiting which have run in between: they wait with short timeouts.
_MAX_UNSURE = 5


class DeadlockError(RuntimeError):
    """Every task waits, and no event can resume one, or none has for too many jumps."""


class _AutojumpSelector(selectors.DefaultSelector):
    """Polls files in real time; instead of waiting for a timer it advances the clock."""

    def __init__(self, clock: MockClock, patience: float, max_jumps: int) -> None:
        super().__init__()
        self._clock = clock
        self._patience = patience
        self._max_jumps = max_jumps
        self.begin()
        self._threads = WorkingThreads()

    def begin(self) -> None:
        """Count the jumps of a new run."""
        self._jumps = 0
        self._begun_ns = self._clock.now_ns()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if timeout is None:
            # Only another thread or a peer can wake the loop now: wait for them in real time.
            events = super().select(self._patience)
            if not events:
                raise DeadlockError(
                    f"nothing happened in {self._patience:g} s, and no timer is armed: a wake-up "
                    "was lost, or a task waits for something that never happens"
                )
            return events
        events = self._events_of_threads()
        if events:
            return events
        self._count_jump()
        # Rounded up: otherwise the loop would select again for nearly zero seconds.
        self._clock.advance_ns(max(1, -int(-timeout * 1_000_000_000 // 1)))
        return events

    def _count_jump(self) -> None:
        self._jumps += 1
        if self._jumps > self._max_jumps:
            days = (self._clock.now_ns() - self._begun_ns) / _NS_PER_DAY
            raise DeadlockError(
                f"the clock jumped {self._max_jumps} times, over {days:.1f} days, and the test has "
                "not ended: it may wait for something that never happens, while a worker polls its "
                "store; bound the wait, as with asyncio.timeout(3600), which takes no real time, "
                "or allow more with AutojumpEventLoop(max_jumps=...)"
            )

    def _events_of_threads(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait in real time while threads are at work; return what has happened."""
        real, deadline, unsure = SystemClock(), None, 0
        self._threads.begin()
        while (activity := self._threads.activity()) is not Activity.WAITING:
            unsure = unsure + 1 if activity is Activity.UNSURE else 0
            if unsure > _MAX_UNSURE:
                break
            events = super().select(_PAUSE_S)
            if events:
                return events
            if deadline is None:
                deadline = real.now_ns() + round(self._patience * 1_000_000_000)
            elif real.now_ns() >= deadline:
                self._threads.ignore()
                break
        return []


def current_clock() -> MockClock:
    """Return the clock of the running AutojumpEventLoop; raise RuntimeError if another one runs."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, AutojumpEventLoop):
        raise RuntimeError(
            f"{loop!r} has no clock of its own: run the test on an AutojumpEventLoop"
        )
    return loop.clock


class AutojumpEventLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop on a MockClock, which jumps to the next timer when it is idle.

    The clock stands still while a thread is at work that began after the loop: a call of
    `asyncio.to_thread`, a handler or an endpoint that is a plain function, a query of aiosqlite.
    Real sockets work, but their time is not virtual: while only timers are pending, the clock jumps
    without waiting for them. The end of the loop waits for its threads.
    """

    def __init__(
        self,
        clock: MockClock | None = None,
        *,
        patience: Seconds = 5.0,
        max_jumps: int = _MAX_JUMPS,
    ) -> None:
        """Run on `clock`; wait `patience` real seconds for other threads.

        Then the clock moves all the same; if no timer is armed, DeadlockError is raised. It is also
        raised after `max_jumps` in one run: a worker of jobs polls its store for ever, so that
        there always is a timer.
        """
        # Before super().__init__, which reads the time.
        self.clock: MockClock = MockClock() if clock is None else clock
        self._jumping = _AutojumpSelector(self.clock, seconds_of(patience), max_jumps)
        super().__init__(self._jumping)

    def run_forever(self) -> None:
        """Run until `stop`, as each `run_until_complete` does."""
        self._jumping.begin()
        super().run_forever()

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self.clock.now_ns() / 1_000_000_000

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait in real time for the threads of `run_in_executor` to end.

        `timeout`, which Python 3.12 and later pass, is virtual time and would expire immediately.
        """
        await super().shutdown_default_executor()
