"""A delayed job in SQLite."""

import asyncio

from purgatory import Purgatory
from purgatory.jobs import JobContext, JobState
from purgatory.jobs.sql import SqlJobStore, migrate

URL = "sqlite:///jobs.db"


async def main() -> None:
    await migrate(URL)
    purgatory = Purgatory(jobs=SqlJobStore(URL))

    @purgatory.handler
    async def note(job: JobContext) -> None:
        """Do nothing."""

    async with purgatory:
        job = await (await purgatory.defer("note", delay=0)).wait(30)
        assert job.state is JobState.DONE


asyncio.run(main())
