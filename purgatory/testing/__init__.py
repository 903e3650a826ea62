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

from purgatory.testing.autojump_event_loop import AutojumpEventLoop, DeadlockError
from purgatory.testing.mock_clock import MockClock

__all__ = ["AutojumpEventLoop", "DeadlockError", "MockClock"]
