"""Snapshots: what they say, for whom they are made, and what is there while nobody looks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from purgatory import Purgatory
from purgatory.event_loop.inspection import Inspection
from purgatory.fastapi import BearerTokens, install
from purgatory.fastapi.dashboard import snapshots
from purgatory.fastapi.dashboard.snapshots import SLICE, KeyRanking
from purgatory.jobs import MemoryJobStore
from purgatory.operations.operation_listeners import Recorder
from purgatory.operations.wait_histograms import WaitTimes
from purgatory.outcome import Status
from purgatory.signals import WaitOperation
from purgatory.signals.redis import RedisSignals
from tests.cases import cases
from tests.patience import PATIENCE_S, until
from tests.turns import Turns
from tests.unit.exchange import Exchange, Reply
from tests.valkey_server import ValkeyServer

pytestmark = pytest.mark.anyio

TOKENS = (
    "token-of-an-observer observe; token-of-an-operator operate; token-of-all-rights *; "
    "token-of-a-waiter wait:*"
)
OPERATOR = "token-of-an-operator"


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


async def look(app: FastAPI, token: str = "token-of-an-observer") -> Reply:
    headers = {"Authorization": f"Bearer {token}"}
    return await Exchange("/purgatory/dashboard/snapshot", headers).begin(app).reply()


async def snapshot(app: FastAPI, token: str = "token-of-an-observer") -> Any:
    reply = await look(app, token)
    assert reply.status == 200
    return reply.json()


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
        shown = await snapshot(app)
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
        assert shown["session"]["may"] == dict.fromkeys(
            ("operate", "fire", "drop", "jobs", "read_jobs"), False
        )


async def test_while_nobody_looks_nothing_is_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first question brings a listener on operations; some seconds after the last it goes."""
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
    monkeypatch.setattr(snapshots, "INTERVAL_S", 0.0)
    purgatory = Purgatory()
    app = served(purgatory)
    async with app.router.lifespan_context(app):
        for _ in range(2):
            assert attached == []
            monkeypatch.setattr(snapshots, "LOOKED_S", PATIENCE_S)
            await asyncio.gather(snapshot(app), snapshot(app))
            assert len(attached) == 1
            park(purgatory, "a").cancel()
            shown = await snapshot(app)
            assert sum(shown["workers"][0]["waits"]["cancelled"]) == 1
            assert len(attached) == 1
            monkeypatch.setattr(snapshots, "LOOKED_S", 0.0)
            await until(lambda: attached == [])


async def test_a_snapshot_is_made_once_for_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a second; and anew for whoever asks later."""
    monkeypatch.setattr(snapshots, "INTERVAL_S", PATIENCE_S)
    made = 0
    rows = KeyRanking.rows

    async def counted(ranking: KeyRanking) -> Any:
        nonlocal made
        made += 1
        return await rows(ranking)

    monkeypatch.setattr(KeyRanking, "rows", counted)
    is_over = asyncio.Event()
    detach = Inspection.detach

    def note_over(inspection: Inspection, recorder: Recorder) -> None:
        detach(inspection, recorder)
        is_over.set()

    monkeypatch.setattr(Inspection, "detach", note_over)
    app = served(Purgatory())
    async with app.router.lifespan_context(app):
        shown = await asyncio.gather(*[snapshot(app) for _ in range(5)], snapshot(app, OPERATOR))
        assert made == 1 and len({each["workers"][0]["at_ms"] for each in shown}) == 1
        assert [each["session"]["may"]["operate"] for each in shown] == [False] * 5 + [True]
        await snapshot(app)
        assert made == 1
        # Some seconds after the last question nothing is kept.
        monkeypatch.setattr(snapshots, "LOOKED_S", 0.0)
        await is_over.wait()
        monkeypatch.setattr(snapshots, "INTERVAL_S", 0.0)
        await snapshot(app)
        await snapshot(app)
        assert made == 3


async def test_who_leaves_takes_no_snapshot_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made for all who wait for it."""
    begun, go = asyncio.Event(), asyncio.Event()
    rows = KeyRanking.rows

    async def slow(ranking: KeyRanking) -> Any:
        begun.set()
        await go.wait()
        return await rows(ranking)

    monkeypatch.setattr(KeyRanking, "rows", slow)
    app = served(Purgatory())
    async with app.router.lifespan_context(app):
        first, second = asyncio.create_task(snapshot(app)), asyncio.create_task(snapshot(app))
        await begun.wait()
        first.cancel()
        go.set()
        assert len((await second)["workers"]) == 1


async def test_a_snapshot_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those who asked for it; the next one is made as ever."""
    monkeypatch.setattr(snapshots, "INTERVAL_S", 0.0)

    async def fail(ranking: KeyRanking) -> None:
        raise ValueError("no keys")

    app = served(Purgatory())
    async with app.router.lifespan_context(app):
        with monkeypatch.context() as patched:
            patched.setattr(KeyRanking, "rows", fail)
            assert (await look(app)).status == 500
        await snapshot(app)


async def test_a_snapshot_says_how_late_the_event_loop_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most, since the snapshot before."""
    monkeypatch.setattr(snapshots, "INTERVAL_S", 0.0)
    app = served(Purgatory())
    async with app.router.lifespan_context(app):
        await snapshot(app)
        # The loop does nothing else.
        threading.Event().wait(0.15)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (await snapshot(app))["workers"][0]["loop_lag_ms"] >= 49


async def test_a_drain_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the process is closed: then 503, as before it opens."""
    monkeypatch.setattr(snapshots, "INTERVAL_S", 0.0)
    purgatory = Purgatory()
    app = served(purgatory)
    assert (await look(app)).status == 503
    async with app.router.lifespan_context(app):
        assert not (await snapshot(app))["is_draining"]
        await purgatory.drain()
        assert (await snapshot(app))["is_draining"]
    assert (await look(app)).status == 503


@cases(
    "token, may",
    [
        (OPERATOR, {"operate", "drop"}),
        ("token-of-all-rights", {"operate", "fire", "drop", "jobs", "read_jobs"}),
    ],
)
async def test_the_session_says_what_the_token_may_do(token: str, may: set[str]) -> None:
    """The page shows no button for anything else."""
    app = served(Purgatory())
    async with app.router.lifespan_context(app):
        allowed = (await snapshot(app, token))["session"]["may"]
        assert {name for name, is_allowed in allowed.items() if is_allowed} == may


async def test_others_are_refused() -> None:
    """Without the scope."""
    app = served(Purgatory())
    async with app.router.lifespan_context(app):
        refused = await look(app, "token-of-a-waiter")
        assert refused.status == 403 and "the scope observe" in refused.json()["detail"]


async def test_the_fullest_keys_are_found_in_slices() -> None:
    """Among very many: the event loop has its turns meanwhile, and the next look is at those."""
    async with Purgatory() as purgatory:
        for number in range(20 * SLICE):
            park(purgatory, f"k:{number}")
        for _ in range(10_000):
            park(purgatory, "crowd")
        ranking = KeyRanking(purgatory.inspection())
        async with Turns() as turns:
            rows = await ranking.rows()
        assert turns.count >= 20
        assert (rows[0].key, rows[0].waiting, len(rows)) == ("crowd", 10_000, 50)
        await purgatory.fire("crowd", None)
        async with Turns() as turns:
            again = await ranking.rows()
        assert "crowd" not in {row.key for row in again} and turns.count < 20


async def test_the_times_of_outcomes() -> None:
    """By how long they waited, whatever their kind; lateness is of those that expired."""
    async with Purgatory() as purgatory:
        times, inspection = WaitTimes(purgatory.clock), purgatory.inspection()
        inspection.attach(times)
        park(purgatory, "a", timeout=0.005)
        parked = park(purgatory, "b"), asyncio.ensure_future(purgatory.park("b", timeout=60))
        await asyncio.sleep(0)
        await purgatory.fire("b")
        assert parked[0].status is (await parked[1]).status is Status.FIRED
        await until(lambda: sum(times.lateness.counts) == 1)
        inspection.detach(times)
        park(purgatory, "c").cancel()
    waits = snapshots.waits_by_outcome(times)
    assert {name: sum(counts) for name, counts in waits.items() if sum(counts)} == {
        "fired": 2,
        "expired": 1,
    }


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
    """With shared signals: each made by its worker, also where nobody looks."""
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
        shown = (await snapshot(apps[0]))["workers"]
        assert sorted(each["statistics"]["parked"] for each in shown) == [1, 2, 3]
        assert len({each["token"] for each in shown}) == 3
