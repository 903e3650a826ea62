"""Jobs and fires in transactions of the application, on an outbox in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.jobs import (
    DuplicateJobError,
    InvalidJobError,
    MemoryJobStore,
)
from tests.promises.kit import OutboxDatabase, Session
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


async def test_since_and_a_session(purgatory: Purgatory, session: Session) -> None:
    """What fires until the commit would not count: one of them is to be left out."""
    since = purgatory.cursor("k")
    with pytest.raises(InvalidJobError, match="leave one of them out") as raised:
        await purgatory.defer("note", delay=60, keys=["k"], since=since, session=session)
    assert raised.value.param == "since"
    await purgatory.defer("note", delay=60, keys=["k"], session=session)
    await purgatory.defer("note", delay=60, keys=["k"], since=since)


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
