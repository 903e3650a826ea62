"""Hosts: event loops that share a virtual time, and of which each can be suspended or killed."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, TypeVarTuple, Unpack

from purgatory.testing import MockClock

Arguments = TypeVarTuple("Arguments")

# Timers are rounded to floats: an event after a timer must find it due.
_LATE_NS = 1_000


class World:
    """A virtual time, the events in it, and the hosts that live in it."""

    def __init__(self, seed: int) -> None:
        self.clock = MockClock(start_ms=1_000)
        self.random = random.Random(seed)
        self.hosts: list[Host] = []
        self._events: list[tuple[int, int, Callable[[], object]]] = []
        self._numbers = count()

    @property
    def now(self) -> float:
        """Seconds."""
        return self.clock.now_ns() / 1e9

    def after(self, delay: float, event: Callable[[], object]) -> None:
        """Call `event()` in `delay` seconds."""
        at_ns = self.clock.now_ns() + max(0, round(delay * 1e9))
        heapq.heappush(self._events, (at_ns, next(self._numbers), event))

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass until `until()` holds, which is returned, but `seconds` at most."""
        end_ns = self.clock.now_ns() + round(seconds * 1e9)
        self._settle()
        while not until():
            if not self._events or self._events[0][0] > end_ns:
                self.clock.advance_ns(max(0, end_ns - self.clock.now_ns()))
                return until()
            at_ns, _, event = heapq.heappop(self._events)
            self.clock.advance_ns(max(0, at_ns - self.clock.now_ns()))
            event()
            self._settle()
        return True

    def _settle(self) -> None:
        # Hosts talk by events only, so that one after another is as good as any order.
        for host in list(self.hosts):
            host.settle()


class _HostLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers are events of the world."""

    def __init__(self, world: World, wake: Callable[[], object]) -> None:
        self._world = world
        self._wake = wake
        super().__init__()

    def time(self) -> float:
        return self._world.clock.now_ns() / 1e9

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        delay_ns = round(when * 1e9) + _LATE_NS - self._world.clock.now_ns()
        self._world.after(delay_ns / 1e9, self._wake)
        return super().call_at(when, callback, *args, context=context)


class Host:
    """A process: an event loop that runs while it is neither suspended nor dead."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_suspended = False
        self.is_dead = False
        self.on_killed: list[Callable[[], object]] = []
        self.on_closed: list[Callable[[], object]] = []
        self.errors: list[str] = []
        self._is_runnable = True
        self.loop = _HostLoop(world, self._wake)
        self.loop.set_exception_handler(self._on_error)
        world.hosts.append(self)

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine here."""
        self._is_runnable = True
        return self.loop.create_task(work)

    def deliver(self, callback: Callable[..., object], *args: object) -> None:
        """Call `callback(*args)` here as soon as the host runs; never if it is dead."""
        if not self.is_dead:
            self._is_runnable = True
            self.loop.call_soon(callback, *args)

    def settle(self) -> None:
        """Run until nothing is left to do now."""
        while self._is_runnable and not self.is_suspended and not self.is_dead:
            self._turn()

    def suspend(self) -> None:
        """SIGSTOP."""
        self.is_suspended = True

    def resume(self) -> None:
        """SIGCONT."""
        self.is_suspended = False

    def kill(self) -> None:
        """SIGKILL: nothing that the process still does is seen by others."""
        if self.is_dead:
            return
        self.is_dead = True
        self.world.hosts.remove(self)
        for callback in self.on_killed:
            callback()
        tasks = asyncio.all_tasks(self.loop)
        while tasks:
            for task in tasks:
                task.cancel()
            self._turn()
            tasks = asyncio.all_tasks(self.loop)
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
        for callback in self.on_closed:
            callback()

    def _wake(self) -> None:
        self._is_runnable = True

    def _turn(self) -> None:
        """Run what is ready, and what that makes ready only the next time."""
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()
        self._is_runnable = bool(self.loop._ready)  # type: ignore[attr-defined] # nothing public says so

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self.is_dead:
            self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")
