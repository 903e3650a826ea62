"""Time under a test's control: a clock that moves when told, and an event loop that never sleeps.

    clock = MockClock()
    timer = SystemTimer(clock=clock)

    @pytest.fixture
    def anyio_backend():
        return "asyncio", {"loop_factory": AutojumpEventLoop}

On an AutojumpEventLoop, `Purgatory(clock=asyncio.get_running_loop().clock)` and `asyncio.sleep`
share one time, which jumps to the next timer whenever there is nothing else to do: an hour passes
in a millisecond. Where nothing could ever happen again, it raises instead of hanging.

Source: trio's `MockClock` with autojump.
"""

from __future__ import annotations

import asyncio
import selectors

NS_PER_MS = 1_000_000

__all__ = ["AutojumpEventLoop", "DeadlockError", "MockClock"]


class DeadlockError(RuntimeError):
    """Every task waits for something that nothing is going to do."""


class MockClock:
    """A clock that stands still until it is told to move."""

    __slots__ = ("_now_ns", "_wall_offset_ms")

    def __init__(self, start_ms: int = 0) -> None:
        """Begin at `start_ms`, of monotonic and of wall time both."""
        self._now_ns = start_ms * NS_PER_MS
        self._wall_offset_ms = 0

    def now_ns(self) -> int:
        """Return the time in nanoseconds."""
        return self._now_ns

    def wall_ms(self) -> int:
        """Return the time in milliseconds since 1970, as far as `set_wall` has moved it."""
        return self._now_ns // NS_PER_MS + self._wall_offset_ms

    def advance(self, ms: float) -> None:
        """Move forward by `ms` milliseconds; backward for a negative number, as bad clocks do."""
        self.advance_ns(round(ms * NS_PER_MS))

    def advance_ns(self, ns: int) -> None:
        """Move forward by `ns` nanoseconds."""
        self._now_ns += ns

    def set_wall(self, wall_ms: int) -> None:
        """Let the wall clock leap to `wall_ms`; monotonic time does not notice."""
        self._wall_offset_ms = wall_ms - self._now_ns // NS_PER_MS


class _AutojumpSelector(selectors.DefaultSelector):
    """Waits for files in real time while there are any, and for timers by moving the clock."""

    def __init__(self, clock: MockClock, patience: float) -> None:
        super().__init__()
        self._clock = clock
        self._patience = patience

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if timeout is None:
            # Only another thread or a peer can wake us now; give them a moment of real time.
            events = super().select(self._patience)
            if not events:
                raise DeadlockError(
                    f"nothing happened in {self._patience:g} s, and no timer is armed: a wake-up "
                    "was lost, or a task waits for nobody"
                )
            return events
        # Up: a clock that falls short of the timer's time would ask again for nearly nothing.
        self._clock.advance_ns(max(1, -int(-timeout * 1_000_000_000 // 1)))
        return events


class AutojumpEventLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop on a MockClock, which jumps to the next timer when it is idle.

    Real sockets and threads work, but their time is not virtual: while only timers are left, the
    clock jumps on without waiting for them. At the end of the loop its threads are waited for.
    """

    def __init__(self, clock: MockClock | None = None, *, patience: float = 5.0) -> None:
        """Run on `clock`; wait `patience` real seconds for other threads before a DeadlockError."""
        # Before super().__init__, which asks for the time.
        self.clock: MockClock = MockClock() if clock is None else clock
        super().__init__(_AutojumpSelector(self.clock, patience))

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self.clock.now_ns() / 1_000_000_000

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait for the threads of `run_in_executor` to end, for as long as that really takes.

        `timeout`, which Python 3.12 and later give, is virtual time, and would be over at once.
        """
        await super().shutdown_default_executor()
