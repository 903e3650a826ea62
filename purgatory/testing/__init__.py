"""Virtual time for tests: a clock that tests advance, and an event loop that never sleeps.

    clock = MockClock()
    timer = SystemTimer(clock=clock)

    @pytest.fixture
    def anyio_backend():
        return "asyncio", {"loop_factory": AutojumpEventLoop}

On an AutojumpEventLoop, `Purgatory(clock=current_clock())` and `asyncio.sleep`
share one time, which jumps to the next timer whenever the loop is idle: an hour passes in a
millisecond. If no event can ever happen, it raises DeadlockError instead of hanging.

Source: trio's `MockClock` with autojump.
"""

from purgatory.testing.autojump_event_loop import (
    AutojumpEventLoop,
    DeadlockError,
    MockClock,
    current_clock,
)
from purgatory.timer.clock import Clock

__all__ = ["AutojumpEventLoop", "Clock", "DeadlockError", "MockClock", "current_clock"]
