"""A process that decides pending fires, on jobs and records in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from purgatory.jobs import Job, JobOutcome
from purgatory.jobs.model import Deadline, JobSpec, OnFire, RunNow, WaitAgain
from purgatory.jobs.pending_fires import PendingFires
from purgatory.testing import AutojumpEventLoop
from tests.unit.jobs.worker.runs import now_ms
from tests.unit.jobs.worker.slow_store import SlowStore

HOUR_S = 3_600


@dataclass(frozen=True)
class Found:
    """A record, as `SharedSignals.pending` returns it."""

    id: str
    record: bytes
    age_ms: int


class Records:
    """Records in memory, each with the wall time at which its key fired."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[bytes, int]] = {}
        self.reads: list[int] = []
        """How many records each request has skipped."""
        self.error: Exception | None = None
        self.ask_s: list[float] = []
        """How long requests to read take, the last first."""
        self.reply_s: list[float] = []
        """The same of the replies to them."""
        self._numbers = iter(range(1_000_000))

    async def add_pending(self, record: bytes, age_ms: int) -> None:
        self._fail()
        self.kept[f"{next(self._numbers):06}"] = (record, now_ms() - age_ms)

    async def pending(self, limit: int, skipped: int = 0) -> Sequence[Any]:
        self.reads.append(skipped)
        await asyncio.sleep(self.ask_s.pop() if self.ask_s else 0)
        self._fail()
        names = sorted(self.kept)[skipped : skipped + limit]
        found = [Found(name, self.kept[name][0], now_ms() - self.kept[name][1]) for name in names]
        await asyncio.sleep(self.reply_s.pop() if self.reply_s else 0)
        return found

    async def remove_pending(self, ids: Sequence[str]) -> None:
        for name in ids:
            self.kept.pop(name, None)

    async def add(self, key: str, value: int = 1, *, age_ms: int = 0, acked_ms: int = 0) -> None:
        """Keep what another process has fired."""
        await self.add_pending(json.dumps([key, str(value), acked_ms]).encode(), age_ms)

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error


class Process:
    """A process that decides recorded fires, and what it tells of jobs."""

    def __init__(self, store: SlowStore, records: Records | None, *, tells: bool = True) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, AutojumpEventLoop)
        self.clock = loop.clock
        self.store = store
        self.has_records = records is not None
        self.is_open = True
        self.ended: list[Job] = []
        self.fires = PendingFires(
            store,
            records,
            is_open=lambda: self.is_open,
            on_end=self.ended.append if tells else None,
            clock=loop.clock,
        )

    async def fire(self, key: str, value: int = 1, *, acked_ms: int = 0) -> bool:
        fired_ns = self.clock.now_ns()
        return await self.fires.add(key, str(value), fired_ns=fired_ns, acked_ms=acked_ms)

    async def defer(self, key: str, **options: Any) -> str:
        options.setdefault("on_fire", "cancel")
        spec = JobSpec.of("note", wall_ms=now_ms(), delay=HOUR_S, keys=[key], **options)
        await self.store.add([spec])
        return spec.id

    async def fired(self, job_id: str) -> str | None:
        """Return the value that has decided a job."""
        [job] = await self.store.get([job_id])
        assert job is not None
        assert job.outcome in (None, JobOutcome.FIRED)
        return job.fired_json

    async def wait_again(self, key: str) -> str:
        """Return a job that has run, and waits on `key` from now on."""
        job_id = await self.defer("first")
        await self.store.run([RunNow(job_id)])
        [job] = (await self.store.claim("w", within_ms=0, limit=10, lease_ms=60_000)).jobs
        await self.store.start([job.claim], lease_ms=60_000)
        deadline = Deadline(delay_ms=HOUR_S * 1000)
        await self.store.run([WaitAgain(job.claim, deadline, (key,), 1, OnFire.CANCEL, None)])
        return job_id
