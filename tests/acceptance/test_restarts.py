"""One application, at the top of a module, that is started many times in a process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import Depends, FastAPI, Response
from starlette.testclient import TestClient

from purgatory import Purgatory
from purgatory.fastapi import (
    ALLOW_ANYONE,
    LongPollKey,
    LongPollMiddleware,
    ParkDep,
    PurgatoryDep,
    install,
)
from purgatory.jobs import JobContext, MemoryJobStore
from tests.acceptance.client import Crowd
from tests.acceptance.thread_server import KINDS, serve

PURGATORY = Purgatory(jobs=MemoryJobStore())
APP = FastAPI()
ORDERS: dict[str, str] = {}
ran: list[str] = []


@PURGATORY.handler("cancel-order")
async def cancel_order(job: JobContext, order: str) -> None:
    """Note that it ran."""
    ran.append(order)
    await PURGATORY.fire(f"cancelled:{order}")


@APP.get("/wait/{key}")
async def wait(key: str, park: ParkDep, timeout: float = 20.0) -> str:
    """Park in the endpoint."""
    return (await park(key, timeout=timeout)).status


@APP.get("/orders/{order}", dependencies=[Depends(LongPollKey("order:{order}"))])
async def get_order(order: str, response: Response) -> str:
    """Return an order with its ETag."""
    state = ORDERS.get(order, "new")
    response.headers["ETag"] = f'"{state}"'
    return state


@APP.post("/orders/{order}")
async def put_order(order: str, state: str, purgatory: PurgatoryDep) -> int:
    """Change an order."""
    ORDERS[order] = state
    return (await purgatory.fire(f"order:{order}")).completed


APP.add_middleware(LongPollMiddleware, purgatory=PURGATORY)
install(APP, PURGATORY, authorize=ALLOW_ANYONE)


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Each test leaves it closed, and nothing in it."""
    yield
    assert (PURGATORY.is_open, PURGATORY.parked) == (False, 0)


async def use(server: Any, number: int) -> None:
    """Park in every way, and wake it."""
    purgatory = server.purgatory
    async with Crowd(server.address, 4) as [endpoint, middleware, watcher, firer]:
        key = f"k{number}"
        endpoint.send("GET", f"/wait/{key}")
        watcher.send("GET", f"/purgatory/watch/{key}?wait=20")
        headers = {"If-None-Match": '"new"', "Prefer": "wait=20"}
        middleware.send("GET", f"/orders/{number}", headers=headers)
        await server.until_parked(3)
        fired = await firer.request("POST", f"/purgatory/keys/{key}", {"value": number})
        assert fired.json()["completed"] == 2
        assert (await endpoint.reply()).json() == "fired"
        assert (await watcher.reply()).json()["signals"][0]["value"] == number
        assert (await firer.request("POST", f"/orders/{number}?state=paid")).json() == 1
        assert (await middleware.reply()).json() == "paid"
        await server.call(purgatory.defer, "cancel-order", key, delay=0.01)
        cursor = "?cursor=0&wait=20"
        cancelled = await firer.get(f"/purgatory/watch/cancelled:{key}{cursor}")
        assert cancelled.json()["reason"] == "fired"
        assert (await firer.get("/wait/x?timeout=0.01")).json() == "expired"


async def test_on_servers_of_every_kind() -> None:
    """Each start is on another event loop, in another thread."""
    for number, kind in enumerate([*KINDS, *KINDS]):
        with serve(APP, PURGATORY, kind) as server:
            await use(server, number)
    assert ran == [f"k{number}" for number in range(2 * len(KINDS))]


def test_as_a_test_suite_does() -> None:
    """One TestClient after the other; a cursor of the one before is good."""
    key = "of-all-tests"
    for time in range(3):
        with TestClient(APP) as client:
            assert client.get("/wait/x?timeout=0.01").json() == "expired"
            fired = client.post(f"/purgatory/keys/{key}", json={"value": time}).json()
            assert fired["seq"] == time + 1
            seen = client.get(f"/purgatory/watch/{key}?cursor=0&wait=0").json()
            assert [signal["value"] for signal in seen["signals"]] == list(range(time + 1))
            assert client.get("/purgatory/jobs").status_code == 200
