"""The job `advise`: computes and writes the advice."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

from purgatory.pipeline.advise.timeouts import Ended, TimeoutAdvice, advise_timeout
from purgatory.pipeline.advise.wheel_geometry import GeometryAdvice, Timer, advise_geometry
from purgatory.pipeline.advise.workers import Capacity, Minute, WorkerAdvice, advise_workers
from purgatory.pipeline.console.progress import OnProgress
from purgatory.pipeline.outcomes.outcome_table import OutcomeTable
from purgatory.pipeline.outcomes.schema import JOB_KIND
from purgatory.pipeline.spark.tables import Tables
from purgatory.pipeline.statistics.histogram import bucket_end
from purgatory.pipeline.statistics.survival import Step, kaplan_meier
from purgatory.pipeline.waits.concurrency import parked_until
from purgatory.pipeline.waits.wait_tables import JOB as WAITS

JOB = "advice"
FILE = "advice.json"

_TIMERS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceTargets:
    """The objectives and limits that the advice meets."""

    expired_share: float = 0.01
    """The share of operations that may expire rather than fire."""
    max_tick_ms: int = 1
    """How late a timer may be."""
    capacity: Capacity = field(default_factory=Capacity)

    def __post_init__(self) -> None:
        """Raise ValueError for a target out of range."""
        if not 0 < self.expired_share < 1:
            raise ValueError(f"expired_share is {self.expired_share}: give one between 0 and 1")
        if self.max_tick_ms < 1:
            raise ValueError(f"max_tick_ms is {self.max_tick_ms}: a tick is 1 ms or more")


@dataclass(frozen=True, slots=True)
class Advice:
    """The whole advice."""

    timeouts: tuple[TimeoutAdvice, ...]
    geometry: GeometryAdvice
    workers: WorkerAdvice
    survival: Mapping[str, Sequence[Step]]
    """The survival curve of each kind, which the timeouts were read from."""

    def as_json(self) -> str:
        """Return everything except the curves as JSON."""
        content = {
            "timeouts": [asdict(timeout) for timeout in self.timeouts],
            "geometry": asdict(self.geometry),
            "workers": asdict(self.workers),
        }
        return json.dumps(content, indent=2) + "\n"


def run(
    outcome_table: OutcomeTable, tables: Tables, targets: AdviceTargets, on_progress: OnProgress
) -> Advice:
    """Write the advice and return it. Raises NothingToReadError if `waits` has not run."""
    on_progress("advice: timers")
    outcomes = outcome_table.read()
    as_of = outcome_table.manifest().as_of_time()
    assert as_of is not None, "a published table has an event"
    timers = timer_sample(outcomes, as_of=as_of)
    found = advise(
        by_kind=tables.rows(WAITS, "by_kind"),
        wait_counts=tables.rows(WAITS, "wait_counts"),
        parked=tables.rows(WAITS, "parked"),
        timers=timers,
        targets=targets,
    )

    def fill(new: str) -> None:
        tables.folder.write_bytes(f"{new}/{FILE}", found.as_json().encode())

    tables.fill(JOB, fill)
    return found


def advise(
    *,
    by_kind: Iterable[Mapping[str, Any]],
    wait_counts: Iterable[Mapping[str, Any]],
    parked: Iterable[Mapping[str, Any]],
    timers: Sequence[Timer],
    targets: AdviceTargets,
) -> Advice:
    """Return the advice from the rows of the tables of the job `waits`, and a sample of timers.

    Delayed jobs are not parked; their deadline is a timeout only if fires complete some of them.
    """
    survival = {kind: kaplan_meier(waits) for kind, waits in waits_of_kinds(wait_counts).items()}
    timeouts = [
        advise_timeout(_ended(row), survival.get(row["kind"], []), targets.expired_share)
        for row in sorted(by_kind, key=lambda row: (-row["operations"], row["kind"]))
        if row["fired"] or not is_job(row)
    ]
    minutes, peak_parked = _minutes(row for row in parked if not is_job(row))
    return Advice(
        timeouts=tuple(timeouts),
        geometry=advise_geometry(timers, peak_parked, targets.max_tick_ms),
        workers=advise_workers(minutes, targets.capacity),
        survival=survival,
    )


def waits_of_kinds(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[tuple[int, int, int]]]:
    """Return the arguments of `kaplan_meier` by kind, from the rows of the table wait_counts."""
    found: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for row in rows:
        # How long a lost operation was at risk is unknown.
        if row["bucket"] is not None:
            is_fired = row["outcome"] == "fired"
            count = row["count"]
            # The bucket's end: an advised timeout is long enough for the whole bucket.
            time_us = bucket_end(row["bucket"])
            found[row["kind"]].append((time_us, count * is_fired, count * (not is_fired)))
    return dict(found)


def is_job(row: Mapping[str, Any]) -> bool:
    """Return whether the `kind` of a row is one of delayed jobs."""
    return str(row["kind"]).startswith(JOB_KIND)


def timer_sample(outcomes: DataFrame, *, as_of: datetime, most: int = _TIMERS) -> list[Timer]:
    """Return the timers of a uniform, reproducible sample of operations.

    An operation that completed at once had no timer, and a job has one only shortly before its end.
    """
    rows = (
        outcomes.where(F.coalesce("wait_us", F.lit(1)) > 0)
        .where(~F.col("kind").startswith(JOB_KIND))
        .orderBy(F.xxhash64("operation_id"))
        .limit(most)
        .select(
            F.unix_millis("watched_at").alias("start"),
            F.unix_millis("deadline").alias("expiration"),
            F.unix_millis(parked_until(as_of)).alias("end"),
        )
        .collect()
    )
    return [Timer(row["start"], row["expiration"], row["end"]) for row in rows]


def _ended(row: Mapping[str, Any]) -> Ended:
    return Ended(
        kind=row["kind"],
        operations=row["operations"],
        fired=row["fired"],
        expired=row["expired"],
        lost=row["lost"],
        timeout_us=row["timeout_us_p50"],
    )


def _minutes(parked: Iterable[Mapping[str, Any]]) -> tuple[list[Minute], int]:
    """Return the minutes of all kinds together, and an upper bound of their peak."""
    sums: dict[int, list[float]] = defaultdict(lambda: [0, 0.0, 0.0, 0])
    for row in parked:
        total = sums[int(row["minute"].timestamp())]
        for place, name in enumerate(("began", "wait_s", "parked_mean", "parked_peak")):
            total[place] += row[name]
    minutes = [
        Minute(start_s, int(began), wait_s, mean)
        for start_s, (began, wait_s, mean, _) in sums.items()
    ]
    return minutes, int(max((peak for *_, peak in sums.values()), default=0))
