"""Figures in sentences: plurals, and numbers that rounding must not turn into others."""

from __future__ import annotations

import pytest

from purgatory.pipeline.cli.replay_command import described
from purgatory.pipeline.console import counted, duration, figure, percent
from purgatory.pipeline.replay.summary import ReplaySummary


def test_one_is_no_plural() -> None:
    """And none is."""
    assert [counted(count, "file") for count in (0, 1, 2_000)] == [
        "0 files",
        "1 file",
        "2,000 files",
    ]
    assert counted(1, "operation was", "operations were") == "1 operation was"
    assert counted(2, "operation was", "operations were") == "2 operations were"


@pytest.mark.parametrize(
    ("share", "digits", "said"),
    [
        (0, 2, "0.00%"),
        (1, 2, "100.00%"),
        (0.1234567, 2, "12.35%"),
        (1e-9, 2, "<0.01%"),
        (0.99999, 2, ">99.99%"),
        (0.0004, 1, "<0.1%"),
        (0.9996, 1, ">99.9%"),
        (0.996, 0, ">99%"),
        (1.5, 1, "150.0%"),
    ],
)
def test_some_are_not_none_and_most_are_not_all(share: float, digits: int, said: str) -> None:
    """However few, or many, they are."""
    assert percent(share, digits) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "0"), (0.0412, "0.0412"), (12.34, "12.3"), (999.6, "1,000"), (123_456.7, "123,457")],
)
def test_figures_have_no_exponent(value: float, said: str) -> None:
    """Three digits, or all of a large number's."""
    assert figure(value) == said


@pytest.mark.parametrize(
    ("micros", "said"),
    [
        (0, "0 us"),
        (850, "850 us"),
        (999.7, "1 ms"),
        (12_500, "12.5 ms"),
        (999_700, "1 s"),
        (90_000_000, "90 s"),
        (119_900_000, "120 s"),
        (900_000_000, "15 min"),
        (9_000_000_000, "2.5 h"),
        (259_200_000_000, "3 d"),
        (86_400_000_000 * 12_345, "12,345 d"),
    ],
)
def test_times_have_the_unit_that_fits(micros: float, said: str) -> None:
    """Also those that rounding takes to the next."""
    assert duration(micros) == said


def summary(operations: int) -> ReplaySummary:
    """Return what a replay of operations came to, of which one was late."""
    return ReplaySummary(
        shards=1,
        seconds=1.0,
        operations=operations,
        fired=operations - 1,
        expired=1,
        cancelled=0,
        newly_expired=1,
        unknown=0,
        peak_at_least=1,
        peak_at_most=1,
        buckets=1,
        cascaded=0,
        longest_run=1,
        lateness_us={50.0: 500, 99.0: 990, 100.0: 999},
        cpu_ns_per_operation=1_000.0,
        busiest_shard=0.00001,
    )


def test_a_replay_is_described_without_wrong_plurals() -> None:
    """Of one operation, as of many."""
    said = described(summary(1), 5.0)
    assert said.startswith("1 operation in 1 simulated second: 0 fired, 1 expired (100.0%)")
    assert "Peak of waiting operations: 1; " in said
    assert "1 bucket opened, 1 task in the fullest" in said
    assert "the busiest of 1 shard is busy <0.1% of" in said
    assert "Lateness of the expired: p50 500 us, p99 990 us, maximum 999 us." in said


@pytest.mark.parametrize(
    ("operations", "seconds", "ending"),
    [
        (1, 7.0, "Replayed in 7 s, the start included: 0.143 a second."),
        (20_000_000, 59.0, "338,983 a second."),
        (100_000, 600.0, "167 a second. At that rate 100 M take 6.94 d."),
        (10**8, 100.0, "1,000,000 a second. At that rate 1 B take 16.7 min."),
        (10**9, 1_000.0, "1,000,000 a second. At that rate 1 T take 11.6 d."),
    ],
)
def test_how_far_it_is_is_said_where_it_can_be_known(
    operations: int, seconds: float, ending: str
) -> None:
    """Not from a few seconds, most of which went to the start, and not a million times as far."""
    assert described(summary(operations), seconds).endswith(ending)
