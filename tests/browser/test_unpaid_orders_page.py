"""The buyer's page, in a real browser."""

from pathlib import Path

import httpx
import pytest

from examples.unpaid_orders.app import create_app
from examples.unpaid_orders.server import serve
from examples.unpaid_orders.settings import ShopSettings
from tests.browser.chromium import needs_chromium
from tests.browser.devtools import browser
from tests.free_port import free_port
from tests.patience import PATIENCE_S, until

pytestmark = needs_chromium


@pytest.mark.parametrize("is_paid", [True, False], ids=["paid", "unpaid"])
async def test_the_page_shows_what_becomes_of_an_order(tmp_path: Path, is_paid: bool) -> None:
    """It long-polls, and shows at once that its order was paid, or that its time is over."""
    # Long enough for a browser to start beside other tests.
    minutes = 15 if is_paid else 8 / 60
    settings = ShopSettings(database=tmp_path / "orders.sqlite3", payment_minutes=minutes)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with (
        serve(create_app(settings), port) as shop,
        httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as http,
        browser() as page,
    ):
        order = (await http.post("/orders", json={"item": "kettle"})).json()
        await page.open(f"{url}/#{order['id']}")
        await until(lambda: shop.purgatory.parked == 1)
        if is_paid:
            await http.post(f"/orders/{order['id']}/payment")
        state = "paid" if is_paid else "cancelled"
        await page.until(f"!!document.querySelector('[data-state=\"{state}\"]')")
        text = await page.run("document.body.textContent")
    # Once for the order as it was, and once for what became of it; or a poll more.
    assert "asked 2 times" in text or "asked 3 times" in text
