"""Timers that note what they ran."""

from collections.abc import Callable

import pytest

from purgatory.testing import MockClock
from purgatory.timer import SystemTimer
from tests.unit.timer.timer_bench import Bench


@pytest.fixture
def make_bench(make_timer: Callable[..., SystemTimer], clock: MockClock) -> Callable[..., Bench]:
    def make(tick_ms: int = 1, wheel_size: int = 3) -> Bench:
        return Bench(make_timer(tick_ms=tick_ms, wheel_size=wheel_size), clock, [])

    return make


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench()
