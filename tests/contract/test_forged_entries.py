"""What others write to the server of the signals, past the library."""

from __future__ import annotations

import httpx
import pytest
from fastapi import FastAPI

from purgatory import Purgatory
from purgatory.fastapi import ALLOW_ANYONE, install
from purgatory.signals.redis import RedisSignals
from tests.patience import PATIENCE_S
from tests.valkey_server import ValkeyServer

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "stored", [b"", b"x", b"= {", b"= x\xda", b"e 1", b"e x y z ", b"= {}\n\n", b"@x 1 9"]
)
async def test_a_forged_response_of_a_repeat_is_refused(
    server: ValkeyServer, stored: bytes
) -> None:
    """It is no JSON, or no response: the client is told to try again, or that it is another's."""
    signals = RedisSignals(server.url, timeout=PATIENCE_S / 4)
    purgatory, app = Purgatory(signals=signals), FastAPI()
    install(app, purgatory, authorize=ALLOW_ANYONE)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test") as http,
    ):
        headers = {"Idempotency-Key": "once"}
        path = "/purgatory/keys/k"
        assert (await http.post(path, json={"value": 1}, headers=headers)).status_code == 201
        with server.client() as client:
            [key] = client.keys("*repeat:*")
            fingerprint = client.get(key).partition(b" ")[0]
            client.set(key, fingerprint + b" " + stored)
        again = await http.post(path, json={"value": 1}, headers=headers)
        assert again.status_code == 503
        assert again.json()["type"] == "/purgatory/problems/signals-unavailable"
