"""The parts of a rollup: what its rows count.

All parts are rows of one table, so that Spark makes them in one pass with one aggregate, and a
merge of rollups is one query: sums of counts, least and greatest values.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

NUMBERS: Final = ("count", "contested", "valued", "total", "least", "most")
"""The aggregates of each row; `valued` is the number of values, the others but counts are theirs.
"""

GROUPS: Final = ("part", "kind", "name", "outcome", "number")
"""The columns that identify a row; null if a part has no use for one."""

KEPT_KEYS: Final = 10_000
"""The keys with most operations of each hour, day and month; others are dropped."""
KEPT_PREFIXES: Final = 1_000
"""The same of key prefixes; others are counted together."""
KEPT_TIMERS: Final = 2_000
"""The timers with the least `sample_number` are a uniform sample, also of merged rollups."""

KEPT_ERROR: Final = 301
"""Characters of the error of a failed job: a report shows less."""

FINE_BITS: Final = 9
"""Buckets of rollups are finer than those of `purgatory.pipeline.statistics.histogram`, each of
which has the same values as four of them: 512 for each doubling of the value."""

TIMELINE_WIDTH: Final = 1_024
NO_WAIT: Final = TIMELINE_WIDTH - 1

SAMPLE_MODULUS: Final = 2**31 - 1
SAMPLE_FACTOR: Final = 48_271
"""A step of Lehmer's generator from the microsecond of the start: cheap, and alike everywhere."""


class Part(IntEnum):
    """What a row counts."""

    WAIT = 0
    """Operations by kind, outcome and bucket of the wait, a censored one too; null if unknown."""
    LATENESS = 1
    """Expired operations by kind and bucket of the lateness."""
    TIMEOUT = 2
    """Operations by kind and bucket of the timeout."""
    PREFIX_WAIT = 3
    """Operations by key prefix (name), outcome and bucket of the wait; one for each prefix."""
    PREFIX_LATENESS = 4
    """Expired operations by key prefix and bucket of the lateness."""
    KEY = 5
    """Operations by key (name) and outcome; the values are waits."""
    MINUTE = 6
    """Operations by kind, outcome, minute of the start and coarse bucket of the wait. The number is
    the minute times TIMELINE_WIDTH, plus the bucket, or NO_WAIT. In days it is the first minute of
    an hour, in months of six hours, and in a prefix of many months of a day."""
    BEGAN = 7
    """Operations by kind and second of the start; the values are times parked. Only in hours."""
    ENDED = 8
    """Operations by kind and second in which they were no longer parked. Only in hours."""
    TIMER = 9
    """Sampled timers: the number is the sample number, and the name has start, expiration and end
    in milliseconds."""
    CRASH = 10
    """Lost operations by the start of a worker (name) that crashed. Only in hours."""
    FAILED = 11
    """Failed jobs by kind."""
    ERROR = 12
    """The error (name) of the job that failed last, by kind. The number is its end, in microseconds
    since 1970."""


MERGED: Final = tuple(part for part in Part if part not in {Part.BEGAN, Part.ENDED, Part.CRASH})
"""The parts of days and months."""


def sample_threshold(operations: int) -> int:
    """Return a number below which enough timers of an hour have their sample number."""
    # Four times what is kept: not every operation had a timer.
    return SAMPLE_MODULUS * min(operations, 4 * KEPT_TIMERS) // max(operations, 1)
