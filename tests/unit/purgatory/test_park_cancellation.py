"""Tasks that are cancelled while they park, and what parking costs the loop."""

import asyncio

from purgatory import Limits, Status
from purgatory.testing import AutojumpEventLoop
from tests.unit.purgatory.waiting import Make, Waiting, outcomes, parked

# Cancelling the task that waits


# Cost


async def test_parking_makes_no_task_and_arms_one_timer(make_purgatory: Make) -> None:
    """Thousands wait on the tasks of their callers, and the loop has one timer for all."""
    loop = asyncio.get_running_loop()
    scheduled: list[asyncio.TimerHandle] = loop._scheduled  # type: ignore[attr-defined] # no public way
    async with make_purgatory() as purgatory:
        tasks_before = len(asyncio.all_tasks())
        tasks = [
            asyncio.create_task(purgatory.park(f"key {number % 100}", timeout=30 + number / 1_000))
            for number in range(3_000)
        ]
        await asyncio.sleep(0)
        assert purgatory.parked == 3_000
        assert len(asyncio.all_tasks()) == tasks_before + 3_000
        assert sum(not handle.cancelled() for handle in scheduled) == 1
        for number in range(100):
            await purgatory.fire(f"key {number}")
        assert {outcome.status for outcome in await asyncio.gather(*tasks)} == {Status.FIRED}
        # Those who were cancelled left it alone: one handle still, for nobody.
        assert sum(not handle.cancelled() for handle in scheduled) == 1
    assert sum(not handle.cancelled() for handle in scheduled) == 0


async def test_an_idle_purgatory_does_not_wake_the_loop(make_purgatory: Make) -> None:
    """An hour with far timers costs as many wake-ups as the wheel has levels."""
    async with make_purgatory() as purgatory:
        tasks = [await parked(purgatory, "a", timeout=7_200 + number) for number in range(3)]
        await asyncio.sleep(3_600)
        levels = len(purgatory.statistics().levels)
        assert purgatory.statistics().wake_ups <= levels
        await purgatory.fire("a")
        await asyncio.gather(*tasks)


async def test_a_purgatory_that_waits_for_nothing_arms_nothing(make_purgatory: Make) -> None:
    """Once the last deadline has come and the history is too old, the loop can sleep for ever."""
    async with make_purgatory(limits=Limits(max_signal_age=60)) as purgatory:
        await purgatory.park("a", timeout=1)
        await purgatory.fire("a")
        assert purgatory.statistics().timers == 1
        await asyncio.sleep(300)
        counts = purgatory.statistics()
        assert (counts.timers, counts.signals.signals) == (0, 0)
        await asyncio.sleep(300)
        assert purgatory.statistics().wake_ups == counts.wake_ups


async def test_statistics_are_exact(make_purgatory: Make) -> None:
    """Of now and since the start."""
    async with make_purgatory() as purgatory:
        tasks = [
            await parked(purgatory, "a", "b", timeout=10),
            await parked(purgatory, "b", timeout=1),
            await parked(purgatory, "c", timeout=100),
            await parked(purgatory, "d", timeout=100),
            await parked(purgatory, "e", timeout=100),
        ]
        counts = purgatory.statistics()
        assert (counts.parked, counts.watched, counts.keys, counts.timers) == (5, 6, 5, 5)
        assert sum(level.tasks for level in counts.levels) == 5
        assert counts.levels[0].tick_ms == 1
        assert outcomes(purgatory) == (0, 0, 0, 0)
        assert (purgatory.waiting("b"), purgatory.waiting("x")) == (2, 0)
        await tasks[1]
        await purgatory.fire("a", "12")
        await purgatory.cancel("c")
        tasks[4].cancel()
        await asyncio.wait(tasks[:3] + tasks[4:])
        assert outcomes(purgatory) == (1, 1, 2, 0)
        await purgatory.drain()
        counts = purgatory.statistics()
        assert outcomes(purgatory) == (1, 1, 2, 1)
        assert (counts.parked, counts.watched, counts.keys) == (0, 0, 0)
        # The timer that is left is that of the history.
        assert (counts.timers, counts.signals.signals, counts.signals.bytes) == (1, 1, 4)
        assert (counts.longest_lateness_ms, counts.is_draining) == (0, True)
        await tasks[3]


async def test_what_ran_late_is_in_the_statistics(make_purgatory: Make) -> None:
    """The longest lateness of a timer, and for how long expirations held the loop."""
    async with make_purgatory() as purgatory:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, AutojumpEventLoop)
        task = await parked(purgatory, "a", timeout=1)
        loop.clock.advance(1_007)
        assert (await task).waited_ms == 1_007
        counts = purgatory.statistics()
        assert (counts.longest_lateness_ms, counts.longest_turn_ms) == (7, 0)
        operation = Waiting(1_000)
        operation.then = lambda: loop.clock.advance(250)
        assert not purgatory.park_operation(operation, ["b"])
        task = await parked(purgatory, "a", timeout=1)
        await task
        assert operation.is_completed
        counts = purgatory.statistics()
        assert (counts.longest_lateness_ms, counts.longest_turn_ms) == (250, 250)
