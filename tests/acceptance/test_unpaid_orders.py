"""The shop on a real socket: deadlines, payments, pages, and connections that nobody holds."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.unpaid_orders import __main__ as demonstration
from examples.unpaid_orders.app import create_app
from examples.unpaid_orders.endpoints import SessionDep
from examples.unpaid_orders.order import Order, watch_key
from examples.unpaid_orders.server import serve
from examples.unpaid_orders.settings import ShopSettings
from examples.unpaid_orders.shop import Shop
from purgatory.fastapi import ParkDep
from purgatory.jobs import JobState
from tests.free_port import free_port
from tests.patience import PATIENCE_S, until

ROOT = Path(__file__).parents[2]
CROWD = 50
CONNECTIONS = 5
UNLIMITED = httpx.Limits(max_connections=None, max_keepalive_connections=None)


@pytest.fixture
def settings(tmp_path: Path) -> ShopSettings:
    """A shop with few connections, whose buyers have a quarter of an hour."""
    return ShopSettings(
        database=tmp_path / "orders.sqlite3",
        connections=CONNECTIONS,
        connection_timeout=PATIENCE_S,
    )


@pytest.fixture
def port() -> int:
    """Where the shop is."""
    return free_port()


@pytest.fixture
async def http(port: int) -> AsyncIterator[httpx.AsyncClient]:
    """A client of it, whichever shop is there."""
    url = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, limits=UNLIMITED) as client:
        yield client


@pytest.fixture
async def shop(settings: ShopSettings, port: int) -> AsyncIterator[Shop]:
    """A shop that is open."""
    async with serve(create_app(settings), port) as opened:
        yield opened


async def place(http: httpx.AsyncClient) -> dict[str, Any]:
    answer = await http.post("/orders", json={"item": "kettle"})
    assert answer.status_code == 201
    order: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"/orders/{order['id']}"
    return order


async def poll(http: httpx.AsyncClient, order: dict[str, Any], wait: float = 30) -> httpx.Response:
    headers = {"If-None-Match": f'"{order["version"]}"', "Prefer": f"wait={wait}"}
    return await http.get(f"/orders/{order['id']}", headers=headers)


async def until_parked(shop: Shop, count: int) -> None:
    await until(lambda: shop.purgatory.parked == count)


async def deadlines(shop: Shop) -> list[int]:
    """Return the orders that will be cancelled."""
    page = await shop.purgatory.jobs.list(state=JobState.WAITING)
    return sorted(int(job.payload_json) for job in page.jobs if job.is_undecided)


def test_the_demonstration() -> None:
    """It tells its demonstration, meets what it expects, and ends with 0."""
    command = [sys.executable, "-W", "error", "-m", "examples.unpaid_orders", "--minutes", "0.01"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=8 * PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    lines = done.stdout.splitlines()
    # Also after the longest event, which has a number of milliseconds.
    assert any(re.search(r" told after \d+ ms {2,}\w", line) for line in lines)
    assert lines[-1] == "All expectations are met."
    assert len(lines) == 12
    assert max(map(len, lines)) <= 108


async def test_the_demonstration_fails_when_an_expectation_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is not zero."""

    async def tell_nothing(settings: ShopSettings) -> list[str]:
        return ["a kettle for everyone"]

    monkeypatch.setattr(demonstration, "run_demonstration", tell_nothing)
    assert await demonstration.main(0.01) == 1
    assert "1 are not met" in capsys.readouterr().out


async def test_fifty_parked_requests_hold_no_connection(
    shop: Shop, http: httpx.AsyncClient
) -> None:
    """Through the middleware, and parked by hand with no session in hand: the pool is free."""
    order = await place(http)
    pages = [asyncio.create_task(poll(http, order)) for _ in range(CROWD)]
    receipts = [
        asyncio.create_task(http.get(f"/orders/{order['id']}/receipt")) for _ in range(CROWD)
    ]
    await until_parked(shop, 2 * CROWD)
    # The last of them may be giving its own back at this moment.
    await until(lambda: shop.database.in_use == 0)
    assert (await http.get("/connections")).json() == {"in_use": 0, "size": CONNECTIONS}
    # So the rest of the shop is open for business.
    other = await place(http)
    assert (await http.post(f"/orders/{order['id']}/payment")).status_code == 200
    for answer in await asyncio.gather(*pages, *receipts):
        assert (answer.status_code, answer.json()["state"]) == (200, "paid")
    await until_parked(shop, 0)
    assert await deadlines(shop) == [other["id"]]
    await until(lambda: shop.database.in_use == 0)


async def test_a_session_that_is_held_while_parked_is_seen(
    settings: ShopSettings, port: int, http: httpx.AsyncClient
) -> None:
    """The wrong way, so that the test above is known to see it: a few requests use up the pool."""
    app = create_app(replace(settings, connection_timeout=0.2))
    async with serve(app, port) as shop:

        @app.get("/wrong/{order_id}")
        async def wrong(order_id: int, session: SessionDep, park: ParkDep) -> str:
            order = await session.get(Order, order_id)
            assert order is not None
            await park(watch_key(order_id), timeout=30)
            await session.refresh(order)
            return order.state

        order = await place(http)
        waiting = [
            asyncio.create_task(http.get(f"/wrong/{order['id']}")) for _ in range(CONNECTIONS)
        ]
        await until_parked(shop, CONNECTIONS)
        assert shop.database.in_use == CONNECTIONS
        assert (await http.get(f"/orders/{order['id']}")).status_code == 500
        await shop.purgatory.fire(watch_key(order["id"]))
        for answer in await asyncio.gather(*waiting):
            assert answer.status_code == 200
        # FastAPI closes the session behind the answer.
        await until(lambda: shop.database.in_use == 0)


async def test_payment_and_deadline_at_the_same_moment(
    settings: ShopSettings, port: int, http: httpx.AsyncClient
) -> None:
    """Each order is settled once: who is told that it is paid has paid, nobody else has."""
    async with serve(create_app(replace(settings, payment_minutes=0.4 / 60)), port) as shop:

        async def buy(number: int) -> tuple[int, int, str]:
            order = await place(http)
            pay_by = datetime.fromisoformat(order["pay_by"]).timestamp()
            await asyncio.sleep(max(0, pay_by - time.time() + (number % 10 - 5) / 1000))
            paid = await http.post(f"/orders/{order['id']}/payment")
            seen = await poll(http, order)
            return paid.status_code, seen.json()["version"], seen.json()["state"]

        found = await asyncio.gather(*map(buy, range(40)))
        assert shop.purgatory.parked == 0
    assert set(found) <= {(200, 2, "paid"), (409, 2, "cancelled")}


async def test_open_orders_are_found_again(
    settings: ShopSettings, port: int, http: httpx.AsyncClient
) -> None:
    """After a restart: overdue ones are cancelled at once, others at their time, paid ones stay."""
    slow, quick = settings, replace(settings, payment_minutes=0.3 / 60)
    async with serve(create_app(slow), port):
        paid, still_open = await place(http), await place(http)
        await http.post(f"/orders/{paid['id']}/payment")
    async with serve(create_app(quick), port):
        overdue = await place(http)
    await asyncio.sleep(0.4)
    async with serve(create_app(slow), port) as shop:
        answer = await poll(http, overdue)
        assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
        assert await deadlines(shop) == [still_open["id"]]
        states = [
            (await http.get(f"/orders/{order['id']}")).json()["state"]
            for order in (paid, still_open, overdue)
        ]
    assert states == ["paid", "open", "cancelled"]


async def test_what_is_refused(shop: Shop, http: httpx.AsyncClient) -> None:
    """Orders that are none, and orders of nothing: problem details, and no wait."""
    for answer, status in (
        (await http.get("/orders/7"), 404),
        (await poll(http, {"id": 7, "version": 1}), 404),
        (await http.post("/orders/7/payment"), 404),
        (await http.get("/orders/7/receipt"), 404),
        (await http.get("/orders/seven"), 422),
        # Its page would wait for a key that never fires.
        (await poll(http, {"id": "007", "version": 1}), 422),
        (await http.get(f"/orders/{2**63}"), 422),
        (await http.post(f"/orders/{'9' * 5_000}/payment"), 422),
        (await http.post("/orders", json={"item": ""}), 422),
        (await http.post("/orders", json={}), 422),
    ):
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
