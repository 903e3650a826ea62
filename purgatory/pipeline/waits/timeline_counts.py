"""The table `timeline` as columns: a year has 100,000 rows, too many as Python objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa

from purgatory.pipeline.waits.columns import Integers, coded, integers, integers_or, micros


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
            integers_or(table["bucket"], -1),
            integers(table["count"]),
        )

    @classmethod
    def of_rows(cls, rows: Iterable[Mapping[str, Any]] = ()) -> Self:
        """Return the columns of rows; what a row lacks is null."""
        listed = list(rows)
        texts, whole = pa.string(), pa.int64()
        columns = {
            name: pa.array([row.get(name) for row in listed], kind)
            for name, kind in (
                ("start", pa.timestamp("us", "UTC")),
                *(("kind", texts), ("outcome", texts)),
                *(("bucket", whole), ("count", whole), ("width_s", whole)),
            )
        }
        return cls.of_table(pa.table(columns))

    def where(self, is_wanted: Callable[[str], bool]) -> TimelineCounts:
        """Return the counts of the wanted kinds."""
        chosen = np.array([is_wanted(name) for name in self.kinds], bool)[self.kind]
        columns = (self.start_s, self.bucket, self.count)
        start_s, bucket, count = (column[chosen] for column in columns)
        kind, outcome = self.kind[chosen], self.outcome[chosen]
        return TimelineCounts(
            self.width_s, self.kinds, kind, self.outcomes, outcome, start_s, bucket, count
        )

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
