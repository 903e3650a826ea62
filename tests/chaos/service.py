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
from purgatory.jobs import Again, FailJobError, JobContext, JobStore, WorkerSettings
from purgatory.signals.redis import RedisSignals
from purgatory.timer import SystemClock
from tests.chaos.ledger import (
    AGAIN_MS,
    LEASE_MS,
    MAX_RUNNING,
    MAX_RUNNING_PER_KEY,
    TICK_MS,
    MendBook,
    Run,
    RunBook,
    Tick,
    wall_ms,
)


def make_store(url: str) -> JobStore:
    """Return the store at `url`, as the service would make it."""
    return make_job_store(url, Path())


class WrongClock(SystemClock):
    """The clock of a machine that is some time ahead of others, or behind."""

    __slots__ = ("_ahead_ms",)

    def __init__(self, ahead_ms: int) -> None:
        self._ahead_ms = ahead_ms

    def wall_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC, as this machine has them."""
        return super().wall_ms() + self._ahead_ms


def create_app(url: str, signals_url: str, folder: Path, ahead_ms: int = 0) -> FastAPI:
    """Return an application that runs the jobs of `url` and notes each run in `folder`."""
    runs, mended = RunBook(folder), MendBook(folder)
    chance = random.Random()
    settings = WorkerSettings(lease_ms=LEASE_MS, misfire_after_ms=0)
    purgatory = Purgatory(
        jobs=make_store(url),
        job_settings=settings,
        signals=RedisSignals(signals_url),
        clock=WrongClock(ahead_ms),
    )

    @purgatory.handler(
        "charge", http=True, max_running=MAX_RUNNING, max_running_per_key=MAX_RUNNING_PER_KEY
    )
    @purgatory.handler("note", http=True)
    async def note(job: JobContext, payload: dict[str, int]) -> Again | None:
        outcome = str(job.outcome)
        run = Run(payload["number"], job.id, job.attempt, outcome, wall_ms(), job.round)
        runs.note(run)
        # So that some are killed at work.
        await asyncio.sleep(chance.uniform(0, 0.02))
        runs.note_end(run)
        if payload["fails"] and not mended.is_mended(job.id):
            raise FailJobError("not mended yet")
        if job.round == payload["rounds"]:
            return None
        return job.again(delay=AGAIN_MS / 1000, keys=[])

    @purgatory.periodic("tick", every=TICK_MS / 1000)
    async def tick(job: JobContext) -> None:
        runs.note_tick(Tick(job.id, round(job.deadline.timestamp() * 1000), wall_ms()))
        await asyncio.sleep(chance.uniform(0, 0.2))

    app = FastAPI()
    install(app, purgatory, authorize=ALLOW_ANYONE)
    app.include_router(create_health_router(purgatory))
    return app


if "CHAOS_STORE" in os.environ:
    app = create_app(
        os.environ["CHAOS_STORE"],
        os.environ["CHAOS_SIGNALS"],
        Path(os.environ["CHAOS_FOLDER"]),
        int(os.environ["CHAOS_AHEAD_MS"]),
    )
