"""The Prefer header."""

from __future__ import annotations

from purgatory.fastapi.http.parameters import (
    MAX_CACHED,
    Preferences,
    parse_prefer,
    parse_preferences,
)


def test_preferences() -> None:
    """The first of each name counts, in any case; others are ignored."""
    for headers, preferences in [
        ([], Preferences()),
        (["wait=10"], Preferences(10)),
        (["WAIT=10, wait=20"], Preferences(10)),
        (["wait=10", "wait=20, return=minimal"], Preferences(10, True)),
        (['wait="10"; x=1, Return="Minimal"'], Preferences(10, True)),
        (["return=representation, wait = 1m"], Preferences(60)),
        (["respond-async, , =, handling=lenient"], Preferences()),
        (["return"], Preferences()),
        (['note="a, wait=20", wait=10'], Preferences(10)),
        (['note="a\\", wait=20"; x="b, wait=30", return=minimal'], Preferences(is_minimal=True)),
        (['note="never closed, wait=20'], Preferences()),
    ]:
        assert parse_preferences(headers) == preferences
        joined = ", ".join(headers)
        assert parse_prefer(joined) == preferences
        assert parse_prefer(joined + ", x" * MAX_CACHED) == preferences
