"""The percentiles of the table `by_hour` as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from purgatory.pipeline.waits.columns import Integers, coded, integers, micros

PERCENTS = ("p50", "p90", "p99")

COLUMNS = ("kind", "hour", *(f"wait_us_{name}" for name in PERCENTS))
"""Of the table, those that are used."""


@dataclass(frozen=True, slots=True, eq=False)
class HourlyWaits:
    """Percentiles of waits by kind and hour, of hours with an operation that ended.

    Columns of equal length.
    """

    kinds: tuple[str, ...]
    kind: Integers
    """Places in `kinds`."""
    hour_s: Integers
    """The start of the hour, in seconds since 1970."""
    percentiles: Mapping[str, Integers]
    """By name, see PERCENTS; in microseconds."""

    @classmethod
    def of_table(cls, table: pa.Table) -> Self:
        """Return the columns of the table that `waits` writes."""
        ended = table.filter(pc.is_valid(table["wait_us_p50"]))
        kinds, kind = coded(ended["kind"])
        return cls(
            kinds,
            kind,
            micros(ended["hour"]) // 1_000_000,
            {name: integers(ended[f"wait_us_{name}"]) for name in PERCENTS},
        )

    @classmethod
    def of_rows(cls, rows: Iterable[Mapping[str, Any]] = ()) -> Self:
        """Return the columns of rows; what a row lacks is null."""
        listed = list(rows)
        columns = {
            "kind": pa.array([row["kind"] for row in listed], pa.string()),
            "hour": pa.array([row["hour"] for row in listed], pa.timestamp("us", "UTC")),
            **{
                name: pa.array([row.get(name) for row in listed], pa.int64())
                for name in (f"wait_us_{name}" for name in PERCENTS)
            },
        }
        return cls.of_table(pa.table(columns))

    def where(self, is_wanted: Callable[[str], bool]) -> HourlyWaits:
        """Return the hours of the wanted kinds."""
        return self._taken(np.array([is_wanted(name) for name in self.kinds], bool)[self.kind])

    def of_kind(self, name: str) -> HourlyWaits:
        """Return the hours of one kind, in the order of time."""
        found = self.where(lambda kind: kind == name)
        return found._taken(np.argsort(found.hour_s, kind="stable"))

    def latest(self, count: int) -> list[tuple[int, str, tuple[int, ...]]]:
        """Return the last `count` rows by hour and kind: hour, kind and PERCENTS."""
        # Places in the order of the names, which those in `kinds` are not.
        order = np.argsort(np.argsort(np.array(self.kinds, object)))
        rows = np.lexsort((order[self.kind], self.hour_s))[-count:]
        columns = (self.percentiles[name][rows].tolist() for name in PERCENTS)
        names = (self.kinds[place] for place in self.kind[rows].tolist())
        return list(zip(self.hour_s[rows].tolist(), names, zip(*columns, strict=True), strict=True))

    def _taken(self, rows: NDArray[Any]) -> HourlyWaits:
        percentiles = {name: values[rows] for name, values in self.percentiles.items()}
        return HourlyWaits(self.kinds, self.kind[rows], self.hour_s[rows], percentiles)
