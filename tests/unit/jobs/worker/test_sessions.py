"""Jobs and fires in transactions of the application, on an outbox in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.jobs import (
    DuplicateJobError,
    InvalidJobError,
    InvalidPayloadError,
    JobOutcome,
    JobState,
    MemoryJobStore,
)
from tests.promises.kit import Log, OutboxDatabase, Session, now_ms
from tests.unit.jobs.worker.runs import Make

TRACEPARENT = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


class Propagation:
    """A trace that goes on for ever."""

    def current(self) -> str | None:
        return TRACEPARENT

    def restore(self, traceparent: str | None) -> AbstractContextManager[object]:
        return self._restored()

    @contextmanager
    def _restored(self) -> Iterator[object]:
        yield None


@pytest.fixture
async def store() -> MemoryJobStore:
    """Jobs that take part in transactions."""
    return OutboxDatabase()


@pytest.fixture
def session() -> Session:
    return Session()


async def test_a_job_in_a_session(purgatory: Purgatory, session: Session, log: Log) -> None:
    """It is deferred as any other: with what it is, and runs when it is due."""
    began_ms = now_ms()
    handle = await purgatory.defer("note", 7, delay=60, session=session)
    assert handle.added is not None and handle.added.job.id == handle.id
    assert (await handle.wait()).state is JobState.DONE
    [run] = log
    assert run.payload == 7 and run.at_ms - began_ms >= 60_000


async def test_a_job_in_a_session_that_is_refused(purgatory: Purgatory, session: Session) -> None:
    """As without one."""
    await purgatory.defer("note", delay=60, dedupe_key="one", session=session)
    with pytest.raises(InvalidPayloadError):
        await purgatory.defer("note", object(), delay=60, session=session)
    with pytest.raises(DuplicateJobError):
        await purgatory.defer("note", delay=60, dedupe_key="one", session=session)


async def test_since_and_a_session(purgatory: Purgatory, session: Session) -> None:
    """What fires until the commit would not count: one of them is to be left out."""
    since = purgatory.cursor("k")
    with pytest.raises(InvalidJobError, match="leave one of them out") as raised:
        await purgatory.defer("note", delay=60, keys=["k"], since=since, session=session)
    assert raised.value.param == "since"
    await purgatory.defer("note", delay=60, keys=["k"], session=session)
    await purgatory.defer("note", delay=60, keys=["k"], since=since)


async def test_a_fire_in_a_session(purgatory: Purgatory, session: Session) -> None:
    """Nothing happens before the commit; then whoever waits is woken, and jobs are decided."""
    ended: list[str] = []
    purgatory.jobs._on_end = lambda job: ended.append(job.id)
    handle = await purgatory.defer("note", delay=600, keys=["k"], on_fire="cancel")
    parked = asyncio.create_task(purgatory.park("k", timeout=60))
    await asyncio.sleep(1)
    await purgatory.fire("k", {"a": 1}, session=session)
    await asyncio.sleep(10)
    assert not parked.done() and (await handle.get()).is_undecided
    session.commit()
    await asyncio.sleep(0.001)
    assert parked.done() and (await parked).value == {"a": 1}
    job = await handle.get()
    assert (job.outcome, job.fired_value) == (JobOutcome.FIRED, {"a": 1})
    assert ended == [job.id]


async def test_what_was_fired_in_a_session_follows_before_the_end(
    make_purgatory: Make, session: Session
) -> None:
    """A purgatory that is closed right after the commit fires first."""
    store = OutboxDatabase()
    purgatory = make_purgatory(jobs=store)
    async with purgatory:
        await purgatory.fire("k", session=session)
        session.commit()
    assert store.stored == []


async def test_jobs_that_take_no_part_in_transactions(
    make_purgatory: Make, session: Session
) -> None:
    """The error says what does."""
    async with make_purgatory(jobs=MemoryJobStore()) as purgatory:
        purgatory.handled_elsewhere(["note"])
        with pytest.raises(TypeError, match="they are in a MemoryJobStore: make the purgatory"):
            await purgatory.fire("k", session=session)
        with pytest.raises(TypeError, match="they are in a MemoryJobStore: make the purgatory"):
            await purgatory.defer("note", delay=60, session=session)


@pytest.mark.parametrize("in_session", [False, True])
async def test_a_trace_goes_on_in_the_job(
    purgatory: Purgatory, store: Any, session: Session, *, in_session: bool
) -> None:
    """Each job has the context in which it was deferred, each stored fire that of its call."""
    given = session if in_session else None
    purgatory.handlers.propagation = Propagation()
    handle = await purgatory.defer("note", delay=60, session=given)
    assert (await handle.get()).traceparent == TRACEPARENT
    await purgatory.fire("k", session=session)
    session.on_commit[0]()
    assert [fire.traceparent for fire in store.stored] == [TRACEPARENT]
    purgatory.handlers.propagation = None
    handle = await purgatory.defer("note", delay=60, session=given)
    assert (await handle.get()).traceparent is None


@pytest.mark.parametrize("in_session", [False, True])
async def test_what_is_deferred_is_noted(
    purgatory: Purgatory, session: Session, *, in_session: bool
) -> None:
    """Once for each job: not for one that is kept, nor for one that is refused."""
    given = session if in_session else None
    noted: list[str] = []
    purgatory.handlers.on_deferred = noted.append
    first = await purgatory.defer("note", delay=60, dedupe_key="d", session=given)
    await purgatory.defer("note", delay=60, dedupe_key="d", on_conflict="keep", session=given)
    with pytest.raises(DuplicateJobError):
        await purgatory.defer("note", delay=60, dedupe_key="d", session=given)
    replaced = await purgatory.defer(
        "note", delay=60, dedupe_key="d", on_conflict="replace", session=given
    )
    assert noted == [first.id, replaced.id]
