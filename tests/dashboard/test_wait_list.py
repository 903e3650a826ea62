"""The list of waits: what it shows, its order and pages, and ending a wait by its id."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from purgatory import Purgatory
from purgatory.event_loop.inspection import Inspection, started_ms
from purgatory.fastapi import BearerTokens, install
from purgatory.fastapi.dashboard.routes import ListedWait, WaitList
from purgatory.fastapi.dashboard.snapshots import Workers
from purgatory.outcome import Status
from purgatory.signals import WaitOperation
from purgatory.signals.redis import RedisSignals
from tests.patience import PATIENCE_S, until
from tests.turns import Turns
from tests.valkey_server import ValkeyServer

pytestmark = pytest.mark.anyio

TOKENS = "token-of-an-observer observe; token-of-an-operator operate; token-of-a-waiter wait:*"
OBSERVER = {"Authorization": "Bearer token-of-an-observer"}
WAITER = {"Authorization": "Bearer token-of-a-waiter"}
WAIT_ID = "8c1f0a9b-e2d4-4c1f-8a9b-e2d48c1f0a9b"


class Noted(WaitOperation):
    """A wait that responds to nobody."""

    kind = "noted"

    __slots__ = ()

    def on_complete(self) -> None:
        pass


def park(purgatory: Purgatory, *keys: str, timeout: float = 60.0) -> Noted:
    operation = Noted(purgatory.delay_ms(timeout), purgatory.signals, keys, 0)
    purgatory.park_operation(operation, keys)
    return operation


def waits_of(purgatory: Purgatory) -> WaitList:
    return WaitList(purgatory, Workers(purgatory, "/purgatory"))


@asynccontextmanager
async def client(purgatory: Purgatory) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    install(app, purgatory, authorize=BearerTokens.from_text(TOKENS))
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test", headers=OBSERVER) as http,
    ):
        yield http


async def listed(http: httpx.AsyncClient, query: str = "") -> dict[str, Any]:
    response = await http.get(f"/purgatory/waits{query}")
    assert response.status_code == 200, response.text
    page: dict[str, Any] = response.json()
    return page


async def test_a_wait_is_shown_with_its_client_and_wait_id() -> None:
    """Of a request; its times say since when it waits and when it ends."""
    purgatory = Purgatory()
    async with client(purgatory) as http:
        headers = {**WAITER, "Wait-Id": WAIT_ID}
        waiting = asyncio.create_task(
            http.get("/purgatory/watch/order:42?wait=4", headers=headers, timeout=PATIENCE_S)
        )
        await until(lambda: purgatory.parked == 1)
        [wait] = (await listed(http))["waits"]
        assert (wait["key"], wait["kind"], wait["wait_id"]) == ("order:42", "watch", WAIT_ID)
        assert wait["client"].startswith("token-")
        assert 0 <= wait["age_ms"] <= 4000 and 0 <= wait["remaining_ms"] <= 4001
        assert wait["deadline_ms"] - wait["since_ms"] == 4000
        await purgatory.fire("order:42")
        await waiting
        assert (await listed(http)) == {"waits": [], "next": None}


async def test_pages_have_every_wait_once_in_order_of_age() -> None:
    """Also those on several keys, of which the first that matches is named."""
    purgatory = Purgatory()
    async with client(purgatory) as http:
        for number in range(25):
            # The same start for some of them: the order is total all the same.
            park(purgatory, f"order:{number}", f"other:{number}", f"order:{number}:paid")
            park(purgatory, f"cart:{number}")
            if number % 5 == 0:
                await asyncio.sleep(0.002)
        seen, after = [], ""
        while True:
            page = await listed(http, f"?prefix=order:&limit=7{after}")
            seen += page["waits"]
            if page["next"] is None:
                break
            after = f"&after={page['next']}"
        assert sorted(wait["key"] for wait in seen) == sorted(f"order:{n}" for n in range(25))
        assert {wait["keys"] for wait in seen} == {3}
        since = [wait["since_ms"] for wait in seen]
        assert since == sorted(since)
        assert len((await listed(http, "?key=cart:3"))["waits"]) == 1
        assert len((await listed(http, "?limit=1000"))["waits"]) == 50


async def test_the_order_of_deadlines() -> None:
    """Those that expire next come first."""
    purgatory = Purgatory()
    async with client(purgatory) as http:
        for timeout in (50.0, 10.0, 30.0):
            park(purgatory, f"k:{timeout:g}", timeout=timeout)
        page = await listed(http, "?order=deadline&limit=2")
        assert [wait["key"] for wait in page["waits"]] == ["k:10", "k:30"]
        rest = await listed(http, f"?order=deadline&limit=2&after={page['next']}")
        assert [wait["key"] for wait in rest["waits"]] == ["k:50"]


async def test_a_wait_is_ended_by_its_id_only() -> None:
    """An id that is invented, of another wait or of one that ended finds nothing."""
    async with Purgatory() as purgatory:
        waits = waits_of(purgatory)
        first, second = park(purgatory, "a"), park(purgatory, "a")
        mine = (await waits.list_waits(key="a")).waits[0].id
        token, secret, key = mine.split(".")
        # An address would say where objects are in memory.
        assert f"{id(first):x}" not in mine and secret != f"{id(second):x}".zfill(16)
        wrong = ["", "x", mine[:-1] + "!", "0" * 12 + mine[12:], f"{token}.{'0' * 16}.{key}"]
        assert await waits.cancel(wrong) == (set(), "the wait is over")
        assert (await waits.cancel([*wrong, mine, mine]))[0] == {mine}
        assert {first.status, second.status} == {Status.CANCELLED, Status.PENDING}
        assert (await waits.cancel([mine]))[0] == set()
        assert purgatory.parked == 1


async def test_a_wait_that_has_just_begun_is_no_younger_than_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though its start is rounded up, and the time of the timer down."""
    async with Purgatory() as purgatory:
        waits = waits_of(purgatory)
        start_ms = started_ms(park(purgatory, "a"))
        for now_ms, age_ms in ((start_ms - 1, 0), (start_ms, 0), (start_ms + 1, 1)):
            monkeypatch.setattr(Inspection, "now_ms", lambda _, now_ms=now_ms: now_ms)
            [row] = (await waits.list_waits()).waits
            assert row.age_ms == age_ms


async def test_the_event_loop_goes_on_while_20_000_waits_are_sorted() -> None:
    """A page looks at all of them in slices, and gives way between two."""
    async with Purgatory() as purgatory:
        for number in range(20_000):
            park(purgatory, f"k:{number // 2}")
        waits = waits_of(purgatory)
        async with Turns() as turns:
            page = await waits.list_waits(limit=100)
        assert len(page.waits) == 100 and page.next is not None
        assert turns.count >= 20_000 / 1000


def test_the_oldest_wait_of_a_key_takes_one_look() -> None:
    """However many wait on it: the dashboard shows since when, each second."""
    purgatory = Purgatory()
    operations = purgatory._operations
    for _ in range(10_000):
        operation = Noted(1000, purgatory.signals, ("a",), 0)
        operations.try_complete_else_watch(operation, ("a",))
    inspection: Inspection = purgatory.inspection()
    start_ms = inspection.oldest_start_ms("a")
    assert start_ms is not None and 0 <= inspection.now_ms() - start_ms < 60_000
    assert inspection.oldest_start_ms("b") is None
    [level, *_] = inspection.levels()
    assert sum(each.tasks for each in inspection.levels()) == 10_000
    assert level.size == 256 and 0 <= level.position < 256
    for each in operations.operations():
        each.cancel()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    with ValkeyServer(tmp_path) as running:
        yield running


async def test_waits_of_all_workers_are_one_list(server: ValkeyServer) -> None:
    """Each says its worker, and can be ended from any of them."""
    url = server.url
    async with (
        Purgatory(signals=RedisSignals(url, timeout=PATIENCE_S / 4)) as first,
        client(Purgatory(signals=RedisSignals(url, timeout=PATIENCE_S / 4))) as http,
    ):
        first_list = waits_of(first)
        mine = [park(first, "a") for _ in range(3)]
        headers = {**WAITER, "Wait-Id": WAIT_ID}
        watch = http.get("/purgatory/watch/a?wait=50", headers=headers, timeout=PATIENCE_S)
        theirs = asyncio.create_task(watch)
        # The other one may not be subscribed yet.
        rows: list[ListedWait] = []
        while len(rows) < 4:
            page = await first_list.list_waits(limit=10)
            rows = page.waits
        assert page.next is None
        ids = [row.id for row in rows]
        page_of_two = await listed(http, "?limit=2")
        rest = await listed(http, f"?limit=2&after={page_of_two['next']}")
        assert [row["id"] for row in page_of_two["waits"] + rest["waits"]] == ids
        assert (await first_list.cancel(ids))[0] == set(ids)
        assert {each.status for each in mine} == {Status.CANCELLED}
        assert (await theirs).json()["reason"] == "cancelled"


async def test_waits_that_were_ended_before_an_outage_are_known(server: ValkeyServer) -> None:
    """Those of this process; of the others it is said why not."""
    async with Purgatory(signals=RedisSignals(server.url, timeout=PATIENCE_S / 4)) as purgatory:
        waits = waits_of(purgatory)
        park(purgatory, "a")
        [mine] = (await waits.list_waits()).waits
        server.kill()
        ended, otherwise = await waits.cancel([mine.id, f"{'0' * 12}{mine.id[12:]}"])
        assert ended == {mine.id} and "out of reach" in otherwise
