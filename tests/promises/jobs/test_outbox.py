"""Fires in transactions: after the commit, in order, by this process or by another one."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from purgatory.jobs import JobLimits, StoreUnavailableError
from purgatory.jobs.owed_fires import OUTBOX_POLL_S as POLL_S
from purgatory.jobs.owed_fires import TAKEOVER_MS
from purgatory.jobs.stores.protocol import NewFire, StoredFire
from tests.promises.kit import HOUR_S, Bench, OutboxDatabase, Process, Session, now_ms


@pytest.fixture(autouse=True)
async def database(bench: Bench) -> None:
    """Jobs and an outbox."""
    bench.database = OutboxDatabase()
    await bench.database.open()


@pytest.fixture
async def process(bench: Bench, database: None) -> Process:
    one = await bench.process()
    await asyncio.sleep(0.01)
    return one


async def fire(process: Process, *keys: str, is_committed: bool = True) -> Session:
    session = Session()
    for key in keys:
        assert await process.fire(key, session=session) is None
    if is_committed:
        session.commit()
    return session


def leave(bench: Bench, *keys: str, origin: str = "ended") -> None:
    """Have a process that ended leave fires behind."""
    bench.database.stored += [
        StoredFire(Session.number(), origin, key, "1", None, now_ms()) for key in keys
    ]


def left(bench: Bench) -> list[str]:
    return [each.key for each in bench.database.stored]


async def test_fires_follow_their_commit_at_once(bench: Bench, process: Process) -> None:
    """In order, each once; those of a transaction that is never committed do not."""
    job = await process.defer("note", delay=HOUR_S, keys=["b"], on_fire="cancel")
    parked = [asyncio.create_task(process.park(key, timeout=60)) for key in ("a", "b")]
    await asyncio.sleep(0)
    await fire(process, "never", is_committed=False)
    session = await fire(process, "a", "b", is_committed=False)
    await asyncio.sleep(5)
    assert not any(each.done() for each in parked)
    session.commit()
    await asyncio.sleep(0.01)
    assert all(each.done() for each in parked) and left(bench) == []
    assert (await bench.job(job)).outcome == "fired"


async def test_it_asks_no_more_often_than_it_needs_to(bench: Bench, process: Process) -> None:
    """At each poll once for own fires and once for those of others; a commit asks for own."""
    before = process.link.count("stored_fires")
    await asyncio.sleep(10 * POLL_S)
    polled = process.link.count("stored_fires") - before
    assert 18 <= polled <= 22
    await fire(process, "a")
    await asyncio.sleep(0.01)
    assert process.link.count("stored_fires") - before - polled <= 2


async def test_a_commit_that_nobody_announced(bench: Bench, process: Process) -> None:
    """Its fires are found with the next poll."""
    session = await fire(process, "a", is_committed=False)
    session.on_commit[0]()
    await asyncio.sleep(POLL_S + 0.1)
    assert left(bench) == []


async def test_what_ended_processes_left(bench: Bench, process: Process) -> None:
    """After a time, in which those may do it themselves; further ones of the same at once."""
    leave(bench, "a", "b")
    await asyncio.sleep(TAKEOVER_MS / 1000 - 0.1)
    assert left(bench) == ["a", "b"] and bench.actions("outbox-takeover") == []
    await asyncio.sleep(2 * POLL_S + 0.2)
    assert left(bench) == [] and bench.actions("outbox-takeover") == ["outbox-takeover"]
    leave(bench, "c")
    leave(bench, "d", origin="at work")
    await asyncio.sleep(POLL_S + 0.1)
    assert left(bench) == ["d"]


async def test_commits_all_the_time_do_not_hold_up_what_others_left(
    bench: Bench, process: Process
) -> None:
    """It is looked for as often as without them."""
    leave(bench, "a")
    for _ in range(20):
        await fire(process, "own")
        await asyncio.sleep(0.5)
    assert left(bench) == []


@pytest.mark.parametrize("count", [250, 1_000])
async def test_many_fires(bench: Bench, process: Process, count: int) -> None:
    """Own and others', with more jobs than one transaction decides."""
    bench.database.at_once = 7
    await fire(process, *[f"own{n}" for n in range(count)])
    leave(bench, *[f"left{n}" for n in range(count)])
    await asyncio.sleep(TAKEOVER_MS / 1000 + 3 * POLL_S)
    assert left(bench) == []


async def test_more_jobs_than_a_transaction_decides(bench: Bench) -> None:
    """It is taken again at once; the signal comes when all are decided, and every end is told."""
    bench.database = OutboxDatabase(JobLimits(max_batch=2))
    await bench.database.open()
    one = await bench.process()
    jobs = [await one.defer("note", delay=HOUR_S, keys=["a"], on_fire="cancel") for _ in range(5)]
    cursor = one.cursor("a")
    await fire(one, "a")
    await asyncio.sleep(0.01)
    assert one.link.count("take_fires") == 3 and left(bench) == []
    assert (await one.park("a", timeout=1, cursor=cursor)).cursor == one.cursor("a")
    assert sorted(one.ends) == sorted((job.id, "cancelled") for job in jobs)


async def test_a_locked_key_holds_up_no_other(bench: Bench, process: Process) -> None:
    """It is asked for less and less often, and the log says so once, when it has lasted."""
    bench.database.locked = {"b"}
    leave(bench, "b", "x")
    await fire(process, "a", "b", "c", "b")
    await asyncio.sleep(0.05)
    assert left(bench)[-2:] == ["b", "b"] and "a" not in left(bench)
    assert bench.actions("outbox-locked") == []
    await asyncio.sleep(60)
    assert left(bench) == ["b", "b", "b"]
    assert bench.actions("outbox-locked") == ["outbox-locked"]
    before = process.link.count("take_fires")
    await asyncio.sleep(60)
    assert process.link.count("take_fires") - before <= 140
    bench.database.locked = set()
    await asyncio.sleep(POLL_S + 2)
    assert left(bench) == []


@pytest.mark.parametrize("kind", ["stored_fires", "take_fires"])
async def test_an_outage(bench: Bench, process: Process, kind: str) -> None:
    """It is said once, tried again every two seconds at most, and its end is said."""
    process.link.on(kind, error=StoreUnavailableError("away"))
    await fire(process, "a")
    await asyncio.sleep(60)
    before = process.link.count(kind)
    await asyncio.sleep(60)
    assert 25 <= process.link.count(kind) - before <= 70
    process.link.mend()
    await asyncio.sleep(3)
    assert left(bench) == []
    assert bench.actions("outbox-waits", "outbox-works") == ["outbox-waits", "outbox-works"]


@pytest.mark.parametrize("state", ["locked", "away"])
async def test_it_is_tried_less_and_less_often(
    exact_pauses: None, bench: Bench, process: Process, state: str
) -> None:
    """After 50 ms at first, up to every two seconds; afterwards soon again.

    A lock is said with the sixth try, an outage with the first.
    """
    for times in (1, 2):
        process.link.asked.clear()
        bench.database.locked = {"a"}
        if state == "away":
            process.link.on("take_fires", error=StoreUnavailableError("away"))
        await fire(process, "a")
        tried = ((0.04, 1), (0.05, 2), (0.1, 3), (0.2, 4), (0.4, 5), (0.72, 5), (0.09, 6))
        for after_s, tries in tried:
            await asyncio.sleep(after_s)
            assert process.link.count("take_fires") == tries
            said = times if state == "away" or tries == 6 else times - 1
            assert len(bench.actions(f"outbox-{'waits' if state == 'away' else 'locked'}")) == said
        await asyncio.sleep(1.6 + 20)
        assert process.link.count("take_fires") == 17
        bench.database.locked = set()
        process.link.mend()
        await asyncio.sleep(2.1)
        assert left(bench) == []


async def test_an_outage_from_the_start(bench: Bench, exact_pauses: None) -> None:
    """It is tried again as soon as later."""
    one = await bench.process(down=True)
    one.link.mend()
    one.link.on("stored_fires", error=StoreUnavailableError("away"))
    await asyncio.sleep(10)
    at_ms = [at for at, step in one.link.asked if step == "stored_fires"]
    pauses_ms = [round(after - at, -1) for at, after in pairwise(at_ms)]
    assert pauses_ms[:6] == [50, 100, 200, 400, 800, 1_600]


async def test_an_error_that_nobody_expects(bench: Bench, process: Process) -> None:
    """It is logged, and tried again after a pause, which no commit ends."""
    process.link.on("stored_fires", error=ValueError("cannot be read"), times=1)
    await fire(process, "a")
    await asyncio.sleep(0.1)
    await fire(process, "b")
    await asyncio.sleep(POLL_S - 0.2)
    assert bench.actions("outbox-failed") == ["outbox-failed"] and left(bench) == ["a", "b"]
    await asyncio.sleep(0.2)
    assert left(bench) == []


@pytest.mark.parametrize("state", ["free", "locked", "away", "hangs"])
async def test_the_end_of_a_process(bench: Bench, process: Process, state: str) -> None:
    """It fires what is stored, if that takes less than a second, and does not wait for more."""
    session = await fire(process, "a", is_committed=False)
    session.on_commit[0]()
    if state == "locked":
        bench.database.locked = {"a"}
    elif state == "away":
        process.link.on("take_fires", error=StoreUnavailableError("away"))
    elif state == "hangs":
        process.link.on("take_fires", ask_s=1_000)
    began_ms, reads = now_ms(), process.link.count("stored_fires")
    await process.drain()
    assert left(bench) == ([] if state == "free" else ["a"])
    waited_ms = 1_000 if state == "hangs" else 0
    assert waited_ms <= now_ms() - began_ms <= waited_ms + 10
    assert "purgatory-outbox" not in {task.get_name() for task in asyncio.all_tasks()}
    # Those of others are left to others.
    assert process.link.count("stored_fires") == reads + 1


async def test_shared_signals_precede_the_removal(bench: Bench) -> None:
    """Under the name of the fire, and once though it waits for a lock."""
    one = await bench.process(shares_signals=True)
    await asyncio.sleep(0.01)
    signals: Any = one.purgatory.shared_signals
    bench.database.locked = {"b"}
    session = await fire(one, "a", "b", is_committed=False)
    session.commit()
    await asyncio.sleep(60)
    assert [key for key, _ in signals.fired] == ["a", "b"] and left(bench) == ["b"]
    assert len({name for _, name in signals.fired}) == 2
    bench.database.locked = set()
    await asyncio.sleep(POLL_S + 2)
    assert left(bench) == [] and len(signals.fired) == 2


@pytest.mark.parametrize(("reply_s", "fired"), [(4.9, ["c", "d"]), (5.1, ["d"])])
async def test_what_was_read_long_ago_is_read_again(
    bench: Bench, reply_s: float, fired: list[str]
) -> None:
    """At once: another process may have fired it since, and the log may have forgotten that."""
    one = await bench.process(shares_signals=True)
    await asyncio.sleep(0.01)
    one.link.on("stored_fires", reply_s=reply_s, times=1)
    await fire(one, "c", "d")
    await asyncio.sleep(1)
    del bench.database.stored[0]
    await asyncio.sleep(reply_s - 0.9)
    signals: Any = one.purgatory.shared_signals
    assert [key for key, _ in signals.fired] == fired


async def test_a_fire_of_a_client_needs_no_takeover(bench: Bench, process: Process) -> None:
    """No process is to fire it first: whichever looks next does, and says nothing of it."""
    other = await bench.process()
    job = await process.defer("note", delay=HOUR_S, keys=["a"])
    parked = [asyncio.create_task(each.park("a", timeout=60)) for each in (process, other)]
    await asyncio.sleep(0)
    await bench.database.store_fire(NewFire(key="a", value_json="1"))
    await asyncio.sleep(POLL_S + 0.1)
    # Of two processes with signals in memory, one has it.
    assert [each.done() for each in parked].count(True) == 1
    assert (await bench.job(job)).fired_key == "a" and not left(bench)
    assert bench.actions("outbox-takeover") == []
    for each in parked:
        each.cancel()
