"""Settings of workers, and the wall clock of the loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.jobs import RetryPolicy, WorkerSettings
from tests.promises.kit import loop_clock, now_ms

Make = Callable[..., Purgatory]


SELDOM = pytest.mark.parametrize(
    "job_settings", [WorkerSettings(lease_ms=1_800_000, poll_ms=600_000)], ids=["seldom"]
)
"""The mark of tests that take hours: each poll costs as much as in real time."""


def leap(ms: int) -> None:
    """The wall clock of the store goes on by that much, and nothing else does."""
    loop_clock().set_wall(now_ms() + ms)


def on_time(at_ms: list[int], wanted_ms: list[int]) -> bool:
    """Never early, and late by no more than two roundings up to a millisecond."""
    return len(at_ms) == len(wanted_ms) and all(
        0 <= at - wanted <= 2 for at, wanted in zip(at_ms, wanted_ms, strict=True)
    )


def settings(**options: Any) -> WorkerSettings:
    return WorkerSettings(retry=RetryPolicy(first_ms=1_000, max_ms=8_000), **options)
