"""What is killed: a service with one handler, which writes its runs down."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

from fastapi import FastAPI

from app.job_store import make_job_store
from purgatory import Purgatory
from purgatory.fastapi import ALLOW_ANYONE, create_health_router, install
from purgatory.jobs import JobContext, JobStore, WorkerSettings
from tests.chaos.ledger import RunBook

# A job that its worker left behind is with another after this.
LEASE_MS = 2_000


def make_store(url: str) -> JobStore:
    """Return the store at `url`, as the service would make it."""
    return make_job_store(url, Path())


def create_app(url: str, folder: Path) -> FastAPI:
    """Return an application that runs the jobs of `url` and notes each run in `folder`."""
    runs = RunBook(folder)
    chance = random.Random()
    settings = WorkerSettings(lease_ms=LEASE_MS, misfire_after_ms=0)
    purgatory = Purgatory(jobs=make_store(url), job_settings=settings)

    @purgatory.handler("note", http=True)
    async def note(job: JobContext, payload: dict[str, int]) -> None:
        runs.note(payload["number"], job.id, job.attempt, str(job.outcome))
        # So that some are killed at work.
        await asyncio.sleep(chance.uniform(0, 0.02))

    app = FastAPI()
    install(app, purgatory, authorize=ALLOW_ANYONE)
    app.include_router(create_health_router(purgatory))
    return app


if "CHAOS_STORE" in os.environ:
    app = create_app(os.environ["CHAOS_STORE"], Path(os.environ["CHAOS_FOLDER"]))
