"""The job `advise`: computes and writes the advice; the targets that it aims at."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self

from purgatory.pipeline.advise.workers import Capacity, Minutes, WorkerAdvice, advise_workers
from purgatory.pipeline.console import counted, duration, percent
from purgatory.pipeline.outcomes.manifest import Manifest
from purgatory.pipeline.rollups.wait_tables import JOB as WAITS
from purgatory.pipeline.rollups.wait_tables import Relation, relation
from purgatory.pipeline.schemas import JOB_KIND, STREAM_KIND
from purgatory.pipeline.spark.tables import Tables
from purgatory.pipeline.sql.values import text
from purgatory.pipeline.statistics import (
    Step,
    bucket_end,
    kaplan_meier,
    survival_at,
    wilson_interval,
)

LATE_US: Final = 250_000
"""An operation that ends so long after its deadline is late."""
LATE_JOB_US: Final = 5_000_000
"""A job that starts so long after it was due is late. Both are those of the alert rules."""

LEAST_FIRED = 30
"""With fewer fires there is no advice: the tail would rest on a handful of operations."""
LEAST_AT_RISK = 20
"""Operations that must still wait at the advised timeout, for the same reason."""
LONGER = 1.1
"""A timeout is advised only if it is so many times the present one: then more of them fire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The greatest share of the operations of a kind that may come to each harm.

    Refused requests are in no journal, as they never wait: `purgatory_refused_total` has them.
    """

    expired: float = 0.01
    """Requests whose timeout passed before a key fired; also the aim of advised timeouts."""
    lost: float = 0.001
    late: float = 0.01
    failed: float = 0.001
    """Jobs that failed for good."""
    drained: float = 0.01
    """Requests that a deploy ended."""

    def __post_init__(self) -> None:
        """Raise ValueError for a share that is not above 0, or above 1."""
        for field in fields(self):
            share = getattr(self, field.name)
            # Written so that NaN, which compares as false, is refused.
            if not 0 < share <= 1:
                raise ValueError(
                    f"the target of {field.name} is {share:g}: give a share above 0, at most 100%"
                )

    def __str__(self) -> str:
        """Return the text that `of` takes."""
        shares = ((field.name, getattr(self, field.name)) for field in fields(self))
        return ",".join(f"{name}={100 * share:g}%" for name, share in shares)

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the targets that `text` changes, such as "expired=5%,lost=0.0001".

        Raises ValueError.
        """
        names = [field.name for field in fields(cls)]
        given: dict[str, float] = {}
        for part in text.split(","):
            name, _, share = (piece.strip() for piece in part.partition("="))
            if name not in names:
                raise ValueError(f"unknown target {name!r}: choose from {', '.join(names)}")
            given[name] = _share(share)
        return cls(**given)


def _share(text: str) -> float:
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return math.nan


@dataclass(frozen=True, slots=True)
class TimeoutAdvice:
    """The advised timeout of one kind, or the reason why there is none."""

    kind: str
    operations: int
    fired: int
    lost: int
    timeout_us: int
    expired_share: float
    expired_share_low: float
    expired_share_high: float
    chosen_share: float
    advised_us: int | None
    low_us: int | None
    high_us: int | None
    """The 95 % confidence interval; None is beyond the observed waits."""
    is_thin: bool
    reason: str


def advise_timeout(
    ended: Mapping[str, Any], steps: Sequence[Step], chosen_share: float
) -> TimeoutAdvice:
    """Return the least timeout at which at most `chosen_share` of the operations would expire.

    `ended` is the row of their kind, and `steps` their Kaplan-Meier estimate. If it does not fall
    to the share before the longest observed wait, no timeout is advised, since nothing is known of
    longer waits.
    """
    advised = next((step for step in steps if step.survival <= chosen_share), None)
    # The lower band falls first: the earliest that the true timeout may be.
    low_us = next((step.time_us for step in steps if step.low <= chosen_share), None)
    high_us = next((step.time_us for step in steps if step.high <= chosen_share), None)
    is_thin, reason = _judged(ended, steps, advised, chosen_share)
    share_low, share_high = wilson_interval(ended["expired"], ended["operations"])
    return TimeoutAdvice(
        **{name: ended[name] for name in ("kind", "operations", "fired", "lost")},
        timeout_us=ended["timeout_us_p50"],
        expired_share=ended["expired"] / ended["operations"],
        expired_share_low=share_low,
        expired_share_high=share_high,
        chosen_share=chosen_share,
        advised_us=None if is_thin or advised is None else advised.time_us,
        low_us=None if is_thin or advised is None else low_us,
        high_us=None if is_thin or advised is None else high_us,
        is_thin=is_thin,
        reason=reason,
    )


def _judged(
    ended: Mapping[str, Any], steps: Sequence[Step], advised: Step | None, share: float
) -> tuple[bool, str]:
    if ended["fired"] < LEAST_FIRED:
        return True, (
            f"Too little data: {counted(ended['fired'], 'operation')} fired, and at least "
            f"{LEAST_FIRED} are needed. Collect more."
        )
    if advised is None:
        last = steps[-1]
        return False, (
            f"No observed wait is long enough: after {duration(last.time_us)} "
            f"{percent(last.survival)} would still be waiting, more than {percent(share)}. "
            "Timeouts cut longer waits off; give some operations a longer one, and run this again."
        )
    if advised.at_risk < LEAST_AT_RISK:
        return True, (
            f"Too little data for {percent(share)}: only "
            f"{counted(advised.at_risk, 'operation')} waited as long as "
            f"{duration(advised.time_us)}. Collect more, or choose a larger share."
        )
    timeout_us = ended["timeout_us_p50"]
    now = survival_at(steps, timeout_us)
    return False, (
        f"With {duration(advised.time_us)}, {percent(share)} would expire; with the present "
        f"{duration(timeout_us)} it is {percent(now)} of those that nothing else ends. "
        f"{_direction(advised.time_us, timeout_us)}"
    )


def _direction(advised_us: int, timeout_us: int) -> str:
    if advised_us > LONGER * timeout_us:
        return "With a longer timeout more of them would fire."
    # A shorter one would let more of them expire, and save little: a parked request is an object.
    return "Keep it."


JOB = "advice"
FILE = "advice.json"


@dataclass(frozen=True, slots=True)
class Advice:
    """The whole advice."""

    timeouts: tuple[TimeoutAdvice, ...]
    workers: WorkerAdvice

    def as_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self), indent=2) + "\n"


def run(manifest: Manifest, tables: Tables, targets: Targets, capacity: Capacity) -> Advice:
    """Write the advice on outcomes, and return it.

    Raises NothingToReadError if `waits` has not run.
    """
    found = advise_settings(
        by_kind=tables.rows(WAITS, "by_kind"),
        survival=survival_of(tables),
        parked=relation(tables, "parked"),
        targets=targets,
        capacity=capacity,
        sampling=manifest.sampling,
    )

    def fill(new: str) -> None:
        tables.folder.write_bytes(f"{new}/{FILE}", found.as_json().encode())

    tables.fill(JOB, fill)
    return found


def advise_settings(
    *,
    by_kind: Iterable[Mapping[str, Any]],
    survival: Mapping[str, Sequence[Step]],
    parked: Relation,
    targets: Targets,
    capacity: Capacity,
    sampling: Mapping[str, float] | None = None,
) -> Advice:
    """Return the advice from tables of the job `waits`.

    `survival` is the result of `survival_of_kinds`.
    Delayed jobs are not parked, and their deadline is an intent rather than a timeout. Event
    streams are parked, but no fire ends one, so no timeout is advised for them. `sampling` has the
    shares of the kinds of which not all operations were recorded.
    """
    timeouts = [
        advise_timeout(row, survival.get(row["kind"], []), targets.expired)
        for row in by_kind
        if not is_job(row) and row["kind"] != STREAM_KIND
    ]
    waiting = parked.filter(f"NOT starts_with(kind, {text(JOB_KIND)})")
    minutes = minutes_of_kinds(waiting, sampling or {})
    return Advice(tuple(timeouts), advise_workers(minutes, capacity))


def survival_of(tables: Tables) -> Mapping[str, Sequence[Step]]:
    """Return the survival curve of each kind. Raises NothingToReadError without `waits`."""

    def read() -> Mapping[str, Sequence[Step]]:
        return survival_of_kinds(tables.rows(WAITS, "wait_counts"))

    return tables.known(WAITS, "wait_counts", survival_of, read)


def survival_of_kinds(wait_counts: Iterable[Mapping[str, Any]]) -> dict[str, list[Step]]:
    """Return the survival curve of each kind, from the table wait_counts."""
    waits: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for row in wait_counts:
        # How long others without an end were at risk is unknown.
        if row["bucket"] is not None:
            is_fired = row["outcome"] == "fired"
            count = row["count"]
            # The bucket's end: an advised timeout is long enough for the whole bucket.
            time_us = bucket_end(row["bucket"])
            waits[row["kind"]].append((time_us, count * is_fired, count * (not is_fired)))
    return {kind: kaplan_meier(of_kind) for kind, of_kind in waits.items()}


def is_job(row: Mapping[str, Any]) -> bool:
    """Return whether the `kind` of a row is one of delayed jobs."""
    return str(row["kind"]).startswith(JOB_KIND)


def minutes_of_kinds(parked: Relation, sampling: Mapping[str, float]) -> Minutes:
    """Return the minutes of all kinds together.

    The peaks of several kinds within a minute are added, as if they were at the same time.
    """
    factors = (
        f"WHEN kind = {text(kind)} THEN {1 / share}" for kind, share in sampling.items() if share
    )
    found = parked.query(
        "found",
        f"""
        WITH scaled AS (SELECT *, CASE {" ".join(factors)} WHEN true THEN 1 END::DOUBLE AS factor
                        FROM found)
        SELECT epoch_us(minute) // 1000000 AS start_s,
               sum(began * factor)::DOUBLE AS operations,
               sum(began_peak * factor)::DOUBLE AS arrivals,
               sum(parked_peak * factor)::DOUBLE AS parked,
               sum(began_peak * factor ** 2)::DOUBLE AS arrivals_variance,
               sum(parked_peak * factor ** 2)::DOUBLE AS parked_variance
        FROM scaled GROUP BY ALL ORDER BY start_s
        """,
    )
    assert found is not None, "a query has rows"
    return Minutes(**found.fetchnumpy())
