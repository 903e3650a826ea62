"""The times of periodic jobs: the same from everywhere, and as the clocks of a zone show them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from purgatory.jobs.cron import CronGrid
from purgatory.jobs.handlers.handler import EveryGrid
from purgatory.jobs.model.deadline import utc, utc_ms

HOUR_MS = 3_600_000
# Clocks that are set by an hour, by half of one, by two, back and forth within a month, by a day.
ZONES = (
    *("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Antarctica/Troll"),
    *("Africa/Casablanca", "Pacific/Apia", "America/Havana", "Asia/Kathmandu", "UTC"),
)


@cache  # drawn from while tests run: not each process that collects them needs it
def transitions(name: str) -> list[int]:
    """Return when the clocks of a zone were set, to the day, since 2009."""
    days = range(utc_ms(datetime(2009, 1, 1, tzinfo=UTC)), 1_800_000_000_000, 24 * HOUR_MS)
    zone = ZoneInfo(name)
    offsets = [utc(at_ms).astimezone(zone).utcoffset() for at_ms in days]
    found = [days[i] for i in range(1, len(days)) if offsets[i] != offsets[i - 1]]
    return found or [1_600_000_000_000]


@st.composite
def places(draw: st.DrawFn) -> tuple[str, int]:
    """Return a zone and a time, about when its clocks were set."""
    name = draw(st.sampled_from(ZONES))
    near_ms = draw(st.sampled_from(transitions(name)))
    return name, near_ms + draw(st.integers(-48 * HOUR_MS, 30 * HOUR_MS))


def fields(low: int, high: int) -> st.SearchStrategy[str]:
    numbers = st.integers(low, high)
    return st.one_of(
        st.just("*"),
        numbers.map(str),
        st.integers(2, max(2, high // 2)).map("*/{}".format),
        st.tuples(numbers, numbers).map(lambda pair: f"{min(pair)}-{max(pair)}"),
        st.tuples(numbers, numbers).map("{0[0]},{0[1]}".format),
    )


days = st.sampled_from(["* * *", "* * mon-fri", "* * sun", "1,15 * *", "28-31 * *"])
expressions = st.tuples(fields(0, 59), fields(0, 23), days).map(" ".join)


@given(place=places(), expression=expressions, share=st.floats(0, 1, exclude_max=True))
def test_the_next_time_is_the_same_from_everywhere(
    place: tuple[str, int], expression: str, share: float
) -> None:
    """Whenever a process asks, between two times, it finds the second: so it is stored once."""
    name, now_ms = place
    grid = CronGrid(expression, name)
    next_ms = grid.after(now_ms)
    assert next_ms > now_ms and next_ms % 60_000 == 0
    between_ms = now_ms + int((next_ms - now_ms) * share)
    assert grid.after(between_ms) == next_ms


@given(place=places(), minute=st.integers(0, 59), hour=st.integers(0, 23))
def test_a_time_of_the_day_has_one_run_a_day(
    place: tuple[str, int], minute: int, hour: int
) -> None:
    """Also on those days on which the clocks leave it out, or show it twice."""
    name, now_ms = place
    zone = ZoneInfo(name)
    grid = CronGrid(f"{minute} {hour} * * *", name)
    at_ms = now_ms - 2 * 24 * HOUR_MS
    shown = []
    while at_ms < now_ms + 2 * 24 * HOUR_MS:
        at_ms = grid.after(at_ms)
        shown.append(utc(at_ms).astimezone(zone))
    for one, other in pairwise(shown):
        if name != "Pacific/Apia":  # where a whole day was left out
            assert (other.date() - one.date()).days == 1
    for each in shown:
        wanted = each.replace(hour=hour, minute=minute, fold=0)
        is_left_out = wanted.astimezone(UTC).astimezone(zone).replace(fold=0) != wanted
        if is_left_out:
            # The first minute after the gap.
            before = (each.astimezone(UTC) - timedelta(minutes=1)).astimezone(zone)
            assert before.utcoffset() != each.utcoffset()
        else:
            assert each == wanted and each.fold == 0


@given(place=places(), minutes=st.sampled_from([1, 5, 15, 30]))
def test_real_time_goes_on_while_clocks_are_set(place: tuple[str, int], minutes: int) -> None:
    """Every so many minutes is that, whatever the clocks of the zone show, to the half hour."""
    name, now_ms = place
    grid = CronGrid(f"*/{minutes} * * * *", name)
    first_ms = grid.after(now_ms)
    if name != "Asia/Kathmandu":
        assert grid.after(first_ms) - first_ms == minutes * 60_000


def test_the_days_on_which_clocks_are_set_in_berlin() -> None:
    """2026-03-29 has no half past two, and 2026-10-25 has two of them."""
    grid = CronGrid("30 2 * * *", ZoneInfo("Europe/Berlin"))
    for day, times in {
        "2026-03-28T12:00+00:00": ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"],
        "2026-10-24T12:00+00:00": ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"],
    }.items():
        at_ms, found = utc_ms(datetime.fromisoformat(day)), []
        for _ in times:
            at_ms = grid.after(at_ms)
            found.append(utc(at_ms).astimezone(ZoneInfo("Europe/Berlin")).isoformat())
        assert found == times
    assert str(grid) == "30 2 * * * Europe/Berlin"


@given(
    every_ms=st.integers(1_000, 10**9), now_ms=st.integers(0, 4 * 10**12), share=st.floats(0, 0.999)
)
def test_intervals_keep_their_phase(every_ms: int, now_ms: int, share: float) -> None:
    """The next time is a multiple, plus the phase, from wherever it is asked for."""
    phase_ms = int(every_ms * share)
    grid = EveryGrid(every_ms, phase_ms)
    next_ms = grid.after(now_ms)
    assert now_ms < next_ms <= now_ms + every_ms and (next_ms - phase_ms) % every_ms == 0
    assert grid.after(next_ms - 1) == next_ms
