"""What a store has to offer to be tested against the contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from purgatory.jobs import JobLimits, JobStore
from tests.step_methods import MemorySteps, StepMethods


class ContractStore(JobStore, StepMethods, Protocol):
    """A store with a method for each step, as the tests call them."""


class JobStores(Protocol):
    """One set of jobs, empty at first, and any number of store objects that work on it.

    Made afresh for each test and for each example of Hypothesis, thousands of times: the server is
    a fixture of the session, and a set of jobs is a schema, a prefix or a file of its own.
    """

    async def connect(self) -> ContractStore:
        """Return another store object, open: another process, as far as it knows."""
        ...

    async def disconnect(self, store: ContractStore) -> None:
        """Close one, as a process that ends does."""
        ...

    async def corrupt(self, job_id: str) -> bool:
        """Overwrite the record of a job so that it is none; False where nothing can."""
        ...

    async def quarantined(self) -> list[str]:
        """Return the ids of the records that are kept in quarantine, the latest last."""
        ...

    async def close(self) -> None:
        """Close every store object that is open, and remove the jobs."""
        ...


MakeJobStores = Callable[[JobLimits, Callable[[], int]], JobStores]
"""Takes limits and the clock that every store object is to go by. Immediate, on no event loop."""


class MemoryJobStores:
    """Jobs in memory: one object stands for all, as processes cannot share it."""

    def __init__(self, limits: JobLimits, now_ms: Callable[[], int]) -> None:
        self._store = MemorySteps(limits=limits, now_ms=now_ms)

    async def connect(self) -> ContractStore:
        await self._store.open()
        return self._store

    async def disconnect(self, store: ContractStore) -> None:
        """Leave it open for the others."""

    async def corrupt(self, job_id: str) -> bool:
        return False

    async def quarantined(self) -> list[str]:
        return []

    async def close(self) -> None:
        await self._store.close()
