"""How long work may hold the event loop before the rest of it waits for the next turn."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, Future
from collections import deque
from typing import Final
from weakref import WeakKeyDictionary

from purgatory.timer.clock import NS_PER_MS, Clock, SystemClock

# Long compared with the cost of a turn (2 us), short compared with any latency that matters.
TURN_NS: Final = 2 * NS_PER_MS


class TurnBudget:
    """Limits work whose amount a peer decides to about 2 ms in one turn of the event loop.

    Lines, names, requests in one read, entries of a log, chunks of a body: whoever processes them
    asks after each, or after each few of bounded cost. Coroutines `await yield_if_spent()`;
    callbacks, such as those of a protocol, check `is_spent()`, and resume by `loop.call_soon` with
    `restart()`. Of the coroutines that have spent theirs one resumes in each turn of the loop, so
    that many requests together take no longer than one of them.
    """

    __slots__ = ("_clock", "_until_ns", "turns")

    def __init__(self, *, clock: Clock | None = None) -> None:
        """Begin a turn now; `clock` is the system's unless a test says otherwise."""
        self._clock = clock or SystemClock()
        self.turns: int = 0
        """How many turns have begun: the work took 2 ms in each but the last."""
        self.restart()

    def restart(self) -> None:
        """Begin a turn now."""
        self.turns += 1
        self._until_ns = self._clock.now_ns() + TURN_NS

    def is_spent(self) -> bool:
        """Return True iff the rest is for the next turn."""
        return self._clock.now_ns() >= self._until_ns

    async def yield_if_spent(self) -> None:
        """Let the event loop serve others, if this turn has lasted long enough."""
        if self.is_spent():
            await _resumed()
            self.restart()


# {loop: those that wait for their turn, in order}
_waiting: WeakKeyDictionary[AbstractEventLoop, deque[Future[None]]] = WeakKeyDictionary()


def _resumed() -> Future[None]:
    """Return a future that is done in a turn to come, alone among all that were returned here."""
    loop = asyncio.get_running_loop()
    waiting = _waiting.setdefault(loop, deque())
    if not waiting:
        loop.call_soon(_resume_next, loop, waiting)
    future = loop.create_future()
    waiting.append(future)
    return future


def _resume_next(loop: AbstractEventLoop, waiting: deque[Future[None]]) -> None:
    while waiting:
        future = waiting.popleft()
        if not future.done():
            future.set_result(None)
            break
    if waiting:
        loop.call_soon(_resume_next, loop, waiting)
