"""The deadlines of the fires of one log, which all have the same timeout."""

from __future__ import annotations

import asyncio
from asyncio import Future, TimerHandle
from collections import deque
from typing import Any, Final

from purgatory.group_commit import RoundTripTimeout

# uvloop counts in milliseconds: what ends within one is over.
_PRECISION_S: Final = 0.001


class FireDeadlines:
    """Raises TimeoutError in each future that is not done in time, with one timer for all.

    A timer for each would cost a tenth of what a fire costs that shares its round trip. On one
    event loop.
    """

    # Invariant: _waiting is in the order of its times, and _timer is set while any is not done.

    def __init__(self, timeout: RoundTripTimeout) -> None:
        """Give each future that time."""
        self._timeout = timeout
        # (until when, by the time of the loop; future): the first are done first, as a rule.
        self._waiting: deque[tuple[float, Future[Any]]] = deque()
        self._timer: TimerHandle | None = None

    def add(self, future: Future[Any]) -> float:
        """Have `future` raise TimeoutError unless it is done in time; return its deadline."""
        self._drop_done()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._timeout.left_s
        self._waiting.append((until_s, future))
        if self._timer is None:
            self._timer = loop.call_at(until_s, self._expire, loop)
        return until_s

    def hurry(self) -> None:
        """Give what is waiting no more than the timeout leaves now."""
        loop = asyncio.get_running_loop()
        last_s = loop.time() + self._timeout.left_s
        self._waiting = deque((min(until_s, last_s), future) for until_s, future in self._waiting)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = loop.call_at(last_s, self._expire, loop)

    def close(self) -> None:
        """Forget the futures, and end the timer. Idempotent."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _drop_done(self) -> None:
        while self._waiting and self._waiting[0][1].done():
            self._waiting.popleft()

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        over_s = loop.time() + _PRECISION_S
        while self._waiting and self._waiting[0][0] <= over_s:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(TimeoutError())
        self._drop_done()
        # For the first of those that are left: most timers find nothing to end.
        self._timer = (
            loop.call_at(self._waiting[0][0], self._expire, loop) if self._waiting else None
        )
