"""Columns of tables as arrays of NumPy: a year has millions of rows, too many as Python objects.

Neither Arrow's conversion to NumPy nor that of times to Python's is used: they import pandas, which
takes longer than the rest of a report's imports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

JOB = "waits"

_WIDTHS_S = (60, 300, 900, 3_600, 21_600, 86_400)
_MOST_STEPS = 300


def step_width_s(span_s: int) -> int:
    """Return a width of the timeline's steps with which a chart of `span_s` has not too many."""
    return next((width for width in _WIDTHS_S if span_s / width <= _MOST_STEPS), _WIDTHS_S[-1])


Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


def integers(column: pa.ChunkedArray) -> Integers:
    """Return a column of whole numbers without nulls."""
    return np.from_dlpack(column.cast(pa.int64()).combine_chunks()).astype(np.int64, copy=False)


def floats(column: pa.ChunkedArray) -> Floats:
    """Return a column of numbers without nulls."""
    return np.from_dlpack(column.cast(pa.float64()).combine_chunks()).astype(np.float64, copy=False)


def micros(column: pa.ChunkedArray) -> Integers:
    """Return a column of times, as microseconds since 1970."""
    return integers(column.cast(pa.timestamp("us", "UTC")))


def coded(column: pa.ChunkedArray) -> tuple[tuple[str, ...], Integers]:
    """Return the different texts of a column, and the place of each row's text among them."""
    is_coded = pa.types.is_dictionary(column.type)
    found = (column if is_coded else column.dictionary_encode()).unify_dictionaries()
    found = found.combine_chunks()
    places = np.from_dlpack(found.indices).astype(np.int64)
    return tuple(found.dictionary.to_pylist()), places


PERCENTS = ("p50", "p90", "p99")

BY_HOUR_COLUMNS = ("kind", "hour", *(f"wait_us_{name}" for name in PERCENTS))

"""Of the table, those that are used."""


def latest_hours(
    by_hour: pa.Table, kinds: Container[str], count: int
) -> list[tuple[int, str, tuple[int, ...]]]:
    """Return the last `count` rows of some kinds with an operation that ended, by hour and kind.

    Each is the start of the hour in seconds, the kind, and its PERCENTS.
    """
    ended = by_hour.filter(pc.is_valid(by_hour["wait_us_p50"]))
    names, kind = coded(ended["kind"])
    chosen = np.flatnonzero(np.array([name in kinds for name in names], bool)[kind])
    hour_s = micros(ended["hour"]) // 1_000_000
    # Places in the order of the names, which those of `names` are not.
    order = np.argsort(np.argsort(np.array(names, object)))
    rows = chosen[np.lexsort((order[kind[chosen]], hour_s[chosen]))[-count:]]
    columns = (integers(ended[f"wait_us_{name}"])[rows].tolist() for name in PERCENTS)
    found = (names[place] for place in kind[rows].tolist())
    return list(zip(hour_s[rows].tolist(), found, zip(*columns, strict=True), strict=True))


_MINUTE_US = 60_000_000
# Twenty years.
_MOST_DENSE = 20 * 366 * 1_440
_NUMBERS = ("began", "began_peak", "parked_mean", "parked_peak")

PARKED_COLUMNS = ("kind", "minute", *_NUMBERS)

"""Of the table, those that are used."""


@dataclass(frozen=True, eq=False)
class ParkedMinutes:
    """Parked operations by kind and minute: columns of equal length.

    What is derived from them is kept, for the advice and the report on the same kinds.
    """

    kinds: tuple[str, ...]
    kind: Integers
    """Places in `kinds`."""
    minute: Integers
    """Since 1970."""
    began: Floats
    """The operations that began to wait."""
    began_peak: Floats
    """The most of them in a second."""
    mean: Floats
    peak: Floats
    _known: dict[frozenset[str], ParkedMinutes] = field(
        default_factory=dict, init=False, repr=False
    )

    @classmethod
    def of_table(cls, table: pa.Table) -> Self:
        """Return the columns of the table that `waits` writes."""
        kinds, kind = coded(table["kind"])
        minute = micros(table["minute"]) // _MINUTE_US
        return cls(kinds, kind, minute, *(floats(table[name]) for name in _NUMBERS))

    def where(self, is_wanted: Callable[[str], bool]) -> ParkedMinutes:
        """Return the minutes of the wanted kinds."""
        wanted = frozenset(filter(is_wanted, self.kinds))
        if (known := self._known.get(wanted)) is None:
            chosen = self.per_kind(wanted.__contains__, bool)
            columns = (self.kind, self.minute, self.began, self.began_peak, self.mean, self.peak)
            known = ParkedMinutes(self.kinds, *(column[chosen] for column in columns))
            self._known[wanted] = known
        return known

    @cached_property
    def distinct(self) -> tuple[Integers, Integers]:
        """The minutes in order, each once, and the place of each row's minute among them."""
        low = int(self.minute.min()) if len(self.minute) else 0
        high = int(self.minute.max(initial=low))
        if high - low > _MOST_DENSE:
            return np.unique(self.minute, return_inverse=True)
        # Of years without a gap, which `np.unique` would sort.
        place = self.minute - low
        is_there = np.zeros(high - low + 1, bool)
        is_there[place] = True
        return np.flatnonzero(is_there) + low, (np.cumsum(is_there) - 1)[place]

    def per_kind(self, value: Callable[[str], Any], kind: type) -> NDArray[Any]:
        """Return `value` of the kind of each row."""
        return np.array([value(name) for name in self.kinds], kind)[self.kind]


@dataclass(frozen=True, slots=True, eq=False)
class TimelineCounts:
    """Operations by start, kind, outcome and wait: columns of equal length."""

    width_s: int
    """Of the steps that the starts are the first seconds of."""
    kinds: tuple[str, ...]
    kind: Integers
    """Places in `kinds`."""
    outcomes: tuple[str, ...]
    outcome: Integers
    """Places in `outcomes`."""
    start_s: Integers
    """Since 1970."""
    bucket: Integers
    """Of the wait; -1 if it is unknown."""
    count: Integers

    @classmethod
    def of_table(cls, table: pa.Table) -> Self:
        """Return the columns of the table that `waits` writes."""
        kinds, kind = coded(table["kind"])
        outcomes, outcome = coded(table["outcome"])
        return cls(
            table["width_s"][0].as_py() if len(table) else 60,
            kinds,
            kind,
            outcomes,
            outcome,
            micros(table["start"]) // 1_000_000,
            integers(table["bucket"].fill_null(-1)),
            integers(table["count"]),
        )

    def where(self, is_wanted: Callable[[str], bool]) -> TimelineCounts:
        """Return the counts of the wanted kinds."""
        chosen = np.array([is_wanted(name) for name in self.kinds], bool)[self.kind]
        names = ("kind", "outcome", "start_s", "bucket", "count")
        return replace(self, **{name: getattr(self, name)[chosen] for name in names})

    def totals(self) -> Counter[str]:
        """Return the operations by outcome."""
        (outcomes,), sums = summed(self.count, self.outcome)
        names = [self.outcomes[place] for place in outcomes.tolist()]
        return Counter(dict(zip(names, sums.tolist(), strict=True)))


def summed(count: Integers, *columns: Integers) -> tuple[Sequence[Integers], Integers]:
    """Return the different rows of `columns`, in their order, and the sum of `count` of each."""
    order = np.lexsort(columns[::-1])
    ordered = [column[order] for column in columns]
    is_new = np.zeros(len(order), bool)
    is_new[:1] = True
    for column in ordered:
        is_new[1:] |= np.diff(column) != 0
    first = np.flatnonzero(is_new)
    sums = np.add.reduceat(count[order], first) if len(first) else count[order]
    return [column[first] for column in ordered], sums
