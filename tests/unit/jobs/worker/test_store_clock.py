"""The estimate of the store's clock."""

from __future__ import annotations

from purgatory.jobs.worker.store_clock import StoreClock
from purgatory.testing import MockClock


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
