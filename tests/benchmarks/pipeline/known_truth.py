"""What is true of a journal that was made up, kept beside it for the jobs' results."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from purgatory.pipeline.advise.advice import Advice
from purgatory.pipeline.outcomes.manifest import missing_records
from purgatory.pipeline.outcomes.outcome_table import OutcomeTable, Update
from purgatory.pipeline.schemas import COMPLETIONS, OUTCOME_SCHEMA
from purgatory.pipeline.spark.tables import Tables
from purgatory.pipeline.sql.waits import PERCENTS
from tests.benchmarks.pipeline.planted_advice import PlantedAdvice
from tests.synthetic_journal import KINDS, Integers, KindTruth, Truth

_HOT_KEYS = 100


@dataclass(frozen=True, slots=True)
class KnownTruth:
    """Counts, percentiles and hot keys that the jobs have to find, whatever was done to the files.

    `by_kind` has the columns of the table of that name, and `lost` for what never ended.
    """

    records: int
    """With all repeats."""
    repeated: int
    late: int
    replaced: int
    """In the file that is replaced, by the same records, when the late ones come."""
    unknown: int
    """Records of times that cannot be."""
    missing: dict[str, int]
    """By worker."""
    polls: list[int]
    """Polls of waits, and those of them that expired, after each of which the client polled again.
    """
    by_kind: dict[str, dict[str, float]]
    by_label: dict[str, list[int]]
    """Operations, and those that expired, by label, such as "tenant=t1"."""
    hot_keys: list[int]
    """Operations of the most frequent keys."""
    broken: list[str]
    """Files that cannot be read, below the journal's folder."""
    advice: PlantedAdvice

    @classmethod
    def of(
        cls,
        truth: Truth,
        broken: list[str],
        advice: PlantedAdvice,
        *,
        replaced: int,
        unknown: int,
        missing: dict[str, int],
        polls: list[int],
    ) -> KnownTruth:
        """Return what can be told of `truth` with the files in `broken` added."""
        return cls(
            records=truth.rows,
            repeated=truth.repeated_rows,
            late=truth.late_rows,
            replaced=replaced,
            unknown=unknown,
            missing=missing,
            polls=polls,
            by_kind={name: _columns(kind) for name, kind in truth.kinds.items()},
            by_label=_by_label(truth),
            hot_keys=_hot_keys(truth),
            broken=broken,
            advice=advice,
        )

    @classmethod
    def read(cls, path: Path) -> KnownTruth:
        """Return what `write` wrote."""
        found = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**found, "advice": PlantedAdvice(**found["advice"])})

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    def differences(
        self, update: Update, outcomes: OutcomeTable, tables: Tables, advice: Advice
    ) -> list[str]:
        """Return a sentence for everything that the jobs, `update` the last, found otherwise."""
        compared = chain(self._compared(update, outcomes, tables), self.advice.compared(advice))
        return [
            f"{what}: the jobs found {found}, true is {true}"
            for what, found, true in compared
            if found != true
        ]

    def _compared(
        self, update: Update, outcomes: OutcomeTable, tables: Tables
    ) -> Iterator[tuple[str, Any, Any]]:
        waits = sum(int(kind["operations"]) for kind in self.by_kind.values())
        operations = waits + self.polls[1]
        totals = [*_TOTALS, *chain.from_iterable(map(_totals_of_label, self.by_label))]
        runner, places = outcomes.runner, (outcomes.folder, outcomes.published())
        runner.read("known", OUTCOME_SCHEMA, places, rows=operations)
        [row] = runner.rows(f"SELECT {', '.join(totals)} FROM known")
        yield "operations", row["operations"], operations
        yield "operations with a row each", row["different"], operations
        records = self.records - self.unknown
        yield "records, with those that were repeated", row["records"], records
        for label, true in self.by_label.items():
            yield f"operations of {label}, and expired", [row[label], row[f"{label} expired"]], true
        yield "operations with two different ends", row["contested"], 0
        yield "late and replaced records", update.rows, self.late + self.replaced
        yield "replaced files", len(update.replaced), 1
        yield "records that are no events", update.manifest.unknown_rows, self.unknown
        yield "missing records", missing_records(update.manifest), self.missing
        yield "broken files", sorted(update.bad), self.broken
        yield from self._compared_kinds(tables)
        counts = [row["operations"] for row in tables.rows("waits", "hot_keys")]
        yield "operations of the hot keys", sorted(counts, reverse=True), self.hot_keys
        for name in ("began", "ended"):
            parked = sum(row[name] for row in tables.rows("waits", "parked"))
            yield f"operations that {name} to be parked", parked, operations
        for name in ("timeline", "wait_counts"):
            counted = sum(row["count"] for row in tables.rows("waits", name))
            yield f"operations in {name}", counted, waits
        [polls] = tables.rows("waits", "polls")
        yield "polls, and those that expired", [polls["operations"], polls["expired"]], self.polls

    def _compared_kinds(self, tables: Tables) -> Iterator[tuple[str, Any, Any]]:
        found = {row["kind"]: row for row in tables.rows("waits", "by_kind")}
        yield "kinds", sorted(found), sorted(self.by_kind)
        for kind, true in self.by_kind.items():
            row = found.get(kind, {})
            for name, value in true.items():
                found_value = row.get(name, math.inf)
                # Percentiles are within the documented bound.
                is_near = "_us_p" in name and abs(found_value - value) <= value / 512
                yield f"{name} of {kind}", value if is_near else found_value, value


_TOTALS = (
    "count(*) AS operations",
    "count(DISTINCT hash(operation_id)) AS different",
    "sum(records) AS records",
    "count_if(is_contested) AS contested",
)


def _totals_of_label(label: str) -> tuple[str, str]:
    name, _, value = label.partition("=")
    is_of = f"map_extract_value(labels, '{name}') = '{value}'"
    expired = f"count_if({is_of} AND outcome = 'expired') AS \"{label} expired\""
    return f'count_if({is_of}) AS "{label}"', expired


def _by_label(truth: Truth) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for label, counts in chain.from_iterable(
        kind.by_label.items() for kind in truth.kinds.values()
    ):
        found[label] = [sum(of) for of in zip(found.get(label, (0, 0)), counts, strict=True)]
    return found


def _columns(kind: KindTruth) -> dict[str, float]:
    columns: dict[str, float] = {name: getattr(kind, name) for name in COMPLETIONS}
    # The journal goes on for long after the last crash.
    columns |= {"operations": kind.operations, "lost": kind.unfinished, "open": 0}
    for measure, parts in (("wait_us", kind.waits_us), ("lateness_us", kind.lateness_us)):
        columns |= _percentiles(measure, np.sort(np.concatenate(parts)))
    return columns


def _percentiles(measure: str, values: Integers) -> dict[str, float]:
    """Return the nearest-rank percentiles of sorted values, and the greatest."""
    found: dict[str, float] = {}
    if len(values):
        found[f"{measure}_max"] = int(values[-1])
        for percent in PERCENTS:
            rank = max(1, -(-len(values) * round(percent * 1000) // 100_000))
            found[f"{measure}_p{percent:g}".replace(".", "_")] = int(values[rank - 1])
    return found


def _hot_keys(truth: Truth) -> list[int]:
    """Return the operations of the hot keys of jobs and of all other operations."""
    found: list[int] = []
    for is_job in (False, True):
        counts: Counter[str] = Counter()
        for name, known in truth.kinds.items():
            if name.startswith("job:") is is_job:
                counts.update(known.key_counts)
        for kind in KINDS:
            if kind.second_key is not None and not is_job:
                counts[kind.second_key] += truth.kinds[kind.name].operations
        found += sorted(counts.values(), reverse=True)[:_HOT_KEYS]
    return sorted(found, reverse=True)
