"""A callback to a port at which nobody listens."""

import asyncio

from purgatory import Purgatory
from purgatory.jobs import JobState, MemoryJobStore
from purgatory.jobs.callbacks import CALLBACK, Callback
from purgatory.jobs.callbacks.webhook import Webhook


async def main() -> None:
    purgatory = Purgatory(jobs=MemoryJobStore())
    purgatory.handler(CALLBACK)(Webhook(allow_private=True))
    async with purgatory:
        callback = Callback.of("http://127.0.0.1:9/")
        handle = await purgatory.defer(CALLBACK, callback, delay=0, max_attempts=1)
        job = await handle.wait(30)
        assert job.state is JobState.FAILED and "no connection" in str(job.error)


asyncio.run(main())
