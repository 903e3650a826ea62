"""The rows of the table, in its order."""

from __future__ import annotations

from tests.benchmarks.comparison.row import Row, Target
from tests.benchmarks.jobs.databases import Database
from tests.benchmarks.jobs.deferring import CALLERS, MEASURE

# At most 1.5 times what one would write by hand.
BY_HAND = 1 / 1.5
LATE_MS = 20
TURN_MS = 20


def _at_least(times: float) -> Target:
    return Target(times, times)


def _at_most(figure: float) -> Target:
    return Target(figure, figure, is_limit=True)


def _deferring(database: Database) -> Row:
    return Row(
        title=f"{MEASURE}, {CALLERS} callers, {database}",
        stage=f"deferring, {database}",
        measure=MEASURE,
        unit="us",
        baseline="by hand",
        target=_at_least(BY_HAND),
    )


def _lateness(database: Database) -> tuple[Row, ...]:
    stage = f"lateness, {database}"
    among = f"{{late}} due in {{minute_s}} s, {database}"
    return (
        Row(title=f"early, of {among}", stage=stage, measure="early", unit="", target=_at_most(0)),
        Row(
            title=f"late at p50, {among}",
            stage=stage,
            measure="late at p50",
            unit="ms",
            baseline="a bare timer",
        ),
        Row(
            title=f"late at p99, {among}",
            stage=stage,
            measure="late at p99",
            unit="ms",
            baseline="a bare timer",
            target=_at_most(LATE_MS),
        ),
        Row(title=f"CPU to run one, {database}", stage=stage, measure="CPU to run", unit="us"),
    )


def _recovery(database: Database) -> tuple[Row, ...]:
    stage = f"recovery, {database}"
    among = f"{{backlog}} jobs, {database}"
    return (
        Row(
            title=f"recovery: ready, {among}",
            stage=stage,
            measure="ready",
            unit="ms",
            baseline="the horizon alone",
        ),
        Row(
            title=f"recovery: overdue done, {among}",
            stage=stage,
            measure="overdue done",
            unit="ms",
            baseline="the horizon alone",
        ),
        Row(
            title=f"recovery: memory at its peak, {among}",
            stage=stage,
            measure="memory",
            unit="MB",
            baseline="the horizon alone",
            target=_at_least(0.9),
        ),
        Row(
            title=f"recovery: longest turn of the loop, {among}",
            stage=stage,
            measure="longest turn",
            unit="ms",
            target=_at_most(TURN_MS),
        ),
    )


def _peer(database: Database, peer: str) -> tuple[Row, ...]:
    def row(title: str, measure: str, unit: str) -> Row:
        return Row(
            title=f"{title}, {database}",
            stage=f"peer, {database}",
            measure=measure,
            unit=unit,
            baseline=peer,
            target=_at_least(1),
        )

    return (
        row(f"defer, {CALLERS} callers", "defer", "us"),
        row("run {peer} jobs, due together", "run", "us"),
        row("late at p50, 50 due each second", "late at p50", "ms"),
        row("late at p99, 50 due each second", "late at p99", "ms"),
    )


ROWS: tuple[Row, ...] = (
    *(_deferring(database) for database in Database),
    *(row for database in Database for row in _lateness(database)),
    *(row for database in Database for row in _recovery(database)),
    *_peer(Database.REDIS, "SAQ"),
    *_peer(Database.POSTGRESQL, "Procrastinate"),
)
