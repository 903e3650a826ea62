"""Durations of waits."""

from __future__ import annotations

import pytest

from purgatory.fastapi.http.problems import Problem
from purgatory.fastapi.http.wait_duration import is_wait, wait_seconds


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
