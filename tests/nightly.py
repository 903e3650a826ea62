"""What takes long and seldom fails: `make nightly` runs it, and `make test` a short form."""

from __future__ import annotations

import os
from typing import TypeVar

import pytest

Value = TypeVar("Value")

IS_NIGHTLY = os.environ.get("PURGATORY_NIGHTLY", "") not in ("", "0")
NIGHTLY = pytest.mark.nightly
"""The mark of tests, and of parameters of tests, that `make test` leaves out."""
IN_FULL = pytest.mark.in_full
"""The mark of tests that it runs with all parameters: they are about what these are."""


def is_left_out(item: pytest.Item) -> bool:
    """Return True iff this run leaves `item` out."""
    is_for_night = item.get_closest_marker("nightly") is not None
    return is_for_night and not IS_NIGHTLY and item.get_closest_marker("in_full") is None


def by_night(nightly: Value, otherwise: Value) -> Value:
    """Return how much of something `make nightly` runs, or how much other runs do."""
    return nightly if IS_NIGHTLY else otherwise
