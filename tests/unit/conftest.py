"""Factories for tests, and a leak check after every test of what they made."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field

import pytest

from purgatory import Purgatory
from purgatory.operations import DelayedOperationPurgatory
from purgatory.testing import AutojumpEventLoop, MockClock
from purgatory.timer import SystemTimer


@dataclass
class Made:
    """What one test made, to be looked through once it is over."""

    timers: list[SystemTimer] = field(default_factory=list)
    cores: list[DelayedOperationPurgatory] = field(default_factory=list)
    purgatories: list[Purgatory] = field(default_factory=list)
    # A loop, and the tasks that were there before: the test itself and those who run it.
    tasks_before: dict[asyncio.AbstractEventLoop, set[asyncio.Task[object]]] = field(
        default_factory=dict
    )


@pytest.fixture(autouse=True)
def made() -> Iterator[Made]:
    """Check after the test that nothing is watched, and that no timer and no task is left."""
    made = Made()
    yield made
    for timer in made.timers:
        assert (len(timer), timer.next_expiration_ms()) == (0, None)
    for core in made.cores:
        assert (core.delayed, core.watched, core.keys(), core.operations()) == (0, 0, [], [])
    for purgatory in made.purgatories:
        left = purgatory.statistics()
        assert not purgatory.is_open
        assert (left.parked, left.watched, left.keys, left.timers) == (0, 0, 0, 0)
    for loop, before in made.tasks_before.items():
        assert asyncio.all_tasks(loop) <= before


@pytest.fixture
def clock() -> MockClock:
    """A clock for the tests without an event loop."""
    return MockClock(start_ms=1_000)


@pytest.fixture
def make_timer(made: Made, clock: MockClock) -> Callable[..., SystemTimer]:
    """Make timers that have to be empty when the test ends."""

    def make(**options: int) -> SystemTimer:
        timer = SystemTimer(clock=clock, **options)
        made.timers.append(timer)
        return timer

    return make


@pytest.fixture
def make_core(
    made: Made, make_timer: Callable[..., SystemTimer]
) -> Callable[..., DelayedOperationPurgatory]:
    """Make purgatories without an event loop, which have to be empty when the test ends."""

    def make(*listeners: Callable[..., None]) -> DelayedOperationPurgatory:
        core = DelayedOperationPurgatory("test", make_timer(), listeners=listeners)
        made.cores.append(core)
        return core

    return make


@pytest.fixture
def make_purgatory(made: Made) -> Callable[..., Purgatory]:
    """Make purgatories on the running loop's time; the test has to open and to close them."""

    def make(**options: object) -> Purgatory:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, AutojumpEventLoop)
        made.tasks_before.setdefault(loop, asyncio.all_tasks(loop))
        purgatory = Purgatory(clock=loop.clock, **options)  # type: ignore[arg-type] # any of them
        made.purgatories.append(purgatory)
        return purgatory

    return make


@pytest.fixture
async def purgatory(make_purgatory: Callable[..., Purgatory]) -> AsyncIterator[Purgatory]:
    """An open purgatory."""
    async with make_purgatory() as opened:
        yield opened
