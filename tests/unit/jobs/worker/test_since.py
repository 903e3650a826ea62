"""Jobs that count what fired before they were stored, and that need several keys."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from purgatory import BadCursorError, CursorExpiredError, Limits, Purgatory
from purgatory.job_errors import StoreUnavailableError
from purgatory.jobs import DuplicateJobError, InvalidJobError, JobOutcome, JobState, MemoryJobStore
from purgatory.jobs.model.steps import Add, FireJob, Result, Step
from purgatory.jobs.worker.signals_since import MissedFires
from tests.promises.kit import Log, now_ms
from tests.unit.jobs.worker.failing_job_store import FailingJobStore
from tests.unit.jobs.worker.runs import Make
from tests.unit.shared_logs import Logs


class LateStore(MemoryJobStore):
    """Does something between a job's request and its storage, or right after that."""

    before: Any = None
    after: Any = None
    error: Exception | None = None

    async def run(self, steps: Sequence[Step[Result]]) -> list[Result]:
        if self.error is not None and isinstance(steps[0], FireJob):
            raise self.error
        before, after = self.before, self.after
        if isinstance(steps[0], Add):
            self.before = self.after = None
            if before is not None:
                await before()
        results = await super().run(steps)
        if isinstance(steps[0], Add) and after is not None:
            await after()
        return results


async def test_what_fired_since_the_cursor_counts(purgatory: Purgatory, log: Log) -> None:
    """The job runs at once, with the first value since then."""
    since = purgatory.cursor("k")
    await purgatory.fire("k", 1)
    await purgatory.fire("k", 2)
    handle = await purgatory.defer("note", delay=900, keys=["k"], since=since)
    assert handle.added is not None and handle.added.job.outcome is JobOutcome.FIRED
    job = await handle.wait(1)
    assert (job.state, job.fired_key, job.fired_value) == (JobState.DONE, "k", 1)
    [run] = log
    assert (run.job.fired_keys, run.job.fired_value) == (("k",), 1)


async def test_what_fired_before_the_cursor_does_not_count(purgatory: Purgatory, log: Log) -> None:
    """Nor does anything without a cursor; "0" is from the earliest kept."""
    await purgatory.fire("k", 1)
    since = purgatory.cursor("k")
    for cursor in (since, None):
        handle = await purgatory.defer("note", delay=900, keys=["k"], since=cursor)
        assert (await handle.get()).is_undecided
    handle = await purgatory.defer("note", delay=900, keys=["k"], since="0")
    assert (await handle.get()).outcome is JobOutcome.FIRED


async def test_a_second_job_of_a_dedupe_key_is_refused_with_a_cursor_too(
    purgatory: Purgatory,
) -> None:
    """What fired since then is not looked for, as there is no job that would count it."""
    options: dict[str, Any] = {"delay": 900, "keys": ["k"], "dedupe_key": "once"}
    await purgatory.defer("note", **options)
    since = purgatory.cursor("k")
    await purgatory.fire("other")
    with pytest.raises(DuplicateJobError):
        await purgatory.defer("note", since=since, **options)


async def test_a_fire_while_the_job_is_stored_counts_once(make_purgatory: Make, log: Log) -> None:
    """Before it is stored, the store has no job for it; afterwards, both see it."""
    for place in ("before", "after"):
        store = LateStore(now_ms=now_ms)
        purgatory = make_purgatory(jobs=store)
        purgatory.handler("note")(log)
        async with purgatory:
            since = purgatory.cursor("k")
            setattr(store, place, partial(purgatory.fire, "k", 1))
            handle = await purgatory.defer(
                "note", delay=900, keys=["k"], since=since, on_fire="cancel"
            )
            job = await handle.get()
            assert (job.state, job.outcome) == (JobState.CANCELLED, JobOutcome.FIRED)
            assert job.fired_value == 1


@pytest.mark.parametrize("until", ["all", 3])
async def test_all_keys_of_a_job(purgatory: Purgatory, log: Log, until: Any) -> None:
    """In any order; each counts once; the last decides."""
    handle = await purgatory.defer("note", delay=900, keys=["a", "b", "c"], until=until)
    for key, left in (("b", 2), ("b", 2), ("c", 1), ("b", 1)):
        assert (await purgatory.fire(key, key)).jobs == 0
        job = await handle.get()
        assert job.is_undecided and len(job.open_keys) == left
    assert (await purgatory.fire("a", "last")).jobs == 1
    job = await handle.wait(1)
    assert (job.fired_keys, job.fired_value) == (("b", "c", "a"), "last")
    [run] = log
    assert run.job.fired_keys == ("b", "c", "a")


async def test_some_of_the_keys(purgatory: Purgatory, log: Log) -> None:
    """Some of them since cursors of their own; at the deadline, what fired is told."""
    await purgatory.fire("a", 1)
    early = purgatory.cursor("a")
    await purgatory.fire("a", 2)
    keys = ["a", "b", "c"]
    two = await purgatory.defer("note", "two", delay=9, keys=keys, until=2, since={"a": early})
    three = await purgatory.defer("note", "three", delay=9, keys=keys, until="all", since="0")
    assert (await two.get()).fired_before == ("a",)
    assert (await purgatory.fire("c", 3)).jobs == 1
    await two.wait(1)
    job = await three.wait(20)
    assert (job.outcome, job.fired_keys) == (JobOutcome.EXPIRED, ("a", "c"))
    assert [run.job.fired_keys for run in log] == [("a", "c"), ("a", "c")]


async def test_a_job_that_counts_stays_with_its_holder(purgatory: Purgatory, log: Log) -> None:
    """Its timer goes on: it runs at its deadline, on time."""
    handle = await purgatory.defer("note", delay=30, keys=["a", "b"], until="all")
    await asyncio.sleep(1)
    before = await handle.get()
    assert before.lease_until_ms
    await purgatory.fire("a")
    after = await handle.get()
    assert (after.epoch, after.lease_until_ms) == (before.epoch, before.lease_until_ms)
    assert after.version == before.version + 1
    job = await handle.wait(40)
    assert job.lateness_ms is not None and job.lateness_ms <= 2


async def test_cancelling_by_a_key_that_has_fired(purgatory: Purgatory) -> None:
    """A job waits only on the keys that have not."""
    handle = await purgatory.defer("note", delay=30, keys=["a", "b"], until="all")
    await purgatory.fire("a")
    assert await purgatory.jobs.cancel_for_key("a") == 0
    assert await purgatory.jobs.cancel_for_key("b") == 1
    assert (await handle.get()).outcome is JobOutcome.CANCELLED


async def test_an_expired_cursor_stores_nothing(make_purgatory: Make, log: Log) -> None:
    """As for a wait; neither does one that is none."""
    purgatory = make_purgatory(
        jobs=MemoryJobStore(now_ms=now_ms), limits=Limits(max_signals_per_key=1)
    )
    purgatory.handler("note")(log)
    async with purgatory:
        since = purgatory.cursor("k")
        await purgatory.fire("k")
        await purgatory.fire("k")
        with pytest.raises(CursorExpiredError):
            await purgatory.defer("note", delay=9, keys=["k"], since=since)
        with pytest.raises(BadCursorError):
            await purgatory.defer("note", delay=9, keys=["k"], since="nonsense")
        assert (await purgatory.jobs.counts()).waiting == 0


@pytest.mark.parametrize("trimmed", [1, 2])
async def test_a_cursor_that_expires_meanwhile_leaves_no_job(
    make_purgatory: Make, log: Log, trimmed: int
) -> None:
    """The history was trimmed while the job was stored: whether its key fired is unknown."""
    store = LateStore(now_ms=now_ms)
    purgatory = make_purgatory(jobs=store, limits=Limits(max_signals_per_key=1))
    purgatory.handler("note")(log)

    async def flood() -> None:
        for _ in range(trimmed):
            await purgatory.fire("k")

    async with purgatory:
        store.before = flood
        since = purgatory.cursor("k")
        deferring = purgatory.defer("note", delay=9, keys=["k"], since=since)
        if trimmed == 1:
            assert (await (await deferring).get()).outcome is JobOutcome.FIRED
            return
        with pytest.raises(CursorExpiredError):
            await deferring
        counts = await purgatory.jobs.counts()
        assert (counts.waiting, counts.cancelled) == (0, 1)


async def test_a_repeat_counts_what_the_first_call_could_not(
    make_purgatory: Make, log: Log
) -> None:
    """The store went away in between: the job is stored, and its key has fired."""
    store = LateStore(now_ms=now_ms)
    purgatory = make_purgatory(jobs=store)
    purgatory.handler("note")(log)
    async with purgatory:
        since = purgatory.cursor("k")
        await purgatory.fire("k")
        options: dict[str, Any] = {"dedupe_key": "d", "on_conflict": "keep", "since": since}
        store.error = StoreUnavailableError("away")
        with pytest.raises(StoreUnavailableError):
            await purgatory.defer("note", delay=900, keys=["k"], **options)
        assert (await purgatory.jobs.counts()).waiting == 1
        store.error = None
        handle = await purgatory.defer("note", delay=900, keys=["k"], **options)
        assert (await handle.wait(1)).outcome is JobOutcome.FIRED
        assert len(log) == 1


async def test_without_a_cursor_the_history_costs_nothing(
    store: FailingJobStore, purgatory: Purgatory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step, as before."""
    steps: list[Any] = []
    run: Any = store.run

    async def counted(several: Sequence[Step[Any]]) -> list[Any]:
        steps.extend(several)
        results: list[Any] = await run(several)
        return results

    monkeypatch.setattr(store, "run", counted)
    await purgatory.defer("note", delay=9_000, keys=["k"])
    since = purgatory.cursor("k")
    await purgatory.defer("note", delay=9_000, keys=["k"], since=since)
    assert [type(step) for step in steps] == [Add, Add]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"until": "all"}, "until"),
        ({"until": 1}, "until"),
        ({"keys": ["a"], "until": 2}, "until"),
        ({"keys": ["a"], "until": 0}, "until"),
        ({"keys": ["a", "a"], "until": 2}, "until"),
        ({"keys": ["a"], "until": "some"}, "until"),
        ({"since": "0"}, "since"),
        ({"keys": ["a"], "since": {"b": "0"}}, "since"),
    ],
)
async def test_conditions_that_make_no_sense(
    purgatory: Purgatory, options: dict[str, Any], param: str
) -> None:
    """Each names the argument."""
    with pytest.raises(InvalidJobError) as caught:
        await purgatory.defer("note", delay=1, **options)
    assert caught.value.param == param


@pytest.mark.parametrize("options", [{"until": True}, {"until": None}, {"since": 5}])
async def test_conditions_of_a_wrong_type(purgatory: Purgatory, options: dict[str, Any]) -> None:
    """A TypeError names the value."""
    with pytest.raises(TypeError, match="is"):
        await purgatory.defer("note", delay=1, keys=["a"], **options)


async def test_what_fired_in_another_process_counts_once_the_log_was_read_to_its_end(
    make_purgatory: Make,
) -> None:
    """The process that fired it has asked for jobs already, and does not ask again."""
    logs = Logs()
    async with make_purgatory(signals=logs) as purgatory:
        history = MissedFires(MemoryJobStore(), purgatory.signals, logs, None)
        since = [(key, purgatory.signals.head_of(key)) for key in ("a", "b")]
        logs.unread.append("a")
        await history.read_to_end(["a", "b"])
        assert history.fired_since(since) == [("a", "1")]
