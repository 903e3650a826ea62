"""The laws of timeouts: seconds become whole milliseconds, never fewer, and less than one more."""

import asyncio
from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from purgatory import Purgatory
from purgatory.timer.task import MAX_DELAY_MS

MAX_S = 100 * 365 * 24 * 3600


@pytest.fixture(scope="module")
def purgatory() -> Iterator[Purgatory]:
    async def opened() -> Purgatory:
        purgatory = Purgatory()
        purgatory.open()
        return purgatory

    with asyncio.Runner() as runner:
        purgatory = runner.run(opened())
        yield purgatory
        runner.run(purgatory.close())


@given(seconds=st.integers(0, MAX_S))
@example(3_000_000_001)
def test_whole_seconds_are_exact(purgatory: Purgatory, seconds: int) -> None:
    """However many: an int is not taken for a float."""
    assert purgatory.delay_ms(seconds) == seconds * 1_000


@given(ms=st.integers(0, MAX_DELAY_MS // 1_000))
@example(70)
def test_milliseconds_as_people_write_them_are_exact(purgatory: Purgatory, ms: int) -> None:
    """0.07 is 70 ms, though 0.07 * 1000 is a little more in floating point."""
    assert purgatory.delay_ms(ms / 1_000) == ms


@given(seconds=st.floats(0, MAX_S))
def test_never_fewer_and_less_than_one_more(purgatory: Purgatory, seconds: float) -> None:
    """To half a nanosecond, or to what a float of that size can tell."""
    exact_ms = Fraction(seconds) * 1_000
    tolerance_ms = max(Fraction(1, 1_000_000), exact_ms / 2**52)
    assert exact_ms - tolerance_ms <= purgatory.delay_ms(seconds) < exact_ms + 1 + tolerance_ms
