"""What the core costs, counted rather than timed: the same on every machine."""

import asyncio
import gc
import sys
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVarTuple, Unpack

import pytest

from purgatory import DelayedOperation, Purgatory
from purgatory.event_loop.expiration_reaper import ExpirationReaper
from purgatory.operations import DelayedOperationPurgatory
from purgatory.testing import AutojumpEventLoop, MockClock
from purgatory.timer import SystemTimer, TimerTask, compiled
from tests.garbage import without_collector

Args = TypeVarTuple("Args")

MANY = 1_000
# The deadline of a plain task is an object of its own: an int of its milliseconds.
DEADLINE = 0 if compiled else 1


class CountingClock(MockClock):
    """Counts how often it is asked."""

    __slots__ = ("reads",)

    def __init__(self) -> None:
        super().__init__(start_ms=1_000)
        self.reads = 0

    def now_ns(self) -> int:
        self.reads += 1
        return super().now_ns()


class CountingLoop(AutojumpEventLoop):
    """Counts the timers that are armed on it."""

    def __init__(self) -> None:
        super().__init__()
        self.armed = 0

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Args]], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        self.armed += 1
        return super().call_at(when, callback, *args, context=context)


class NeverDone(DelayedOperation):
    """An operation that only its deadline ends."""

    __slots__ = ()

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        pass


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "asyncio", {"loop_factory": CountingLoop}


@pytest.fixture
def clock() -> CountingClock:
    return CountingClock()


@pytest.fixture
def timer(clock: CountingClock) -> SystemTimer:
    return SystemTimer(clock=clock)


def blocks_each(make: Callable[[int], object]) -> int:
    """How many blocks of memory `make` leaves in use each time, tables that grow aside."""
    kept: list[object] = [None] * (2 * MANY)
    for index in range(MANY):
        kept[index] = make(index)
    with without_collector():
        before = sys.getallocatedblocks()
        for index in range(MANY, 2 * MANY):
            kept[index] = make(index)
        return round((sys.getallocatedblocks() - before) / MANY)


def test_a_timer_is_one_object(timer: SystemTimer) -> None:
    """The task is its own entry in the bucket: nothing else is allocated for it."""

    def add(index: int) -> TimerTask:
        task = TimerTask(30_000)
        timer.add(task)
        return task

    assert blocks_each(add) == 1 + DEADLINE
    assert blocks_each(lambda index: timer.call_later(30_000, gc.collect)) == 1 + DEADLINE


@pytest.mark.parametrize("keys_each", [1, 3])
def test_an_operation_is_one_object(timer: SystemTimer, keys_each: int) -> None:
    """Watching allocates nothing: not for the first operation on a key, however many the keys."""
    core = DelayedOperationPurgatory("test", timer)
    keys = [tuple(f"{index}:{n}" for n in range(keys_each)) for index in range(2 * MANY)]

    def watch(index: int) -> NeverDone:
        operation = NeverDone(30_000)
        core.try_complete_else_watch(operation, keys[index])
        return operation

    assert blocks_each(watch) == 1 + DEADLINE


def test_an_operation_on_a_shared_key_is_one_object(timer: SystemTimer) -> None:
    """The second and every further operation on a key is an entry in one table."""
    core = DelayedOperationPurgatory("test", timer)
    keys = ("shared",)

    def watch(index: int) -> NeverDone:
        operation = NeverDone(30_000)
        core.try_complete_else_watch(operation, keys)
        return operation

    assert blocks_each(watch) == 1 + DEADLINE


async def test_a_parked_call_is_few_objects() -> None:
    """The coroutine, the operation, which is its future, and what it waits for."""
    loop: Any = asyncio.get_running_loop()
    parked: list[Coroutine[Any, Any, Any]] = []

    async with Purgatory(clock=loop.clock) as purgatory:

        def park(index: int) -> None:
            parked.append(purgatory.park(f"{index}", timeout=30))
            parked[-1].send(None)

        assert blocks_each(park) <= (5 if compiled else 9)
        for coroutine in parked:
            coroutine.close()


def test_adding_reads_the_clock_once(timer: SystemTimer, clock: CountingClock) -> None:
    """Once for a task, wherever it goes; not at all for cancelling it."""
    for delay_ms in (1, 200, 30_000, 3_600_000):
        before = clock.reads
        task = TimerTask(delay_ms)
        timer.add(task)
        assert clock.reads == before + 1
        task.cancel()
        assert clock.reads == before + 1


@pytest.mark.parametrize("delay_ms", [200, 30_000, 3_600_000])
def test_a_bucket_is_queued_once(timer: SystemTimer, delay_ms: int) -> None:
    """The heap holds buckets, not tasks: a thousand timers of one deadline are one entry."""
    tasks = [TimerTask(delay_ms) for _ in range(MANY)]
    for task in tasks:
        timer.add(task)
    assert len(timer.wheel.queue) == 1
    for task in tasks:
        task.cancel()
    assert len(timer.wheel.queue) == 1


async def test_a_bucket_wakes_the_loop_once() -> None:
    """However many tasks are in it; and the loop has one timer for it, and no others."""
    loop: Any = asyncio.get_running_loop()
    timer = SystemTimer(clock=loop.clock)
    reaper = ExpirationReaper(timer, loop)
    reaper.start()
    armed = loop.armed
    for delay_ms in range(10, 110, 10):
        for _ in range(20):
            timer.call_later(delay_ms, gc.isenabled)
    await asyncio.sleep(0.2)
    # One more is the sleep above.
    assert (len(timer), reaper.wake_ups, loop.armed - armed) == (0, 10, 10 + 1)
    reaper.stop()


async def test_what_is_cancelled_does_not_touch_the_loop() -> None:
    """Timers that come and go behind the earliest arm nothing and wake nobody."""
    loop: Any = asyncio.get_running_loop()
    timer = SystemTimer(clock=loop.clock)
    reaper = ExpirationReaper(timer, loop)
    reaper.start()
    timer.call_later(50, gc.isenabled)
    armed = loop.armed
    for delay_ms in range(100, 100 + MANY):
        timer.call_later(delay_ms, gc.isenabled).cancel()
    await asyncio.sleep(0.04)
    assert (reaper.wake_ups, loop.armed - armed) == (0, 1)
    timer.close()
    reaper.stop()


async def test_a_million_would_idle_as_one_does() -> None:
    """Timers an hour out do not wake the loop: nothing ticks while nothing is due."""
    loop: Any = asyncio.get_running_loop()
    timer = SystemTimer(clock=loop.clock)
    reaper = ExpirationReaper(timer, loop)
    reaper.start()
    for _ in range(MANY):
        timer.add(TimerTask(3_600_000))
    await asyncio.sleep(3_000)
    assert reaper.wake_ups == 0
    timer.close()
    reaper.stop()
