"""How long work may hold the event loop before the rest of it waits for the next turn."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Final
from weakref import ReferenceType, WeakKeyDictionary

from purgatory.timer.clock import NS_PER_MS, Clock, SystemClock

# Long compared with the cost of a turn (2 us), short compared with any latency that matters.
TURN_NS: Final = 2 * NS_PER_MS


class TurnBudget:
    """Limits work whose amount a peer decides to about 2 ms in one turn of the event loop.

    Lines, names, requests in one read, entries of a log, chunks of a body: whoever processes them
    asks after each, or after each few of bounded cost. Coroutines `await yield_if_spent()`;
    callbacks, such as those of a protocol, check `is_spent()`, and go on by `resume_in_turn`. Of
    all that have spent theirs one resumes in each turn of the loop, so that many requests together
    take no longer than one of them. Every second turn is for work that is `for_all`, if there is
    any: what everyone waits for is not behind as many requests as one client sends.
    """

    __slots__ = ("_clock", "_for_all", "_until_ns", "turns")

    def __init__(self, *, for_all: bool = False, clock: Clock | None = None) -> None:
        """Begin a turn now; `clock` is the system's unless a test says otherwise."""
        self._for_all = for_all
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
            resume_in_turn(partial(_resume, resumed), for_all=self._for_all)
            await resumed
            self.restart()


class _Turns:
    """The turns of one event loop, each for one of those that wait.

    Referenced by what the loop has scheduled, and by nothing else: it ends with the loop.
    """

    def __init__(self) -> None:
        # Invariant: _next is scheduled iff there are any in either, except while it runs.
        self._waiting: deque[Callable[[], object]] = deque()
        self._for_all: deque[Callable[[], object]] = deque()
        self._was_for_all = False
        self._is_running = False

    @property
    def _is_any(self) -> bool:
        return bool(self._waiting or self._for_all)

    @property
    def is_taken(self) -> bool:
        """True iff others wait for the next turn, and this one was not waited for."""
        return self._is_any and not self._is_running

    def add(self, callback: Callable[[], object], *, for_all: bool) -> None:
        if not self._is_any and not self._is_running:
            self._schedule()
        (self._for_all if for_all else self._waiting).append(callback)

    def _schedule(self) -> None:
        asyncio.get_running_loop().call_soon(self._next, context=Context())

    def _next(self) -> None:
        self._was_for_all = bool(self._for_all) and not (self._was_for_all and self._waiting)
        self._is_running = True
        try:
            (self._for_all if self._was_for_all else self._waiting).popleft()()
        finally:
            self._is_running = False
            if self._is_any:
                self._schedule()


_turns: WeakKeyDictionary[AbstractEventLoop, ReferenceType[_Turns]] = WeakKeyDictionary()


def resume_in_turn(callback: Callable[[], object], *, for_all: bool = False) -> None:
    """Call `callback` in a turn to come of the running loop, alone among all that wait here.

    In an empty context (`contextvars`). Every second turn is of those that are `for_all`.
    """
    loop = asyncio.get_running_loop()
    turns = _turns_of(loop)
    if turns is None:
        turns = _Turns()
        _turns[loop] = ReferenceType(turns)
    turns.add(callback, for_all=for_all)


def is_turn_taken() -> bool:
    """Return True iff others wait for the next turn: what is not urgent waits behind them.

    False for what resumes in its own turn.
    """
    turns = _turns_of(asyncio.get_running_loop())
    return turns is not None and turns.is_taken


def _turns_of(loop: AbstractEventLoop) -> _Turns | None:
    found = _turns.get(loop)
    return None if found is None else found()


def _resume(future: Future[None]) -> None:
    # The task that awaits it may have been cancelled.
    if not future.done():
        future.set_result(None)
