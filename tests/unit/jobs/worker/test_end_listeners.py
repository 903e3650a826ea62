"""How jobs ended, told to those who write it down."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from purgatory import Purgatory, Status
from purgatory.jobs import Again, FailJobError, JobContext, MemoryJobStore
from purgatory.journal import Journal, ParquetFiles
from purgatory.operations import JobEvent, JobRecorder, OperationEvent
from purgatory.testing import AutojumpEventLoop
from tests.journal_batches import rows_in
from tests.unit.jobs.worker.failing_job_store import FailingJobStore

Make = Callable[..., Purgatory]
WALL_MS = 1_800_000_000_000


def the_loop() -> AutojumpEventLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, AutojumpEventLoop)
    return loop


class Ends(list[dict[str, Any]]):
    """Notes what it is told of jobs."""

    def __call__(self, event: OperationEvent) -> None:
        """Of operations it notes nothing."""

    def job_event(self, event: JobEvent) -> None:
        self.append(asdict(event))

    def words(self) -> list[tuple[str, str, int, str | None, str | None]]:
        return [
            (end["status"], end["state"], end["attempt"], end["key"], end["error"]) for end in self
        ]


@pytest.fixture
def ends() -> Ends:
    """What was told."""
    return Ends()


@pytest.fixture
async def store() -> FailingJobStore:
    """The store, by the wall clock of the loop."""
    the_loop().clock.set_wall(WALL_MS)
    return FailingJobStore(the_loop().clock.wall_ms)


async def test_of_each_job_that_ran_its_end_is_told_once(
    store: MemoryJobStore, make_purgatory: Make, ends: Ends
) -> None:
    """With what decided it, its attempts and its error; nothing before it is over."""
    purgatory = make_purgatory(jobs=store, listeners=[ends])

    @purgatory.handler("work")
    async def work(job: JobContext, payload: str) -> None:
        if payload == "fail":
            raise FailJobError("no use")
        if payload == "retry" and job.attempt == 1:
            raise OSError("not yet")

    async with purgatory:
        for payload in ("ok", "fail", "retry"):
            job = await purgatory.defer("work", payload, delay=5, max_attempts=2)
            assert not ends
            await job.wait()
            [end] = ends
            assert (end["job_id"], end["handler"]) == (job.id, "work")
            assert end["deadline_ms"] - end["deferred_at_ms"] == 5_000
            assert 0 <= end["lateness_ms"] <= 2
            assert (end["status"], end["state"], end["error"]) == (
                Status.EXPIRED,
                "failed" if payload == "fail" else "done",
                "FailJobError: no use" if payload == "fail" else None,
            )
            assert end["attempt"] == (2 if payload == "retry" else 1)
            ends.clear()
        fired = await purgatory.defer("work", "ok", delay=5, keys=["a", "b"])
        await purgatory.fire("b")
        await fired.wait()
    assert ends.words() == [("fired", "done", 1, "b", None)]
    assert list(ends[0]["keys"]) == ["a", "b"]


async def test_jobs_that_never_run_are_told_by_whom_ended_them(
    store: MemoryJobStore, make_purgatory: Make, ends: Ends
) -> None:
    """Cancelled by their id or by a key, or fired away."""
    async with make_purgatory(jobs=store, listeners=[ends]) as purgatory:
        purgatory.handler("work")(_never)
        one = await purgatory.defer("work", delay=60)
        await one.cancel()
        other = await purgatory.defer("work", delay=60)
        await purgatory.jobs.cancel(other.id)
        await purgatory.defer("work", delay=60, keys=["a"])
        await purgatory.jobs.cancel_for_key("a")
        await purgatory.defer("work", delay=60, keys=["b"], on_fire="cancel")
        await purgatory.fire("b")
    assert ends.words() == [
        ("cancelled", "cancelled", 0, None, None),
        ("cancelled", "cancelled", 0, None, None),
        ("cancelled", "cancelled", 0, None, None),
        ("fired", "cancelled", 0, "b", None),
    ]


async def test_a_missed_job_is_told_as_cancelled(
    store: MemoryJobStore, make_purgatory: Make, ends: Ends
) -> None:
    """It was due while nobody ran, and its policy is to skip it."""
    async with make_purgatory(jobs=store) as purgatory:
        purgatory.handler("work")(_never)
        job = await purgatory.defer("work", delay=60, misfire="skip")
    the_loop().clock.set_wall(WALL_MS + 3_600_000)
    async with make_purgatory(jobs=store, listeners=[ends]) as purgatory:
        purgatory.handler("work")(_never)
        await purgatory.job(job.id).wait()
    assert ends.words() == [("cancelled", "cancelled", 0, None, None)]


async def test_what_cannot_be_told_stops_nothing(
    make_purgatory: Make, ends: Ends, caplog: pytest.LogCaptureFixture
) -> None:
    """A listener that fails is logged, and so is a store that does not say what was fired away."""
    the_loop().clock.set_wall(WALL_MS)

    class Silent(FailingJobStore):
        async def get(self, job_ids: Any) -> Any:
            self.is_down = True
            try:
                return await super().get(job_ids)
            finally:
                self.is_down = False

    class Broken(Ends):
        def job_event(self, event: JobEvent) -> None:
            raise ZeroDivisionError

    store = Silent(the_loop().clock.wall_ms)
    with caplog.at_level(logging.WARNING, "purgatory.jobs"):
        async with make_purgatory(jobs=store, listeners=[Broken(), ends]) as purgatory:
            purgatory.handled_elsewhere(["work"])
            job = await purgatory.defer("work", delay=60)
            assert (await job.cancel()).state == "cancelled"
            await purgatory.defer("work", delay=60, keys=["b"], on_fire="cancel")
            assert (await purgatory.fire("b")).jobs == 1
    assert len(ends) == 1
    actions = [getattr(record, "action", None) for record in caplog.records]
    assert actions == ["store-warning", "listener-error", "ends-untold"]


async def test_the_journal_has_a_row_for_each_job_that_ended(
    store: MemoryJobStore, make_purgatory: Make, tmp_path: Path
) -> None:
    """Of kind job:HANDLER; late by its start, however long its handler took."""
    journal = Journal(ParquetFiles(tmp_path), clock=the_loop().clock)
    assert isinstance(journal, JobRecorder)
    with journal:
        async with make_purgatory(jobs=store, listeners=[journal]) as purgatory:

            @purgatory.handler("work")
            async def work(job: JobContext, payload: None) -> None:
                await asyncio.sleep(30)

            job = await purgatory.defer("work", delay=60, keys=["a"])
            stored = await job.wait()
    [row] = [row for row in rows_in(tmp_path) if row["kind"] == "job:work"]
    assert (row["operation_id"], row["event"], row["state"]) == (f"job:{job.id}", "expired", "done")
    assert (row["handler"], row["attempt"], row["keys"]) == ("work", 1, ["a"])
    assert stored.lateness_ms is not None
    assert row["lateness_us"] == stored.lateness_ms * 1_000
    assert 30 <= (row["completed_at"] - row["deadline"]).total_seconds() < 31
    assert 90 <= (row["completed_at"] - row["watched_at"]).total_seconds() < 91


async def _never(job: JobContext, payload: None) -> None:
    raise AssertionError("it was to be cancelled")


async def test_a_listener_that_was_added_is_told_of_what_fired_before(
    store: MemoryJobStore, make_purgatory: Make, ends: Ends
) -> None:
    """As one that was there from the beginning."""
    purgatory = make_purgatory(jobs=store)
    purgatory.handled_elsewhere(["work"])
    purgatory.add_listener(ends)
    async with purgatory:
        since = purgatory.cursor("k")
        await purgatory.fire("k")
        await purgatory.defer("work", delay=5, keys=["k"], since=since, on_fire="cancel")
    assert [end["state"] for end in ends] == ["cancelled"]


async def test_of_a_job_that_waits_again_and_whose_key_has_fired_the_end_is_told(
    store: MemoryJobStore, make_purgatory: Make, ends: Ends
) -> None:
    """Behind that of the round before, though the key has fired before both."""
    purgatory = make_purgatory(jobs=store)
    purgatory.add_listener(ends)

    @purgatory.handler
    async def work(job: JobContext) -> Again:
        since = purgatory.cursor("k")
        await purgatory.fire("k")
        return job.again(delay=900, keys=["k"], since=since, on_fire="cancel")

    async with purgatory:
        await (await purgatory.defer("work", delay=0)).wait(1)
    assert [end["state"] for end in ends] == ["waiting", "cancelled"]
