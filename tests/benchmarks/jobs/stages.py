"""What is measured, database by database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.benchmarks.comparison.row import Samples
from tests.benchmarks.jobs.databases import Database
from tests.benchmarks.jobs.plan import JobsPlan
from tests.benchmarks.jobs.worker import measured

Stage = Callable[[JobsPlan], Awaitable[Samples]]

# The measurement of the peer on a database.
PEERS = {Database.REDIS: "saq", Database.POSTGRESQL: "procrastinate"}


async def _deferring(database: Database, plan: JobsPlan) -> Samples:
    with database.served() as url:
        return await measured(
            "deferring", database=database, url=url, jobs=plan.deferred, rounds=plan.rounds
        )


async def _lateness(database: Database, plan: JobsPlan) -> Samples:
    sizes = {"jobs": plan.late, "spread_s": plan.minute_s}
    with database.served() as url:
        # At the same time: what the machine itself makes late is in both.
        ours, bare = await asyncio.gather(
            measured("lateness", database=database, url=url, **sizes),
            measured("bare_lateness", **sizes),
        )
    return ours | bare


async def _recovery(database: Database, plan: JobsPlan) -> Samples:
    samples: Samples = {}
    for name, waiting in (("the horizon alone", 0), ("purgatory", plan.backlog)):
        with database.served() as url:
            await measured("backlog", database=database, url=url, jobs=waiting)
            await measured("horizon", database=database, url=url, jobs=plan.horizon)
            samples |= await measured(
                "recovery", database=database, url=url, overdue=plan.horizon, name=name
            )
    return samples


async def _peer(database: Database, plan: JobsPlan) -> Samples:
    samples: Samples = {}
    for name in (PEERS[database], "ours"):
        with database.served() as url:
            samples |= await measured(
                name, database=database, url=url, jobs=plan.peer, spread_s=plan.peer_s
            )
    return samples


def _of(stage: Callable[[Database, JobsPlan], Awaitable[Samples]], database: Database) -> Stage:
    return lambda plan: stage(database, plan)


STAGES: dict[str, Stage] = {
    **{f"deferring, {database}": _of(_deferring, database) for database in Database},
    **{f"lateness, {database}": _of(_lateness, database) for database in Database},
    **{f"recovery, {database}": _of(_recovery, database) for database in Database},
    **{f"peer, {database}": _of(_peer, database) for database in PEERS},
}
