"""Stored fires and shared signals: each is in the log once, and wakes who waits anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from purgatory import Purgatory
from purgatory.jobs import StoreUnavailableError
from purgatory.jobs.sql import SqlJobStore, migrate
from purgatory.jobs.stores.protocol import StoredFire, TakenFires
from purgatory.signals.redis import RedisSignals
from purgatory.timer import SystemClock
from tests.patience import PATIENCE_S
from tests.valkey_server import ValkeyServer


class ForgetfulStore(SqlJobStore):
    """A store that goes away between the log and the removal of the first fires."""

    failures = 2

    async def take_fires(self, fires: Sequence[StoredFire]) -> TakenFires:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailableError("the connection broke")
        return await super().take_fires(fires)


async def test_a_repeat_adds_nothing_to_the_log(tmp_path: Path, redis_server: ValkeyServer) -> None:
    """The relay appends again what it could not remove, under the same name, in order."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    await migrate(url)
    prefix = f"outbox-{SystemClock().now_ns()}"
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/jobs.db")
    async with (
        Purgatory("here", jobs=ForgetfulStore(url), signals=RedisSignals(redis_server.url, prefix))
        as here,
        Purgatory("there", signals=RedisSignals(redis_server.url, prefix)) as there,
    ):  # fmt: skip
        handle = await _deferred(here)
        last = asyncio.create_task(there.park("last", timeout=PATIENCE_S))
        cursor = there.cursor("k")
        await asyncio.sleep(0)
        async with AsyncSession(engine) as session:
            for number in range(20):
                await here.fire("k", number, session=session)
            await here.fire("last", session=session)
            await session.commit()
        assert (await last).status == "fired"
        async with asyncio.timeout(PATIENCE_S):
            job = await here.job(handle).get()
            while not job.fired_json:
                job = await here.job(handle).wait_changed(job.version)
        found = there.signals.read("k", there.signals.position("k", cursor), 100)
        assert [there.signals.value(signal) for signal in found] == list(range(20))
        assert job.fired_json == "0"
    await engine.dispose()


async def _deferred(purgatory: Purgatory) -> str:
    purgatory.handled_elsewhere(["note"])
    return (await purgatory.defer("note", delay=3_600, keys=["k"])).id
