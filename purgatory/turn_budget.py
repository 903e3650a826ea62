"""How long work may hold the event loop before the rest of it waits for the next turn."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

from purgatory.timer.clock import NS_PER_MS, Clock, SystemClock

# Long compared with the cost of a turn (2 us), short compared with any latency that matters.
TURN_NS: Final = 2 * NS_PER_MS


class TurnBudget:
    """Limits work whose amount a peer decides to about 2 ms in one turn of the event loop.

    Lines, names, requests in one read, entries of a log, chunks of a body: whoever processes them
    asks after each, or after each few of bounded cost. Coroutines `await yield_if_spent()`;
    callbacks, such as those of a protocol, check `is_spent()`, and go on by `resume_in_turn`. Of
    all that have spent theirs one resumes in each turn of the loop, so that many requests together
    take no longer than one of them.
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
            resumed: Future[None] = asyncio.get_running_loop().create_future()
            resume_in_turn(partial(_resume, resumed))
            await resumed
            self.restart()


class _Turns:
    """The turns of one event loop, each for one of those that wait."""

    def __init__(self) -> None:
        # Invariant: _next is scheduled iff there are any, except while it runs.
        self._waiting: deque[Callable[[], object]] = deque()
        self._is_running = False

    @property
    def is_taken(self) -> bool:
        """True iff others wait for the next turn, and this one was not waited for."""
        return bool(self._waiting) and not self._is_running

    def add(self, callback: Callable[[], object]) -> None:
        self._waiting.append(callback)
        if len(self._waiting) == 1 and not self._is_running:
            self._schedule()

    def _schedule(self) -> None:
        asyncio.get_running_loop().call_soon(self._next, context=Context())

    def _next(self) -> None:
        self._is_running = True
        try:
            self._waiting.popleft()()
        finally:
            self._is_running = False
            if self._waiting:
                self._schedule()


_turns: WeakKeyDictionary[AbstractEventLoop, _Turns] = WeakKeyDictionary()


def resume_in_turn(callback: Callable[[], object]) -> None:
    """Call `callback` in a turn to come of the running loop, alone among all that wait here.

    In an empty context (`contextvars`).
    """
    loop = asyncio.get_running_loop()
    turns = _turns.get(loop)
    if turns is None:
        turns = _turns[loop] = _Turns()
    turns.add(callback)


def is_turn_taken() -> bool:
    """Return True iff others wait for the next turn: what is not urgent waits behind them.

    False for what resumes in its own turn.
    """
    turns = _turns.get(asyncio.get_running_loop())
    return turns is not None and turns.is_taken


def _resume(future: Future[None]) -> None:
    # The task that awaits it may have been cancelled.
    if not future.done():
        future.set_result(None)
