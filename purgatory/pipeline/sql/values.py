"""Values as literals of SQL."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime


def text(value: str) -> str:
    """Return `value` as a literal."""
    return "'" + value.replace("'", "''") + "'"


def texts(values: Iterable[str]) -> str:
    """Return `values` as a list of literals, with commas."""
    return ", ".join(map(text, values))


def time(value: datetime) -> str:
    """Return `value` as a literal."""
    return f"TIMESTAMPTZ {text(value.isoformat())}"
