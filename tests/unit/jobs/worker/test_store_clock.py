"""The estimate of the store's clock."""

from __future__ import annotations

from purgatory.jobs.worker.worker_store import StoreClock
from purgatory.testing import MockClock
from purgatory.timer.clock import NS_PER_MS

START_MS = 1_800_000_000_000


def test_the_store_s_clock_is_followed_from_below() -> None:
    """Never ahead by what it knows; a store that steps back is believed."""
    local = MockClock(5_000)
    clock = StoreClock(local)
    asked_ns = clock.local_ns()
    local.advance(40)
    clock.note(1_000_000, asked_ns)
    assert clock.now_ms() == 1_000_000
    local.advance(10)
    assert (clock.now_ms(), clock.remaining_ms(1_000_015)) == (1_000_010, 5)
    # A faster answer is a better one; it said so 40 ms after it was asked, at the latest.
    clock.note(1_000_030, clock.local_ns())
    assert clock.now_ms() == 1_000_030
    # A slower one, which allows for what is known, changes nothing.
    asked_ns = clock.local_ns()
    local.advance(100)
    clock.note(1_000_040, asked_ns)
    assert clock.now_ms() == 1_000_130
    # One that does not allow for it is a clock that was set.
    clock.note(900_000, clock.local_ns())
    assert clock.now_ms() == 900_000


def test_a_timestamp_is_rounded_down_to_a_millisecond() -> None:
    """What it allows for is one millisecond: less would lose precision, more would miss a step."""
    clock = StoreClock(MockClock(5_000))
    was_set = clock.is_set
    clock.note(1_000, clock.local_ns())
    assert (was_set, clock.is_set) == (False, True)
    clock.note(999, clock.local_ns())
    assert clock.now_ms() == 1_000
    clock.note(998, clock.local_ns())
    assert clock.now_ms() == 998
    assert (clock.remaining_ms(998), clock.remaining_ms(1_000), clock.remaining_ms(990)) == (
        0,
        2,
        -8,
    )


def test_the_age_of_a_time_from_before_a_step() -> None:
    """A job that was deferred before the store's clock was set has waited as long as it has."""
    local = MockClock(0)
    clock = StoreClock(local)
    moves: list[int] = []
    clock.on_step = lambda moved_ns: moves.append(moved_ns // NS_PER_MS)
    store_ms = START_MS
    for step_ms in (0, 3_600_000, -7_200_000, 3_600_000):
        local.advance(5_000)
        store_ms += 5_000 + step_ms
        clock.note(store_ms, local.now_ns())
    local.advance(1_000)
    assert moves == [3_600_000, -7_200_000, 3_600_000]
    # At the first look, after the steps forward and back, between looks, and before all of them.
    for then_ms, age_ms in (
        (START_MS + 5_000, 16_000),
        (START_MS + 3_600_000 + 10_000, 11_000),
        (START_MS - 3_600_000 + 13_000, 8_000),
        (START_MS + 20_000, 1_000),
        (START_MS, 21_000),
    ):
        assert clock.age_ms(then_ms) == age_ms


def test_its_time_lies_between_bounds() -> None:
    """Which faster replies narrow and slower ones do not; a clock that was set has its own."""
    local = MockClock(0)
    clock = StoreClock(local)
    for store_ms, takes_ms, expected in (
        (START_MS, 100, (0, 101)),
        (START_MS + 60, 0, (60, 61)),
        (START_MS + 70, 500, (560, 561)),
        (START_MS - 5_000, 10, (-5_000, -4_989)),
        (START_MS + 90_000, 0, (90_000, 90_001)),
    ):
        asked_ns = local.now_ns()
        local.advance(takes_ms)
        clock.note(store_ms, asked_ns)
        assert tuple(ms - START_MS for ms in clock.bounds_ms()) == expected
