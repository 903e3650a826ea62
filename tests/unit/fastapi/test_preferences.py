"""Durations of waits, and the Prefer header."""

from __future__ import annotations

import pytest

from purgatory.fastapi.http.preferences import (
    MAX_CACHED,
    Preferences,
    is_wait,
    parse_prefer,
    parse_preferences,
    wait_seconds,
)
from purgatory.fastapi.http.problems import Problem


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("25", 25), ("2.5", 2.5), ("500ms", 0.5), ("25s", 25), ("1m", 60), ("0", 0), ("0.5m", 30)],
)
def test_durations(text: str, seconds: float) -> None:
    """Seconds unless there is a unit."""
    assert is_wait(text) and wait_seconds(text, "wait") == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "-1", "inf", "nan", "1h", "1.", ".5", "1 s", "1e3", "1ms ", "9" * 11]
)
def test_what_is_no_duration(text: str) -> None:
    """The problem names the parameter and at most 64 characters of its value."""
    assert not is_wait(text)
    with pytest.raises(Problem, match="Prefer: wait is ") as caught:
        wait_seconds(text, "Prefer: wait")
    assert caught.value.status == 422


@pytest.mark.parametrize(
    ("headers", "preferences"),
    [
        ([], Preferences()),
        (["wait=10"], Preferences(10)),
        (["WAIT=10, wait=20"], Preferences(10)),
        (["wait=10", "wait=20, return=minimal"], Preferences(10, True)),
        (['wait="10"; x=1, Return="Minimal"'], Preferences(10, True)),
        (["return=representation, wait = 1m"], Preferences(60)),
        (["respond-async, , =, handling=lenient"], Preferences()),
        (["return"], Preferences()),
    ],
)
def test_preferences(headers: list[str], preferences: Preferences) -> None:
    """The first of each name counts, in any case; others are ignored."""
    assert parse_preferences(headers) == preferences
    joined = ", ".join(headers)
    assert parse_prefer(joined) == preferences
    assert parse_prefer(joined + ", x" * MAX_CACHED) == preferences
