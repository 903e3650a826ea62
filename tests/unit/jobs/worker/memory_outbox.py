"""An outbox in memory, alone and beside a store of jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from purgatory.jobs import JobError, MemoryJobStore
from purgatory.jobs.model import Add, Added, Fire, JobSpec, KeyFired
from purgatory.jobs.stores.outbox import StoredFire, TakenFire, TakenFires
from tests.unit.jobs.worker.runs import now_ms


class Outbox:
    """Stored fires, the time of each request, and the jobs that wait on keys."""

    def __init__(self) -> None:
        self.stored: list[StoredFire] = []
        self.locked: set[str] = set()
        self.jobs: dict[str, list[str]] = {}
        """Ids by key: a fire cancels them, `at_once` in one transaction."""
        self.at_once = 1_000
        self.errors: list[Exception | None] = []
        """What the next requests fail with."""
        self.read_s = 0.0
        self.reads: list[bool] = []
        """For each, whether it was for own fires."""
        self.takes: list[list[int]] = []
        self._numbers = iter(range(1, 1_000_000))

    def store(self, *keys: str, origin: str = "here") -> None:
        for key in keys:
            fire = StoredFire(next(self._numbers), origin, key, "1", None, now_ms())
            self.stored.append(fire)

    async def add_in(self, session: Any, specs: Sequence[JobSpec]) -> list[Added | JobError]:
        raise NotImplementedError

    async def fire_in(self, session: Any, **options: Any) -> None:
        raise NotImplementedError

    async def stored_fires(
        self, origin: str, *, is_own: bool = True, after: int = 0, limit: int
    ) -> list[StoredFire]:
        self.reads.append(is_own)
        found = [
            fire
            for fire in self.stored
            if (fire.origin == origin) is is_own and fire.number > after
        ]
        await asyncio.sleep(self.read_s)
        self._fail()
        return found[:limit]

    async def take_fires(self, fires: Sequence[StoredFire]) -> TakenFires:
        self.takes.append([fire.number for fire in fires])
        self._fail()
        taken: list[TakenFire] = []
        waiting: set[str] = set()
        room = self.at_once
        for fire in fires:
            if fire.key in self.locked:
                waiting.add(fire.key)
            if fire.key in waiting or fire not in self.stored:
                continue
            jobs = self.jobs.get(fire.key, [])
            cancelled, jobs[:room] = tuple(jobs[:room]), []
            room -= len(cancelled)
            taken.append(TakenFire(fire, KeyFired(cancelled=cancelled, has_more=bool(jobs))))
            if jobs:
                return TakenFires(tuple(taken), frozenset(waiting), is_cut=True)
            self.stored.remove(fire)
        return TakenFires(tuple(taken), frozenset(waiting))

    def _fail(self) -> None:
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error


class Session:
    """A transaction of the application."""

    def __init__(self) -> None:
        self.on_commit: list[Callable[[], object]] = []

    def commit(self) -> None:
        for each in self.on_commit:
            each()


class OutboxStore(MemoryJobStore):
    """Jobs in memory, and the fires of sessions; jobs are stored at once."""

    def __init__(self) -> None:
        super().__init__(now_ms=now_ms)
        self.stored: list[StoredFire] = []
        self._numbers = iter(range(1, 1_000_000))

    async def add_in(self, session: Session, specs: Sequence[JobSpec]) -> list[Added | JobError]:
        return await self.run([Add(spec) for spec in specs])

    async def fire_in(
        self,
        session: Session,
        *,
        key: str,
        value_json: str,
        owner: str | None,
        origin: str,
        on_commit: Callable[[], object],
        traceparent: str | None = None,
    ) -> None:
        fire = StoredFire(
            next(self._numbers), origin, key, value_json, owner, now_ms(), traceparent
        )
        session.on_commit += [lambda: self.stored.append(fire), on_commit]

    async def stored_fires(
        self, origin: str, *, is_own: bool = True, after: int = 0, limit: int
    ) -> list[StoredFire]:
        return [
            fire
            for fire in self.stored
            if (fire.origin == origin) is is_own and fire.number > after
        ][:limit]

    async def take_fires(self, fires: Sequence[StoredFire]) -> TakenFires:
        taken: list[TakenFire] = []
        for fire in fires:
            [fired] = await self.run([Fire(fire.key, fire.value_json)])
            self.stored.remove(fire)
            taken.append(TakenFire(fire, fired))
        return TakenFires(tuple(taken))
