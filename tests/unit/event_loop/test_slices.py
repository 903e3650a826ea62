"""Many operations at once: expirations and fires take bounded slices of the event loop."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVarTuple

import anyio
import pytest

from purgatory import DelayedOperation, Limits, Outcome, Purgatory, Status
from purgatory.event_loop.expiration_reaper import STEP as REAPER_STEP
from purgatory.event_loop.expiration_reaper import ExpirationReaper
from purgatory.event_loop.sliced_runner import SLICE_NS, STEP, SlicedRunner
from purgatory.operations.resumable_batch import ResumableBatch
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


def ticking_clock() -> TickingClock:
    """The clock of the running loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, AutojumpEventLoop) and isinstance(loop.clock, TickingClock)
    return loop.clock


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Run the async tests of this file in virtual time."""
    return "asyncio", {"loop_factory": lambda: AutojumpEventLoop(TickingClock())}


class Bench:
    """A reaper on the running loop, its timer, and the times at which tasks ran."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.clock = ticking_clock()
        self.clock.step_ns = 0
        self.timer = SystemTimer(clock=self.clock)
        self.reaper = ExpirationReaper(self.timer, self.loop)
        self.reaper.start()
        self.times: list[int] = []
        self.began_ms = self.clock.wall_ms()

    def add(self, delay_ms: int, then: Callable[[], object] = lambda: None) -> Any:
        def call() -> None:
            self.times.append(self.clock.wall_ms() - self.began_ms)
            then()

        return self.timer.call_later(delay_ms, call)


async def turns(count: int = 3) -> None:
    """Let the loop turn, without time passing."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_is_due_at_once_runs_in_the_next_turn() -> None:
    """Not inside `add`, and without waiting for the handle that is armed for later."""
    bench = Bench()
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


async def test_a_reaper_that_stops_runs_nothing_more() -> None:
    """Neither what is added afterwards, nor what is due in the same turn, more than a step."""
    bench = Bench()
    bench.reaper.stop()
    bench.add(5)
    await asyncio.sleep(1)
    assert (bench.times, bench.reaper.wake_ups) == ([], 0)
    bench.reaper.start()
    bench.add(10, bench.reaper.stop)
    for _ in range(3 * REAPER_STEP):
        bench.add(10)
    await asyncio.sleep(1)
    assert bench.times == [1_000] + [1_010] * REAPER_STEP
    bench.timer.close()


@cases("error", [asyncio.CancelledError, GeneratorExit])
async def test_a_base_exception_does_not_stop_what_comes_after(error: type[BaseException]) -> None:
    """The loop's handler hears of it; the rest of the bucket and the next bucket run."""
    bench = Bench()

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
    ran: Counter[int] = Counter()
    slow_ns = 20_000
    count = 10 * REAPER_STEP

    def task() -> None:
        ran[bench.reaper.wake_ups] += 1
        bench.clock.advance_ns(slow_ns)

    for _ in range(count):
        bench.timer.call_later(10, task)
    await asyncio.sleep(1)
    assert ran.total() == count
    # A slice ends after the first step that makes it longer than a slice.
    assert max(ran.values()) <= REAPER_STEP + SLICE_NS // slow_ns
    assert bench.reaper.longest_turn_ns < SLICE_NS + REAPER_STEP * slow_ns + 1


@cases("took_ns, turns", [(0, 1), (SLICE_NS - 1, 1), (SLICE_NS, 2)])
async def test_a_turn_has_as_many_steps_as_it_has_time_for(took_ns: int, turns: int) -> None:
    """What is due in one millisecond runs in one turn, unless that has taken a slice."""
    bench = Bench()
    bench.add(10, lambda: bench.clock.advance_ns(took_ns))
    for _ in range(3 * REAPER_STEP):
        bench.add(10)
    await asyncio.sleep(1)
    assert (len(bench.times), bench.reaper.wake_ups) == (3 * REAPER_STEP + 1, turns)


async def test_moving_a_bucket_down_is_bounded_too() -> None:
    """Very many tasks far away do not stop the loop when their bucket opens."""
    bench = Bench()
    count = 4 * REAPER_STEP
    for _ in range(count):
        bench.add(300)
    bench.clock.step_ns = SLICE_NS
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


Make = Callable[..., Purgatory]

COUNT = 5_000


def take_time(step_ns: int) -> None:
    """Let every look at the clock take so long from here on."""
    ticking_clock().step_ns = step_ns


class Waiting(DelayedOperation):
    """An operation that completes when it is tried once it waits, and does `then`."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        super().__init__(3_600_000)
        self.then = then

    def try_complete(self) -> bool:
        return bool(self.keys) and self.is_pending and self.force_complete()

    def on_complete(self) -> None:
        self.then()

    def on_cancellation(self) -> None:
        self.then()


async def park_many(
    purgatory: Purgatory, count: int = COUNT, *, timeout: float = 3_600, **options: Any
) -> list[asyncio.Task[Outcome]]:
    """Tasks that are parked on "hot" by now, in no time at all."""
    take_time(0)
    tasks = [
        asyncio.create_task(purgatory.park("hot", timeout=timeout, **options)) for _ in range(count)
    ]
    await asyncio.sleep(0)
    assert purgatory.waiting("hot") == count
    take_time(20_000)
    return tasks


async def statuses(tasks: list[asyncio.Task[Outcome]]) -> set[Status]:
    take_time(0)
    return {outcome.status for outcome in await asyncio.gather(*tasks)}


async def test_a_fire_tries_everybody_in_slices(purgatory: Purgatory) -> None:
    """It returns once all were tried; the loop turns many times meanwhile."""
    tasks = await park_many(purgatory)
    firing = asyncio.create_task(purgatory.fire("hot", 1))
    left = []
    while not firing.done():
        await asyncio.sleep(0)
        left.append(purgatory.waiting("hot"))
    assert (await firing).completed == COUNT
    assert left == sorted(left, reverse=True) and len(set(left)) > 50
    # A slice ends with the first step of STEP operations after a millisecond.
    done = [before - after for before, after in zip([COUNT, *left], left, strict=False)]
    assert max(done) <= SLICE_NS // 20_000 + STEP
    assert await statuses(tasks) == {Status.FIRED}


async def test_a_fire_that_is_cancelled_still_tries_everybody(purgatory: Purgatory) -> None:
    """Who fires may be gone; who waits is woken all the same."""
    tasks = await park_many(purgatory)
    firing = asyncio.create_task(purgatory.fire("hot", 1))
    for _ in range(50):
        await asyncio.sleep(0)
    assert 0 < purgatory.waiting("hot") < COUNT
    firing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await firing
    assert purgatory.waiting("hot") > 0
    assert await statuses(tasks) == {Status.FIRED}
    assert purgatory.statistics().fired == COUNT


async def test_a_drain_in_slices(purgatory: Purgatory) -> None:
    """Nobody new is parked from the start; a drain whose caller gives up goes on."""
    tasks = await park_many(purgatory)
    draining = asyncio.create_task(purgatory.drain())
    await asyncio.sleep(0)
    assert 0 < purgatory.parked < COUNT
    late = await purgatory.park("hot", timeout=60)
    assert late.status is Status.DRAINED
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draining
    assert await purgatory.drain() == COUNT
    assert await statuses(tasks) == {Status.DRAINED}


async def test_who_comes_during_a_fire_is_not_part_of_it(purgatory: Purgatory) -> None:
    """And waits for the next one; with a cursor from before it sees this one."""
    tasks = await park_many(purgatory, 200)
    before = purgatory.signals.cursor(purgatory.signals.head())
    firing = asyncio.create_task(purgatory.fire("hot", 1))
    await asyncio.sleep(0)
    assert 0 < purgatory.waiting("hot") < 200
    newcomer = asyncio.create_task(purgatory.park("hot", timeout=3_600))
    assert (await purgatory.park("hot", timeout=60, cursor=before)).value == 1
    assert (await firing).completed == 200
    assert not newcomer.done()
    await purgatory.fire("hot", 2)
    assert (await newcomer).value == 2
    assert await statuses(tasks) == {Status.FIRED}


async def test_a_few_are_completed_at_once(purgatory: Purgatory) -> None:
    """Before `fire` has let the loop turn: the usual case pays for no slices."""
    tasks = await park_many(purgatory, 10)
    with pytest.raises(StopIteration):
        purgatory.fire("hot").send(None)
    assert purgatory.waiting("hot") == 0
    assert await statuses(tasks) == {Status.FIRED}


async def test_who_expires_during_a_fire_can_still_read_its_signal(purgatory: Purgatory) -> None:
    """Not tried yet when the deadline came: the signal is in the outcome or behind its cursor."""
    tasks = await park_many(purgatory, 2_000, timeout=0.010)
    await purgatory.fire("hot", "the signal")
    take_time(0)
    outcomes = await asyncio.gather(*tasks)
    assert {outcome.status for outcome in outcomes} >= {Status.FIRED}
    for outcome in outcomes:
        if not outcome.is_fired:
            outcome = await purgatory.park("hot", timeout=0, cursor=outcome.cursor)
        assert outcome.value == "the signal"


async def test_everybody_is_woken_though_the_signal_makes_way(make_purgatory: Make) -> None:
    """Other keys fire so much that the signal is forgotten before the fire has tried everybody.

    Who waited is told in some way before the deadline; sleeping on is the silent gap.
    """
    async with make_purgatory(limits=Limits(max_signals=4)) as purgatory:
        tasks = await park_many(purgatory, 500)
        firing = asyncio.create_task(purgatory.fire("hot", 1))
        await asyncio.sleep(0)
        for _ in range(10):
            await purgatory.fire("cold")
        await firing
        take_time(0)
        done, asleep = await asyncio.wait(tasks, timeout=60)
        await purgatory.drain()
        await asyncio.gather(*asleep)
        assert (len(done), len(asleep)) == (500, 0)


@cases("number", [3, 150])
async def test_a_callback_that_raises_more_than_an_exception(
    make_purgatory: Make, number: int
) -> None:
    """A CancelledError, such as that of a future it looked at: nobody hangs, all are tried."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: None)

    def look() -> None:
        future: asyncio.Future[None] = loop.create_future()
        future.cancel()
        future.result()

    async with make_purgatory() as purgatory:
        for index in range(200):
            purgatory.park_operation(Waiting(look if index == number else lambda: None), ["hot"])
        # Every step is a slice.
        take_time(SLICE_NS)
        firing = asyncio.create_task(purgatory.fire("hot"))
        await asyncio.wait([firing], timeout=60)
        take_time(0)
        loop.set_exception_handler(None)
        is_done, waiting = firing.done(), purgatory.waiting("hot")
        firing.cancel()
        assert (is_done, waiting) == (True, 0)


async def test_async_with_closes_though_it_is_cancelled(make_purgatory: Make) -> None:
    """Under a cancelled scope nothing can be awaited, and all the same nothing is left open."""
    purgatory = make_purgatory()
    tasks: list[asyncio.Task[Outcome]] = []
    with anyio.CancelScope() as scope:
        async with purgatory:
            tasks += await park_many(purgatory, 500)
            scope.cancel()
            await anyio.sleep(1)
    assert scope.cancelled_caught
    assert await statuses(tasks) == {Status.DRAINED}
    is_open, timers = purgatory.is_open, purgatory.statistics().timers
    await purgatory.close()
    assert (is_open, timers) == (False, 0)


@cases("took_ns, is_over", [(SLICE_NS - 1, True), (SLICE_NS, False)])
async def test_a_slice_ends_after_a_millisecond(*, took_ns: int, is_over: bool) -> None:
    """With the step in which that has passed; the next slice is in another turn of the loop."""
    take_time(0)
    clock = MockClock()
    operations = [Waiting() for _ in range(2 * STEP)]

    def act(operation: DelayedOperation) -> bool:
        if operation is operations[0]:
            clock.advance_ns(took_ns)
        return True

    batch = ResumableBatch([*operations], act)
    done = SlicedRunner(batch, asyncio.get_running_loop(), clock).start()
    assert (done.done(), batch.count) == (is_over, 2 * STEP if is_over else STEP)
    assert await done == 2 * STEP


def test_an_interrupt_in_a_later_slice_stops_nobody_else() -> None:
    """Whoever runs the loop again finds that the walk goes on, and that it ends."""
    loop = AutojumpEventLoop(TickingClock())
    seen: list[DelayedOperation] = []
    operations = [Waiting() for _ in range(10 * STEP)]

    def act(operation: DelayedOperation) -> bool:
        seen.append(operation)
        if len(seen) == 5 * STEP:
            raise KeyboardInterrupt
        return True

    assert isinstance(loop.clock, TickingClock)
    loop.clock.step_ns = SLICE_NS
    done = SlicedRunner(ResumableBatch([*operations], act), loop, loop.clock).start()
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(done)
    assert len(seen) == 5 * STEP
    assert loop.run_until_complete(done) == 10 * STEP - 1
    assert seen == operations
    loop.close()
