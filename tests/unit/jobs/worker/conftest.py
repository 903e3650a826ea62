"""A worker in virtual time, with a handler that notes its runs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from purgatory import Purgatory
from purgatory.jobs import MemoryJobStore, WorkerSettings
from tests.promises.kit import Log, now_ms
from tests.unit.jobs.worker.failing_job_store import FailingJobStore
from tests.unit.jobs.worker.runs import Make, leap
from tests.virtual_time import anyio_backend  # noqa: F401 # a fixture


@pytest.fixture
async def store() -> FailingJobStore:
    """The store, by the wall clock of the loop."""
    leap(1_800_000_000_000)
    return FailingJobStore(now_ms)


@pytest.fixture
def log() -> Log:
    """What was run."""
    return Log()


@pytest.fixture
def job_settings() -> WorkerSettings:
    """The defaults; SELDOM in runs.py are others."""
    return WorkerSettings()


@pytest.fixture
async def purgatory(
    store: MemoryJobStore, make_purgatory: Make, job_settings: WorkerSettings, log: Log
) -> AsyncIterator[Purgatory]:
    """An open purgatory with a handler called "note"."""
    purgatory = make_purgatory(jobs=store, job_settings=job_settings)
    purgatory.handler("note")(log)
    async with purgatory:
        yield purgatory
