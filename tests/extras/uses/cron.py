"""Times by a cron expression."""

from purgatory import Purgatory
from purgatory.jobs import JobContext, MemoryJobStore

purgatory = Purgatory(jobs=MemoryJobStore())


@purgatory.periodic(cron="0 6 * * mon-fri", timezone="UTC")
async def report(job: JobContext) -> None:
    """Do nothing."""


[series] = purgatory.handlers.series
assert series.grid.after(0) == 6 * 3_600_000
