"""ExpirationReaper: one armed handle, nothing early, bounded work in a turn."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVarTuple, Unpack

import pytest

from purgatory.event_loop.expiration_reaper import STEP, ExpirationReaper
from purgatory.event_loop.sliced_runner import SLICE_NS
from purgatory.testing import AutojumpEventLoop, MockClock
from purgatory.timer import SystemTimer
from tests.cases import cases

Args = TypeVarTuple("Args")


class TickingClock(MockClock):
    """Time that passes whenever it is asked for: every call takes `step_ns`."""

    __slots__ = ("step_ns",)

    def __init__(self) -> None:
        super().__init__()
        self.step_ns = 0

    def now_ns(self) -> int:
        self.advance_ns(self.step_ns)
        return super().now_ns()


class CountingLoop(AutojumpEventLoop):
    """Counts its turns, and remembers every timer that was armed."""

    def __init__(self) -> None:
        self.ticking = TickingClock()
        self.handles: list[asyncio.TimerHandle] = []
        super().__init__(self.ticking)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Args]], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = super().call_at(when, callback, *args, context=context)
        self.handles.append(handle)
        return handle

    def armed(self) -> list[float]:
        """When the timers that may still come are to come."""
        now = self.time()
        return sorted(h.when() for h in self.handles if not h.cancelled() and h.when() > now)


def running_loop() -> CountingLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, CountingLoop)
    return loop


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Run the async tests of this file in virtual time."""
    return "asyncio", {"loop_factory": CountingLoop}


class Bench:
    """A reaper on the running loop, its timer, and the times at which tasks ran."""

    def __init__(self) -> None:
        self.loop = running_loop()
        self.loop.ticking.step_ns = 0
        self.timer = SystemTimer(clock=self.loop.ticking)
        self.reaper = ExpirationReaper(self.timer, self.loop)
        self.times: list[int] = []
        self.began_ms = self.loop.ticking.wall_ms()

    def add(self, delay_ms: int, then: Callable[[], object] = lambda: None) -> Any:
        def call() -> None:
            self.times.append(self.now_ms())
            then()

        return self.timer.call_later(delay_ms, call)

    def now_ms(self) -> int:
        return self.loop.ticking.wall_ms() - self.began_ms

    def armed(self) -> list[int]:
        """When the armed handles are to come, in ms since the start."""
        return [round(when * 1_000) - self.began_ms for when in self.loop.armed()]


async def turns(count: int = 3) -> None:
    """Let the loop turn, without time passing."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_cancelling_does_not_disarm() -> None:
    """A cancelled task costs the loop nothing: at its time the reaper looks for the next one."""
    bench = Bench()
    bench.reaper.start()
    first = bench.add(10)
    bench.add(50)
    handles = len(bench.loop.handles)
    first.cancel()
    assert (bench.armed(), len(bench.loop.handles)) == ([10], handles)
    await asyncio.sleep(1)
    assert (bench.times, bench.reaper.wake_ups) == ([50], 2)


async def test_what_is_due_at_once_runs_in_the_next_turn() -> None:
    """Not inside `add`, and without waiting for the handle that is armed for later."""
    bench = Bench()
    bench.reaper.start()
    bench.add(200)
    bench.add(0)
    assert bench.times == []
    await turns()
    assert bench.times == [0]
    await asyncio.sleep(0.1)
    bench.add(0)
    await turns()
    assert bench.times == [0, 100]
    bench.timer.close()
    bench.reaper.stop()


async def test_after_stop_nothing_runs_and_nothing_is_armed() -> None:
    """Not even what is added afterwards; and a reaper that runs out is armed for nothing."""
    bench = Bench()
    bench.reaper.start()
    bench.add(10)
    bench.reaper.stop()
    bench.add(5)
    assert bench.armed() == []
    await asyncio.sleep(1)
    assert (bench.times, bench.reaper.wake_ups) == ([], 0)
    bench.timer.close()


@cases("restarts", [False, True])
async def test_stopping_in_a_task_ends_the_turn(*, restarts: bool) -> None:
    """What is due behind it, more than a step, waits until the reaper starts again."""
    bench = Bench()
    bench.reaper.start()

    def stop() -> None:
        bench.reaper.stop()
        if restarts:
            bench.reaper.start()

    bench.add(10, stop)
    for _ in range(3 * STEP):
        bench.add(10)
    bench.add(20)
    await asyncio.sleep(1)
    if restarts:
        assert (len(bench.times), bench.times[-1]) == (3 * STEP + 2, 20)
    else:
        assert (bench.times, bench.armed()) == ([10] * STEP, [])
        assert (bench.reaper.wake_ups, len(bench.timer)) == (1, 2 * STEP + 2)
    bench.timer.close()
    bench.reaper.stop()


@cases("error", [asyncio.CancelledError, GeneratorExit])
async def test_a_base_exception_does_not_stop_what_comes_after(error: type[BaseException]) -> None:
    """The loop's handler hears of it; the rest of the bucket and the next bucket run."""
    bench = Bench()
    bench.reaper.start()

    def fail() -> None:
        raise error

    bench.add(10, fail)
    bench.add(10)
    bench.add(20)
    heard: list[dict[str, Any]] = []
    bench.loop.set_exception_handler(lambda loop, context: heard.append(context))
    await asyncio.sleep(1)
    bench.loop.set_exception_handler(None)
    assert (bench.times, len(heard)) == ([10, 10, 20], 1)
    assert isinstance(heard[0]["exception"], error)


async def test_a_turn_does_a_bounded_amount_of_work() -> None:
    """Many tasks of one tick run over several turns, each of about a millisecond."""
    bench = Bench()
    bench.reaper.start()
    ran: Counter[int] = Counter()
    slow_ns = 20_000
    count = 10 * STEP

    def task() -> None:
        ran[bench.reaper.wake_ups] += 1
        bench.loop.ticking.advance_ns(slow_ns)

    for _ in range(count):
        bench.timer.call_later(10, task)
    await asyncio.sleep(1)
    assert ran.total() == count
    # A slice ends after the first step that makes it longer than a slice.
    assert max(ran.values()) <= STEP + SLICE_NS // slow_ns
    assert bench.reaper.longest_turn_ns < SLICE_NS + STEP * slow_ns + 1


@cases("took_ns, turns", [(0, 1), (SLICE_NS - 1, 1), (SLICE_NS, 2)])
async def test_a_turn_has_as_many_steps_as_it_has_time_for(took_ns: int, turns: int) -> None:
    """What is due in one millisecond runs in one turn, unless that has taken a slice."""
    bench = Bench()
    bench.reaper.start()
    bench.add(10, lambda: bench.loop.ticking.advance_ns(took_ns))
    for _ in range(3 * STEP):
        bench.add(10)
    await asyncio.sleep(1)
    assert (len(bench.times), bench.reaper.wake_ups) == (3 * STEP + 1, turns)


async def test_moving_a_bucket_down_is_bounded_too() -> None:
    """Very many tasks far away do not stop the loop when their bucket opens."""
    bench = Bench()
    bench.reaper.start()
    count = 4 * STEP
    for _ in range(count):
        bench.add(300)
    bench.loop.ticking.step_ns = SLICE_NS
    await asyncio.sleep(0.5)
    assert len(bench.times) == count
    # Each turn here has time for one step: four for moving them down, four for running them.
    assert bench.reaper.wake_ups >= 8


@pytest.mark.parametrize(
    "anyio_backend",
    [
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    ],
)
async def test_never_early_by_the_clock_of_the_machine() -> None:
    """On real time, of which only this is certain: nothing runs before its deadline."""
    loop = asyncio.get_running_loop()
    assert not isinstance(loop, AutojumpEventLoop)
    timer = SystemTimer()
    reaper = ExpirationReaper(timer, loop)
    reaper.start()
    now_ns = timer.clock.now_ns
    early: list[int] = []
    finished = asyncio.Event()
    left = [200]

    def expire(deadline_ns: int) -> None:
        if now_ns() < deadline_ns:
            early.append(deadline_ns - now_ns())
        left[0] -= 1
        if not left[0]:
            finished.set()

    for number in range(200):
        delay_ms = number % 50
        timer.call_later(delay_ms, expire, now_ns() + delay_ms * 1_000_000)
        if number % 20 == 0:
            await asyncio.sleep(0)
    await finished.wait()
    reaper.stop()
    assert (early, len(timer)) == ([], 0)
