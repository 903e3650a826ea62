"""The live stream: what a snapshot says, for whom it is made, and how it ends."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from purgatory import Purgatory
from purgatory.event_loop.inspection import Inspection
from purgatory.fastapi import BearerTokens, install
from purgatory.fastapi.dashboard import routes
from purgatory.fastapi.dashboard.snapshots import (
    SLICE,
    KeyRanking,
    OutcomeTimes,
    Snapshots,
    WorkerName,
)
from purgatory.jobs import MemoryJobStore
from purgatory.operations.operation_listeners import Recorder
from purgatory.outcome import Status
from purgatory.signals import WaitOperation
from purgatory.signals.redis import RedisSignals
from purgatory.testing import MockClock
from tests.cases import cases
from tests.patience import PATIENCE_S, until
from tests.unit.exchange import Exchange
from tests.valkey_server import ValkeyServer

pytestmark = pytest.mark.anyio

TOKENS = (
    "token-of-an-observer observe; token-of-an-operator operate; token-of-all-rights *; "
    "token-of-a-waiter wait:*"
)


class Noted(WaitOperation):
    """A wait that responds to nobody."""

    __slots__ = ()

    def on_complete(self) -> None:
        pass


def park(purgatory: Purgatory, key: str, timeout: float = 60.0) -> Noted:
    operation = Noted(purgatory.delay_ms(timeout), purgatory.signals, (key,), 0)
    purgatory.park_operation(operation, (key,))
    return operation


def served(purgatory: Purgatory) -> FastAPI:
    app = FastAPI()
    install(app, purgatory, authorize=BearerTokens.from_text(TOKENS))
    return app


def view(app: FastAPI, token: str = "token-of-an-observer") -> Exchange:
    headers = {"Authorization": f"Bearer {token}"}
    return Exchange("/purgatory/dashboard/stream", headers).begin(app)


def events(exchange: Exchange, name: str) -> list[Any]:
    bodies = b"".join(each.get("body", b"") for each in exchange.sent).decode()
    return [
        json.loads(event.partition("data: ")[2])
        for event in bodies.split("\n\n")
        if event.startswith(f"event: {name}\n")
    ]


async def snapshot(exchange: Exchange, count: int = 1) -> Any:
    await until(lambda: len(events(exchange, "snapshot")) >= count)
    return events(exchange, "snapshot")[-1]


async def test_a_snapshot_is_the_statistics() -> None:
    """Of the process, with its levels, its keys and the jobs of all."""
    purgatory = Purgatory(jobs=MemoryJobStore())
    purgatory.handled_elsewhere(["note"])
    app = served(purgatory)
    async with app.router.lifespan_context(app):
        for number in range(30):
            park(purgatory, f"k:{number % 3}", timeout=60.0 + number)
        await purgatory.fire("k:0")
        await purgatory.defer("note", delay=900)
        viewer = view(app)
        shown = await snapshot(viewer)
        assert viewer.sent[0]["status"] == 200
        [worker] = shown["workers"]
        statistics = purgatory.statistics()
        for name in ("parked", "keys", "watched", "fired", "expired", "cancelled", "timers"):
            assert worker["statistics"][name] == getattr(statistics, name)
        assert sum(level["tasks"] for level in worker["levels"]) == worker["statistics"]["timers"]
        for level in worker["levels"]:
            assert sum(count for _, count in level["buckets"]) == level["tasks"]
        assert [(each["key"], each["waiting"]) for each in worker["keys"]] == [
            ("k:1", 10),
            ("k:2", 10),
        ]
        assert shown["job_states"]["waiting"] == 1
        [session] = events(viewer, "session")
        assert session["may"] == dict.fromkeys(
            ("operate", "fire", "drop", "jobs", "read_jobs"), False
        )
        viewer.leave()
        await viewer.end()


async def test_without_viewers_nothing_is_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a listener on operations nor a task: the first viewer brings both, the last ends."""
    attached: list[Recorder] = []
    attach, detach = Inspection.attach, Inspection.detach

    def note_attached(inspection: Inspection, recorder: Recorder) -> None:
        attach(inspection, recorder)
        attached.append(recorder)

    def note_detached(inspection: Inspection, recorder: Recorder) -> None:
        detach(inspection, recorder)
        attached.remove(recorder)

    monkeypatch.setattr(Inspection, "attach", note_attached)
    monkeypatch.setattr(Inspection, "detach", note_detached)
    purgatory = Purgatory()
    app = served(purgatory)
    async with app.router.lifespan_context(app):
        assert attached == []
        first, second = view(app), view(app)
        await snapshot(first)
        await snapshot(second)
        assert len(attached) == 1
        first.leave()
        await first.end()
        assert len(attached) == 1
        park(purgatory, "a").cancel()
        shown = await snapshot(second, len(events(second, "snapshot")) + 1)
        assert sum(shown["workers"][0]["times"]["waits"]["cancelled"]) == 1
        second.leave()
        await second.end()
        await until(lambda: attached == [])
        await until(lambda: "purgatory-dashboard" not in _task_names())


def _task_names() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}


async def test_a_snapshot_is_made_once_for_all_viewers() -> None:
    """All are sent the same bytes."""
    purgatory = Purgatory()
    app = served(purgatory)
    async with app.router.lifespan_context(app):
        viewers = [view(app) for _ in range(5)]
        for viewer in viewers:
            await snapshot(viewer, 2)
        sent = [
            {each["workers"][0]["at_ms"] for each in events(viewer, "snapshot")[:2]}
            for viewer in viewers
        ]
        assert all(each == sent[0] for each in sent)
        for viewer in viewers:
            viewer.leave()
            await viewer.end()


async def test_a_drain_ends_the_stream() -> None:
    """With a last snapshot that says so, and an event: the page knows why, and comes back."""
    purgatory = Purgatory()
    app = served(purgatory)
    async with app.router.lifespan_context(app):
        viewer = view(app)
        await snapshot(viewer)
        await purgatory.drain()
        assert viewer.task is not None
        async with asyncio.timeout(PATIENCE_S):
            await viewer.task
        assert events(viewer, "snapshot")[-1]["is_draining"]
        assert events(viewer, "drained") == [{}]
        late = view(app)
        assert (await late.reply()).json()["type"].endswith("/draining")


@cases(
    "token, may",
    [
        ("token-of-an-operator", {"operate", "drop"}),
        ("token-of-all-rights", {"operate", "fire", "drop", "jobs", "read_jobs"}),
    ],
)
async def test_the_session_says_what_the_token_may_do(token: str, may: set[str]) -> None:
    """The page shows no button for anything else."""
    app = served(Purgatory())
    async with app.router.lifespan_context(app):
        viewer = view(app, token)
        await until(lambda: bool(events(viewer, "session")))
        allowed = events(viewer, "session")[0]["may"]
        assert {name for name, is_allowed in allowed.items() if is_allowed} == may
        viewer.leave()
        await viewer.end()


async def test_others_are_refused() -> None:
    """Without the scope, or before the purgatory is open."""
    app = served(Purgatory())
    assert (await view(app).reply()).status == 503
    async with app.router.lifespan_context(app):
        refused = await view(app, "token-of-a-waiter").reply()
        assert refused.status == 403 and "the scope observe" in refused.json()["detail"]


async def test_a_client_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have as many dashboards as it leaves to them, of those that a process serves."""
    app = served(Purgatory())
    monkeypatch.setattr(routes, "MAX_VIEWERS", 5)
    async with app.router.lifespan_context(app):
        viewers = [view(app) for _ in range(3)]
        for viewer in viewers:
            await snapshot(viewer)
        refused = await view(app).reply()
        assert refused.status == 503 and "you have 3 dashboards" in refused.json()["detail"]
        other = view(app, "token-of-an-operator")
        await snapshot(other)
        assert (await view(app, "token-of-an-operator").reply()).status == 503
        gone = viewers.pop()
        gone.leave()
        await gone.end()
        again = view(app, "token-of-an-operator")
        await snapshot(again)
        for viewer in (*viewers, other, again):
            viewer.leave()
            await viewer.end()


async def test_a_stream_of_so_many_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends behind the last of them, and says that the page may come again."""
    monkeypatch.setattr("purgatory.fastapi.dashboard.snapshots.INTERVAL_S", 0.01)
    app = served(Purgatory())
    async with app.router.lifespan_context(app):
        for count in (1, 3):
            headers = {"Authorization": "Bearer token-of-an-observer"}
            query = f"limit={count}".encode()
            viewer = Exchange("/purgatory/dashboard/stream", headers, query_string=query)
            async with asyncio.timeout(PATIENCE_S):
                await viewer.begin(app).reply()
            assert len(events(viewer, "snapshot")) == count
            assert events(viewer, "again") == [{}]


def has_snapshot(snapshots: Snapshots) -> bool:
    return snapshots.latest is not None


def is_over(snapshots: Snapshots) -> bool:
    return snapshots.is_over


async def test_the_last_viewer_takes_the_snapshot_along() -> None:
    """One that stays has it still; the next one, who may come much later, is sent no old one."""
    async with Purgatory() as purgatory:
        snapshots = Snapshots(purgatory, WorkerName(), "")
        first, second = asyncio.Event(), asyncio.Event()
        snapshots.enter(first.set)
        snapshots.enter(second.set)
        await asyncio.gather(first.wait(), second.wait())
        snapshots.leave(first.set)
        assert has_snapshot(snapshots)
        snapshots.leave(second.set)
        assert not has_snapshot(snapshots)
        await until(lambda: "purgatory-dashboard" not in _task_names())


async def test_a_viewer_who_comes_as_the_snapshots_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """They begin again for it, and nobody is told that they are over."""
    async with Purgatory() as purgatory:
        snapshots = Snapshots(purgatory, WorkerName(), "")
        first, late = asyncio.Event(), asyncio.Event()
        detach = Inspection.detach

        def enter_late(inspection: Inspection, recorder: Recorder) -> None:
            monkeypatch.undo()
            detach(inspection, recorder)
            snapshots.enter(late.set)

        monkeypatch.setattr(Inspection, "detach", enter_late)
        snapshots.enter(first.set)
        await first.wait()
        snapshots.leave(first.set)
        async with asyncio.timeout(PATIENCE_S):
            await late.wait()
        assert has_snapshot(snapshots) and not snapshots.is_over
        snapshots.leave(late.set)
        await until(lambda: "purgatory-dashboard" not in _task_names())


@pytest.mark.parametrize("error", [ValueError("no keys"), asyncio.CancelledError()], ids=repr)
async def test_viewers_are_told_when_snapshots_fail(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    """An error is logged, a cancellation is not; whoever comes later is sent none from before."""
    monkeypatch.setattr("purgatory.fastapi.dashboard.snapshots.INTERVAL_S", 0.01)

    async def fail(ranking: KeyRanking) -> None:
        raise error

    async with Purgatory() as purgatory:
        snapshots = Snapshots(purgatory, WorkerName(), "")
        told, late = asyncio.Event(), asyncio.Event()
        snapshots.enter(told.set)
        async with asyncio.timeout(PATIENCE_S):
            await told.wait()
        with monkeypatch.context() as patched, caplog.at_level(logging.ERROR):
            patched.setattr(KeyRanking, "rows", fail)
            async with asyncio.timeout(PATIENCE_S):
                while not is_over(snapshots):
                    told.clear()
                    await told.wait()
        logged = [
            (record.name, record.exc_info and record.exc_info[1])
            for record in caplog.records
            if record.levelno >= logging.ERROR
        ]
        assert logged == [("purgatory.dashboard", error)] * isinstance(error, Exception)
        told.clear()
        snapshots.enter(late.set)
        assert not has_snapshot(snapshots) and not is_over(snapshots)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(told.wait(), late.wait())
        assert has_snapshot(snapshots)
        snapshots.leave(told.set)
        snapshots.leave(late.set)
        await until(lambda: "purgatory-dashboard" not in _task_names())


async def test_the_fullest_keys_are_found_in_slices() -> None:
    """Among very many: the event loop has its turns meanwhile, and the next look is at those."""
    async with Purgatory() as purgatory:
        for number in range(20 * SLICE):
            park(purgatory, f"k:{number}")
        for _ in range(10_000):
            park(purgatory, "crowd")
        ranking = KeyRanking(purgatory.inspection())
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count_turns())
        rows = await ranking.rows()
        assert turns >= 20
        assert (rows[0]["key"], rows[0]["waiting"], len(rows)) == ("crowd", 10_000, 50)
        await purgatory.fire("crowd", None)
        before = turns
        again = await ranking.rows()
        counting.cancel()
        assert "crowd" not in {row["key"] for row in again} and turns - before < 20


async def test_the_times_of_outcomes() -> None:
    """By how long they waited; lateness is of those that expired."""
    async with Purgatory() as purgatory:
        times, inspection = OutcomeTimes(purgatory.clock), purgatory.inspection()
        inspection.attach(times)
        park(purgatory, "a", timeout=0.005)
        other = park(purgatory, "b")
        await purgatory.fire("b")
        assert other.status is Status.FIRED
        await until(lambda: sum(times.waits[Status.EXPIRED].counts) == 1)
        inspection.detach(times)
        await purgatory.cancel("a")
        park(purgatory, "c").cancel()
        assert (sum(times.waits[Status.FIRED].counts), sum(times.lateness.counts)) == (1, 1)
        assert sum(times.waits[Status.CANCELLED].counts) == 0
        # Not before the 5 ms: in the bucket up to 10 ms, or a later one.
        assert sum(times.waits[Status.EXPIRED].counts[2:]) == 1


async def test_an_outcome_is_counted_by_how_long_it_waited() -> None:
    """Until it ended, however long it might have; one that expired also by how late it was."""
    clock = MockClock()
    clock.advance(5_000)
    times = OutcomeTimes(clock)
    async with Purgatory() as purgatory:
        operation = Noted(1_000, purgatory.signals, ("a",), 0)
        now_ms = clock.now_ns() // 1_000_000
        times.record(operation, Status.FIRED, ("a",), "a", now_ms + 700)
        times.record(operation, Status.EXPIRED, ("a",), None, now_ms - 20)
    assert (times.waits[Status.FIRED].total, times.waits[Status.EXPIRED].total) == (300, 1_020)
    assert times.lateness.total == 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    with ValkeyServer(tmp_path) as running:
        yield running


async def subscribed(server: ValkeyServer, count: int) -> None:
    """Return once so many workers can be asked, which opening one does not wait for."""
    with server.client() as client:
        await until(lambda: len(client.pubsub_channels("*:peers:*")) == count)


async def test_all_workers_are_in_a_snapshot(
    server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With shared signals: each made by its worker, also where nobody looks; and in the first."""
    monkeypatch.setattr("purgatory.signals.redis.peers.ANSWER_S", PATIENCE_S)
    workers = [
        Purgatory(signals=RedisSignals(server.url, timeout=PATIENCE_S / 4)) for _ in range(3)
    ]
    apps = [served(purgatory) for purgatory in workers]
    async with AsyncExitStack() as stack:
        for app in apps:
            await stack.enter_async_context(app.router.lifespan_context(app))
        await subscribed(server, len(apps))
        for number, purgatory in enumerate(workers):
            for _ in range(number + 1):
                park(purgatory, "a")
        viewer = view(apps[0])
        await until(lambda: bool(events(viewer, "snapshot")))
        shown = events(viewer, "snapshot")[0]["workers"]
        assert sorted(each["statistics"]["parked"] for each in shown) == [1, 2, 3]
        assert len({each["token"] for each in shown}) == 3
        viewer.leave()
        await viewer.end()


async def test_a_viewer_is_never_sent_a_snapshot_from_before_it_came(server: ValkeyServer) -> None:
    """Also where snapshots went on for the viewers of another worker in between."""
    workers = [
        Purgatory(signals=RedisSignals(server.url, timeout=PATIENCE_S / 4)) for _ in range(2)
    ]
    apps = [served(purgatory) for purgatory in workers]
    async with AsyncExitStack() as stack:
        for app in apps:
            await stack.enter_async_context(app.router.lifespan_context(app))
        await subscribed(server, len(apps))
        other = view(apps[1])
        first = view(apps[0])
        await snapshot(first)
        first.leave()
        await first.end()
        park(workers[0], "a")
        await snapshot(other, len(events(other, "snapshot")) + 1)
        second = view(apps[0])
        await until(lambda: bool(events(second, "snapshot")))
        shown = events(second, "snapshot")[0]["workers"][0]
        assert shown["statistics"]["parked"] == 1
        for viewer in (other, second):
            viewer.leave()
            await viewer.end()
