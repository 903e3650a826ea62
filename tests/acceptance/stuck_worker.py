"""`python -m tests.acceptance.stuck_worker URL KIND`: stops while a handler does not end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading

from purgatory import Purgatory
from purgatory.jobs import JobContext, WorkerSettings
from purgatory.jobs.sql import SqlJobStore, migrate


async def main(url: str, kind: str) -> None:
    """Defer a job, print its id once it runs, and stop."""
    await migrate(url)
    settings = WorkerSettings(grace_ms=100, lease_ms=1_500)
    purgatory = Purgatory(jobs=SqlJobStore(url), job_settings=settings)
    is_running = asyncio.Event()
    loop = asyncio.get_running_loop()

    def in_thread(job: JobContext) -> None:
        loop.call_soon_threadsafe(is_running.set)
        threading.Event().wait()

    async def in_task(job: JobContext) -> None:
        is_running.set()
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.1)

    async def for_ever(job: JobContext) -> None:
        is_running.set()
        while True:
            with contextlib.suppress(BaseException):
                await asyncio.sleep(0.1)

    handlers = {"thread": in_thread, "task": in_task, "anything": for_ever}
    purgatory.handler("stuck")(handlers[kind])

    async with purgatory:
        job = await purgatory.defer("stuck", delay=0)
        await is_running.wait()
        sys.stdout.write(f"{job.id}\n")


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    asyncio.run(main(*sys.argv[1:]))
