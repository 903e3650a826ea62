"""Pending fires that are kept beside the log of shared signals: any process decides them."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from purgatory.errors import PurgatoryClosedError, SignalsUnavailableError
from purgatory.jobs import pending_fires
from purgatory.jobs.pending_fires import POLL_S, SAMPLES
from tests.unit.jobs.worker.deciding_process import Process, Records
from tests.unit.jobs.worker.runs import now_ms
from tests.unit.jobs.worker.slow_store import SlowStore, open_slow_store

HOUR_S = 3_600


@pytest.fixture
async def store() -> AsyncIterator[SlowStore]:
    """An open store by the wall clock of the loop."""
    async with open_slow_store(1_800_000_000_000) as store:
        yield store


@pytest.fixture
async def here(store: SlowStore, records: Records) -> AsyncIterator[Process]:
    """A process that shares signals; not started."""
    here = Process(store, records)
    yield here
    await here.fires.stop()


@pytest.fixture
async def alone(store: SlowStore) -> AsyncIterator[Process]:
    """A process with signals in memory."""
    alone = Process(store, None)
    yield alone
    await alone.fires.stop()


@pytest.fixture
def exact_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pause without jitter before a fire is tried again."""
    retry = dataclasses.replace(pending_fires._RETRY, random=lambda: 0.0)
    monkeypatch.setattr(pending_fires, "_RETRY", retry)


@pytest.fixture(autouse=True)
def all_levels(caplog: pytest.LogCaptureFixture) -> None:
    """Have the log in full."""
    caplog.set_level(logging.INFO, "purgatory.jobs")


def actions(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log names, without the event loop's own."""
    return [record.action for record in caplog.records if hasattr(record, "action")]


def is_running() -> bool:
    return "purgatory-pending-fires" in {task.get_name() for task in asyncio.all_tasks()}


async def test_a_fire_is_recorded_and_decided(here: Process, records: Records) -> None:
    """Until then, later ones on its key wait, and no others; nothing is left of it."""
    job_id = await here.defer("k")
    assert await here.fire("k", 7)
    assert len(records.kept) == 1 and len(here.fires) == 0
    assert here.fires.must_wait("k") and not here.fires.must_wait("l")
    await asyncio.sleep(0.1)
    assert await here.fired(job_id) == "7"
    assert not here.fires.must_wait("k") and records.kept == {}
    assert [job.id for job in here.ended] == [job_id]


async def test_only_ends_are_told(here: Process, store: SlowStore, records: Records) -> None:
    """A job that runs has not ended; and a process need not be told."""
    await here.defer("k", on_fire="run")
    await here.fire("k")
    await asyncio.sleep(0.1)
    assert here.ended == [] and records.kept == {}
    silent = Process(store, records, tells=False)
    job_id = await silent.defer("k")
    await silent.fire("k", 2)
    await asyncio.sleep(0.1)
    assert await silent.fired(job_id) == "2"
    await silent.fires.stop()


async def test_what_another_process_left_is_decided_from_the_start(
    here: Process, records: Records
) -> None:
    """And what is left later, with the next look; a fire of its own has it look at once."""
    jobs = [await here.defer(key) for key in ("a", "b", "c")]
    await records.add("a", 1)
    here.fires.start()
    await asyncio.sleep(0.001)
    assert await here.fired(jobs[0]) == "1"
    await records.add("b", 2)
    await asyncio.sleep(POLL_S - 0.1)
    assert await here.fired(jobs[1]) is None
    await asyncio.sleep(0.2)
    assert await here.fired(jobs[1]) == "2"
    await here.fire("c", 3)
    await asyncio.sleep(0.001)
    assert await here.fired(jobs[2]) == "3"


async def test_it_asks_for_what_others_left_as_often_as_it_polls(
    here: Process, records: Records, store: SlowStore
) -> None:
    """Once in each turn; the store is not asked for anything, as nothing is pending."""
    here.fires.start()
    await asyncio.sleep(0.001)
    records.reads.clear()
    asked = store.asked
    await asyncio.sleep(10 * POLL_S)
    assert records.reads == [0] * 10 and store.asked == asked


async def test_without_shared_signals_nobody_has_left_anything(alone: Process) -> None:
    """No task looks for it, until a fire is pending."""
    alone.fires.start()
    assert not is_running()


async def test_jobs_that_were_deferred_after_the_fire_wait_for_the_next(
    here: Process, records: Records
) -> None:
    """By the store's clock, whoever decides it; those before it must not miss it."""
    early = await here.defer("k")
    await asyncio.sleep(0.5)
    late = await here.defer("k")
    await asyncio.sleep(0.5)
    await records.add("k", age_ms=700)
    here.fires.start()
    await asyncio.sleep(0.1)
    assert await here.fired(early) == "1" and await here.fired(late) is None


async def test_the_clocks_of_processes_differ(here: Process, records: Records) -> None:
    """What a process had acknowledged before its fire counts, whatever the ages say."""
    job_id = await here.defer("k")
    acked_ms = now_ms()
    await asyncio.sleep(0.5)
    later = await here.defer("k")
    await records.add("k", age_ms=10_000, acked_ms=acked_ms)
    here.fires.start()
    await asyncio.sleep(0.1)
    assert await here.fired(job_id) == "1" and await here.fired(later) is None


@pytest.mark.parametrize("delayed", ["ask_s", "reply_s"])
async def test_a_slow_reply_with_records_is_no_clock(
    here: Process, records: Records, delayed: str
) -> None:
    """It is asked again, and the replies are taken together, however slow in one way each is."""
    early = await here.defer("k")
    await asyncio.sleep(0.5)
    await records.add("k")
    await asyncio.sleep(0.5)
    late = await here.defer("k")
    setattr(records, delayed, [0.0, 2.0, 3.0])
    here.fires.start()
    await asyncio.sleep(6)
    assert records.reads[:3] == [0, 0, 0]
    assert await here.fired(early) == "1" and await here.fired(late) is None


async def test_replies_that_are_all_slow(here: Process, records: Records) -> None:
    """It is asked a few times only; a job that was there before the fire does not miss it."""
    job_id = await here.defer("k")
    await asyncio.sleep(0.5)
    await records.add("k")
    records.ask_s = [0.5] * SAMPLES
    records.reply_s = [0.5] * SAMPLES
    here.fires.start()
    await asyncio.sleep(POLL_S + 1)
    assert await here.fired(job_id) == "1"
    # One more, which finds nothing.
    assert len(records.reads) == SAMPLES + 1


@pytest.mark.parametrize(
    ("reply_s", "times", "after_s"), [(0.0, 1, 0.1), (0.0009, 1, 0.1), (0.5, SAMPLES, 9)]
)
async def test_a_clock_is_asked_until_a_reply_is_fast(
    here: Process, store: SlowStore, records: Records, reply_s: float, times: int, after_s: float
) -> None:
    """Once, mostly: with the records, and of the store."""
    records.reply_s = [reply_s] * 10
    store.clock_s[:] = [reply_s] * 10
    await here.fire("k")
    await asyncio.sleep(after_s)
    assert store.clock_s == [reply_s] * (10 - times)
    store.clock_s.clear()
    # None is left: one reply is enough to know that.
    assert len(records.reads) == times + 1


async def test_fires_are_decided_in_few_requests(alone: Process, store: SlowStore) -> None:
    """One for the clock, one for each key, and one for all jobs."""
    jobs = [await alone.defer(key) for key in "abc"]
    asked = store.asked
    for key in "abca":
        await alone.fire(key)
    await asyncio.sleep(0.1)
    assert [await alone.fired(job_id) for job_id in jobs] == ["1"] * 3
    assert store.asked - asked - len(jobs) == 5


async def test_what_is_damaged_is_dropped_and_said(
    here: Process, records: Records, caplog: pytest.LogCaptureFixture
) -> None:
    """It is in nobody's way; each is an error, with its size and without its content."""
    job_id = await here.defer("k")
    damaged = (
        b"",
        b"\xff",
        b"[]",
        b'["k"]',
        b'["k", 7, 0]',
        b'["k", "{", 0]',
        b'["k", "1", "now"]',
        b'["k", "1", 1.5]',
        b'["", "1", 0]',
        b'["k", "NaN", 0]',
        b'["k", "1\\n\\nevent: x", 0]',
        b'["k", "1", %b]' % (b"9" * 300),
        b'["k", "1", true]',
        b'["k", "%b", 0]' % (b"[" * 100_000),
        b"[" * 100_000,
    )
    for record in damaged:
        await records.add_pending(record, 0)
    await records.add("k", 7)
    here.fires.start()
    await asyncio.sleep(0.1)
    assert await here.fired(job_id) == "7" and records.kept == {}
    assert actions(caplog) == ["pending-fire-damaged"] * len(damaged)
    assert {record.levelno for record in caplog.records} == {logging.ERROR}
    assert "4 bytes" not in caplog.messages[0] and "5 bytes (ValueError)" in caplog.messages[3]


async def test_locked_jobs_hold_up_no_record_behind_them(
    here: Process, store: SlowStore, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than are read at a time: those are skipped, and follow in order when free."""
    monkeypatch.setattr(pending_fires, "BATCH", 3)
    keys = [f"locked{number}" for number in range(7)]
    locked = [await here.defer(key) for key in keys]
    other = await here.defer("other")
    store.locked_ids = set(locked)
    for key in keys:
        await here.fire(key, 1)
        await here.fire(key, 2)
    await here.fire("other", 7)
    await asyncio.sleep(60)
    assert await here.fired(other) == "7" and not here.fires.must_wait("other")
    assert len(records.kept) == 14
    assert all(here.fires.must_wait(key) for key in keys)
    store.locked_ids = set()
    await asyncio.sleep(60)
    assert [await here.fired(job_id) for job_id in locked] == ["1"] * 7
    assert records.kept == {} and not any(here.fires.must_wait(key) for key in keys)


async def test_what_was_not_recorded_is_in_memory(
    here: Process, store: SlowStore, records: Records, caplog: pytest.LogCaptureFixture
) -> None:
    """While the log of signals is away, too; that is said."""
    job_id = await here.defer("k")
    records.error = SignalsUnavailableError("no log")
    assert await here.fire("k", 7)
    assert len(here.fires) == 1 and here.fires.must_wait("k")
    assert actions(caplog) == ["fire-pending"] and "no log" in caplog.text
    await asyncio.sleep(1)
    # What is in memory does not wait for the log.
    assert await here.fired(job_id) == "7" and len(here.fires) == 0
    # The store is not away.
    assert not here.fires.must_wait("k")
    assert actions(caplog) == ["fire-pending"]
    records.error = None
    await records.add("k", 8)
    later = await here.defer("l")
    await here.fire("l", 9)
    await asyncio.sleep(10)
    assert await here.fired(later) == "9" and records.kept == {}


@pytest.mark.usefixtures("exact_pauses")
async def test_an_outage_is_said_once(
    here: Process,
    store: SlowStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With its cause, and its end; it is tried again within seconds, less and less often."""
    job_id = await here.defer("k")
    expected: list[str] = []
    for value in (7, 8):
        store.is_down = True
        await here.fire("k", value)
        asked = store.asked
        for after_s, tries in ((0.05, 1), (0.1, 2), (0.2, 3), (0.4, 4), (0.8, 5), (600, 126)):
            await asyncio.sleep(after_s)
            assert store.asked - asked == tries
        assert here.fires.must_wait("other")
        expected.append("fires-pending")
        assert actions(caplog) == expected and "nobody listens" in caplog.text
        store.is_down = False
        await asyncio.sleep(5)
        expected.append("fires-decided")
        assert actions(caplog) == expected
        assert await here.fired(job_id) == "7" and not here.fires.must_wait("other")


async def test_a_store_that_is_being_opened(
    here: Process, alone: Process, records: Records, caplog: pytest.LogCaptureFixture
) -> None:
    """It reports itself: here, only what is in memory is a reason to say anything."""
    here.is_open = alone.is_open = False
    assert here.fires.must_wait("k")
    here.fires.start()
    await asyncio.sleep(10)
    assert actions(caplog) == []
    await alone.fire("k")
    await asyncio.sleep(10)
    assert actions(caplog) == ["fires-pending"]
    here.is_open = alone.is_open = True
    await asyncio.sleep(10)
    assert not here.fires.must_wait("k") and len(alone.fires) == 0


@pytest.mark.usefixtures("exact_pauses")
async def test_a_locked_job_is_tried_again_less_and_less_often(
    alone: Process,
    store: SlowStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each try takes the store ten seconds; it is said each time."""
    job_id = await alone.defer("k")
    store.locked_ids = {job_id}
    await alone.fire("k")
    # With pauses of 0.1 s, and twice as long each time, up to five seconds.
    for after_s, tries in ((9, 0), (46, 5), (545, 41)):
        await asyncio.sleep(after_s)
        assert actions(caplog) == ["pending-fire-locked"] * tries
    assert alone.fires.must_wait("k") and not alone.fires.must_wait("l")
    store.locked_ids = set()
    await asyncio.sleep(20)
    assert await alone.fired(job_id) == "1"
    # The next lock is another one.
    job_id = await alone.defer("k")
    store.locked_ids = {job_id}
    caplog.clear()
    await alone.fire("k")
    await asyncio.sleep(55)
    assert actions(caplog) == ["pending-fire-locked"] * 5


async def test_room_in_memory_is_in_bytes_too(
    alone: Process, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of keys and values; what is decided makes room."""
    monkeypatch.setattr(pending_fires, "MAX_BYTES", 10)
    for value in (123, 1_234, 123):
        store.is_down = True
        assert await alone.fire("key", 12) and await alone.fire("k", value)
        assert not await alone.fire("k", 1)
        store.is_down = False
        await asyncio.sleep(5)
        assert len(alone.fires) == 0 and not alone.fires.must_wait("k")


@pytest.mark.parametrize("max_fires", [1, 300])
async def test_room_in_memory_is_in_fires(
    alone: Process, store: SlowStore, monkeypatch: pytest.MonkeyPatch, max_fires: int
) -> None:
    """So many, and no more."""
    monkeypatch.setattr(pending_fires, "MAX_FIRES", max_fires)
    store.is_down = True
    assert [await alone.fire("k") for _ in range(max_fires + 2)] == [True] * max_fires + [False] * 2
    store.is_down = False
    await asyncio.sleep(5)


async def test_stop(here: Process, alone: Process, caplog: pytest.LogCaptureFixture) -> None:
    """What is recorded is not lost; what is in memory is, and more is refused. Idempotent."""
    for process in (here, alone):
        process.is_open = False
        await process.fire("k")
        await process.fire("k")
    for _ in range(2):
        await here.fires.stop()
    assert actions(caplog) == ["fires-pending"]
    await alone.fires.stop()
    assert actions(caplog) == ["fires-pending", "fires-lost"]
    assert "the jobs of 2 fires were not decided" in caplog.text
    assert await here.fire("k") and not await alone.fire("k")
    assert not is_running()


async def test_a_closed_purgatory_decides_nothing_more(
    here: Process, store: SlowStore, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task ends by itself, without a word."""

    async def closed() -> int:
        raise PurgatoryClosedError

    monkeypatch.setattr(store, "now_ms", closed)
    await here.fire("k")
    await asyncio.sleep(1)
    assert not is_running()


def failing_once(error: Exception) -> Callable[..., Any]:
    """A step that fails the first time."""
    errors = [error]

    async def step(*args: Any, **options: Any) -> int:
        if errors:
            raise errors.pop()
        return now_ms()

    return step


async def test_an_error_that_nobody_expects(
    here: Process,
    store: SlowStore,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is logged with its place; the next try is after a pause, which no fire ends."""
    job_id = await here.defer("k")
    monkeypatch.setattr(store, "now_ms", failing_once(ValueError("not a number")))
    await here.fire("k", 1)
    await asyncio.sleep(POLL_S / 2)
    await here.fire("k", 2)
    await asyncio.sleep(POLL_S / 2 - 0.1)
    assert await here.fired(job_id) is None
    assert actions(caplog) == ["pending-fires-failed"] and "not a number" in caplog.text
    await asyncio.sleep(0.2)
    assert await here.fired(job_id) == "1"


async def test_many_jobs_on_a_key(here: Process, store: SlowStore) -> None:
    """More than a page: all of them are decided, and told."""
    size = store.limits.max_batch
    jobs = [await here.defer("k") for _ in range(size + 1)]
    other = await here.defer("other")
    await here.fire("k", 1)
    await here.fire("other", 2)
    await asyncio.sleep(1)
    assert {await here.fired(job_id) for job_id in jobs} == {"1"}
    assert await here.fired(other) == "2"
    assert len(here.ended) == size + 2


async def test_many_fires_on_a_locked_key(
    alone: Process, store: SlowStore, caplog: pytest.LogCaptureFixture
) -> None:
    """One try is enough for all of them, and those behind them are decided."""
    locked, other = await alone.defer("k"), await alone.defer("other")
    store.locked_ids = {locked}
    for value in range(300):
        await alone.fire("k", value)
    await alone.fire("other", 7)
    await asyncio.sleep(15)
    assert await alone.fired(other) == "7" and len(alone.fires) == 300
    assert len(actions(caplog)) == 1
    store.locked_ids = set()
    await asyncio.sleep(60)
    assert await alone.fired(locked) == "0" and len(alone.fires) == 0


@pytest.mark.parametrize("is_shared", [True, False])
async def test_an_outage_amid_the_decision_of_many_jobs(
    here: Process, alone: Process, store: SlowStore, *, is_shared: bool
) -> None:
    """None is dropped: what is left is decided as soon as the store is back."""
    process = here if is_shared else alone
    size = store.limits.max_batch
    jobs = [await process.defer("k") for _ in range(size + 1)]
    await process.fire("k", 1)
    # Its clock, a page to see that there are more, the first page again, its jobs.
    store.failing = {store.asked + 5}
    await asyncio.sleep(0.5)
    assert {await process.fired(job_id) for job_id in jobs} == {"1"}
    assert not process.fires.must_wait("k")
