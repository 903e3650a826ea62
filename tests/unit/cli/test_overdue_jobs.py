"""The warning of `doctor` about jobs that no worker starts."""

from __future__ import annotations

from purgatory.cli.doctor import overdue_warnings
from purgatory.jobs.model.spec import JobSpec
from purgatory.testing import MockClock
from tests.step_methods import MemorySteps


async def test_busy_workers_and_missing_handlers_are_apart() -> None:
    """A worker that is busy holds jobs of its handlers; those of another are held by none."""
    clock = MockClock(1_800_000_000_000)
    store = MemorySteps(now_ms=clock.wall_ms)
    await store.open()

    async def add(handler: str, delay: float = 0) -> None:
        await store.add([JobSpec.of(handler, wall_ms=clock.wall_ms(), delay=delay)])

    assert await overdue_warnings(store) == []
    await add("resize", 30)
    await add("resize", 30)
    clock.advance(89_000)
    assert await overdue_warnings(store) == []
    clock.advance(2_000)
    [warning] = await overdue_warnings(store)
    assert "by up to 61 s" in warning
    assert "'resize': no worker runs, or none has the handler" in warning and "busy" not in warning
    claimed = await store.claim("w", within_ms=0, limit=1, lease_ms=15_000)
    [warning] = await overdue_warnings(store)
    assert "'resize': workers have the handler, and are busy;" in warning
    assert "none has" not in warning
    await add("remindd")
    await store.start([job.claim for job in claimed.jobs], lease_ms=100_000)
    clock.advance(90_000)
    [warning] = await overdue_warnings(store)
    assert "such as of 'remindd': no worker runs, or none has the handler" in warning
    assert "mistyped; and of 'resize': workers have the handler, and are busy;" in warning
    clock.advance(60_000)
    [warning] = await overdue_warnings(store)
    assert "such as of 'remindd', 'resize': no worker runs" in warning and "busy" not in warning
    await store.close()
