"""The live stream: what a snapshot says, for whom it is made, and how it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from purgatory import Purgatory
from purgatory.event_loop.inspection import Inspection
from purgatory.fastapi import BearerTokens, install
from purgatory.fastapi.dashboard import stream_endpoint
from purgatory.fastapi.dashboard.key_ranking import SLICE, KeyRanking
from purgatory.fastapi.dashboard.outcome_times import OutcomeTimes
from purgatory.jobs import MemoryJobStore
from purgatory.operations.operation_listeners import Recorder
from purgatory.signals import WaitOperation
from purgatory.signals.redis import RedisSignals
from purgatory.status import Status
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


@pytest.mark.parametrize(
    ("token", "may"),
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
        assert refused.status == 403 and "such as observe" in refused.json()["detail"]


async def test_a_client_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have as many dashboards as it leaves to them, of those that a process serves."""
    app = served(Purgatory())
    monkeypatch.setattr(stream_endpoint, "MAX_VIEWERS", 5)
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
