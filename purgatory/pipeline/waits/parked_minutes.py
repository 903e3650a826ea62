"""The table `parked` as columns: a year has millions of rows, too many as Python objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from purgatory.pipeline.waits.columns import Floats, Integers, coded, floats, micros

_MINUTE_US = 60_000_000
# Twenty years.
_MOST_DENSE = 20 * 366 * 1_440
_NUMBERS = ("began", "parked_mean", "parked_peak")

COLUMNS = ("kind", "minute", *_NUMBERS)
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

    @classmethod
    def of_rows(cls, rows: Iterable[Mapping[str, Any]] = ()) -> Self:
        """Return the columns of rows; what a row lacks is 0."""
        listed = list(rows)
        columns = {
            "kind": pa.array([row["kind"] for row in listed], pa.string()),
            "minute": pa.array([row["minute"] for row in listed], pa.timestamp("us", "UTC")),
            **{
                name: pa.array([row.get(name, 0) for row in listed], pa.float64())
                for name in _NUMBERS
            },
        }
        return cls.of_table(pa.table(columns))

    def where(self, is_wanted: Callable[[str], bool]) -> ParkedMinutes:
        """Return the minutes of the wanted kinds."""
        wanted = frozenset(filter(is_wanted, self.kinds))
        if (known := self._known.get(wanted)) is None:
            chosen = self.per_kind(wanted.__contains__, bool)
            columns = (self.kind, self.minute, self.began, self.mean, self.peak)
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
