"""The demonstration: three orders, two payments, a deploy, and a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import httpx

from examples.unpaid_orders.app import create_app
from examples.unpaid_orders.buyer import BuyerPage
from examples.unpaid_orders.server import free_port, serve
from examples.unpaid_orders.settings import ShopSettings
from examples.unpaid_orders.table import Table
from purgatory.timer import SystemClock

BUYERS: Final = ("ada", "bob", "cho")
FRIENDS: Final = 50
# The wait of each long poll, in seconds: all friends are parked before the first poll ends.
POLL: Final = 50.0
# Only a fault takes that long, in seconds.
PATIENCE: Final = 300.0
# Far away, so that it comes on no machine before the payment.
MINUTES_BEFORE: Final = 15.0
UNLIMITED: Final = httpx.Limits(max_connections=None, max_keepalive_connections=None)


class Demonstration:
    """Runs a shop, which restarts once, and the pages of its buyers."""

    def __init__(self, settings: ShopSettings, port: int, http: httpx.AsyncClient) -> None:
        """Use a shop on `port`, which has `settings` once it is deployed anew."""
        self.table = Table()
        self._settings = settings
        self._port = port
        self._http = http
        self._pages: dict[str, BuyerPage] = {}
        self._friends: list[BuyerPage] = []

    async def run(self) -> None:
        """Run all scenes."""
        self.table.head(BUYERS)
        try:
            before = replace(self._settings, payment_minutes=MINUTES_BEFORE)
            async with serve(create_app(before), self._port):
                await self._two_order()
                await self._many_watch()
                await self._one_pays("ada")
            self._row_without_shop("the shop stops: a deploy")
            async with serve(create_app(self._settings), self._port):
                await self._pages_return()
                await self._one_pays("bob")
                await self._friends_see()
                await self._one_does_not_pay("cho")
        finally:
            for page in [*self._pages.values(), *self._friends]:
                await page.close()

    async def _two_order(self) -> None:
        await self._order("ada")
        await self._order("bob")
        await self._until_parked(2)
        await self._row("two buyers order and open their pages")

    async def _order(self, name: str) -> None:
        response = await self._http.post("/orders", json={"item": f"a kettle for {name}"})
        self._expect(response.status_code == 201, f"{name} can order")
        self._pages[name] = self._open_page(response.json())

    async def _many_watch(self) -> None:
        self._friends = [self._open_page(self._pages["bob"].order) for _ in range(FRIENDS)]
        await self._until_parked(2 + FRIENDS)
        is_idle = await self._until(self._is_idle)
        await self._row(f"{FRIENDS} friends of bob open his page too")
        self._expect(is_idle, "no parked request holds a database connection")

    async def _one_pays(self, name: str) -> None:
        page = self._pages[name]
        paid_ms, polls = self.table.now_ms(), page.polls
        response = await self._http.post(f"/orders/{page.order['id']}/payment")
        self._expect(response.status_code == 200, f"{name} can pay")
        await page.settled()
        latency_ms = page.changed_ms - paid_ms
        await self._row(f"{name} pays; the page shows it after {latency_ms} ms")
        self._expect(page.order["state"] == "paid", f"{name}'s page shows the order as paid")
        self._expect(page.polls == polls, "a page is updated by the request that is parked")

    async def _pages_return(self) -> None:
        # One order is open: its page, and the friends.
        await self._until_parked(1 + FRIENDS)
        await self._row("it restarts and finds the open order")

    async def _friends_see(self) -> None:
        await asyncio.gather(*(friend.settled() for friend in self._friends))
        is_seen = all(friend.order["state"] == "paid" for friend in self._friends)
        self._expect(is_seen, "every page of an order shows that it is paid")

    async def _one_does_not_pay(self, name: str) -> None:
        await self._order(name)
        await self._row(f"{name} orders, with {60 * self._settings.payment_minutes:.3g} s to pay")
        page = self._pages[name]
        pay_by = datetime.fromisoformat(page.order["pay_by"])
        await page.settled()
        late_ms = SystemClock().wall_ms() - round(pay_by.timestamp() * 1000)
        await self._row(f"{name}'s order expires; told after {late_ms} ms")
        self._expect(
            page.order["state"] == "cancelled",
            "an unpaid order is cancelled, which its page shows",
        )
        self._expect(late_ms >= 0, "not before its deadline")
        response = await self._http.post(f"/orders/{page.order['id']}/payment")
        await self._row(f"{name} pays too late and gets {response.status_code}")
        self._expect(response.status_code == 409, "a late payment is rejected")

    def _open_page(self, order: dict[str, Any]) -> BuyerPage:
        page = BuyerPage(self._http, order, POLL)
        page.open()
        return page

    async def _until_parked(self, count: int) -> None:
        async def is_reached() -> bool:
            return await self._parked() == count

        self._expect(await self._until(is_reached), f"{count} operations are parked")

    async def _until(self, condition: Callable[[], Awaitable[bool]]) -> bool:
        """Return True when `condition` is true, False if it is not within PATIENCE."""
        until_ms = self.table.now_ms() + 1_000 * PATIENCE
        while not await condition():
            if self.table.now_ms() > until_ms:
                return False
            await asyncio.sleep(0.01)
        return True

    async def _is_idle(self) -> bool:
        in_use: int = (await self._http.get("/connections")).json()["in_use"]
        return in_use == 0

    async def _parked(self) -> int:
        parked: int = (await self._http.get("/purgatory/statistics")).json()["parked"]
        return parked

    async def _row(self, event: str) -> None:
        found = (await self._http.get("/connections")).json()
        connections = f"{found['in_use']} of {found['size']}"
        self.table.row(event, self._states(), str(await self._parked()), connections)

    def _row_without_shop(self, event: str) -> None:
        self.table.row(event, self._states(), "", "")

    def _states(self) -> list[str]:
        pages = map(self._pages.get, BUYERS)
        return ["" if page is None else str(page.order["state"]) for page in pages]

    def _expect(self, is_met: bool, expectation: str) -> None:
        self.table.expect(is_met, expectation)


async def run_demonstration(settings: ShopSettings) -> list[str]:
    """Run the demonstration on the terminal; return the expectations that were not met."""
    port = free_port()
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE, limits=UNLIMITED
    ) as http:
        demonstration = Demonstration(settings, port, http)
        await demonstration.run()
    return demonstration.table.failures
