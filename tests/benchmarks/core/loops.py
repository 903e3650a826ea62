"""The event loops that contenders run on."""

from __future__ import annotations

import asyncio
import importlib.util
import selectors

IS_UVLOOP_INSTALLED = importlib.util.find_spec("uvloop") is not None


def new_uvloop() -> asyncio.AbstractEventLoop:
    """Return a uvloop; raises ImportError if it is not installed."""
    import uvloop

    return uvloop.new_event_loop()


class CountingSelector(selectors.DefaultSelector):
    """Counts how often the loop slept and woke up."""

    def __init__(self) -> None:
        super().__init__()
        self.selects = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Select, and count it."""
        self.selects += 1
        return super().select(timeout)


class CountingLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose wake-ups are counted."""

    def __init__(self) -> None:
        self.selector = CountingSelector()
        super().__init__(self.selector)


class SteppedLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose time stands still until `now_s` is set."""

    def __init__(self) -> None:
        # Before super().__init__, which asks for the time.
        self.now_s = 1_000.0
        super().__init__()

    def time(self) -> float:
        """Return `now_s`."""
        return self.now_s
