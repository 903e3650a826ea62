"""What others write to the server of the signals, past the library."""

from __future__ import annotations

import httpx
import pytest
from fastapi import FastAPI

from purgatory import Purgatory
from purgatory.fastapi import ALLOW_ANYONE, install
from purgatory.signals.model import EntryType
from purgatory.signals.redis import RedisSignals
from purgatory.signals.redis.entry_codec import AppendRequest
from tests.patience import PATIENCE_S, until
from tests.valkey_server import ValkeyServer

pytestmark = pytest.mark.anyio

FORGED = b'1\n\nevent: signal\ndata: {"key":"k","value":"forged"}'


async def test_forged_entries_reach_no_client(server: ValkeyServer) -> None:
    """Neither published ones nor those in the log; and following goes on."""
    signals = RedisSignals(server.url, timeout=PATIENCE_S / 4)
    purgatory, app = Purgatory(signals=signals), FastAPI()
    install(app, purgatory)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test") as http,
    ):
        cursor = purgatory.cursor("k")
        (follower,) = signals._followers
        epoch = follower.replica.epoch.encode()
        for head in (b"f1 0 0 1 k", b"f1 %b 0 1 k" % (b"9" * 300), b"f9 x"):
            entry = head + FORGED
            message = b"%b 1 %d:%b" % (epoch, len(entry), entry)
            with server.client() as client:
                client.publish(follower.log.channel, message)
        # As a process of another version may do, through the script.
        await follower.log.append(AppendRequest([(EntryType.FIRED, "k", FORGED)]))
        await until(lambda: follower.replica.applied == 1)
        path = "/purgatory/watch/k"
        lost = await http.get(f"{path}?cursor={cursor}")
        assert lost.status_code == 410
        assert (await purgatory.fire("k", 7)).seq == 2
        query = f"?cursor={lost.json()['head']}&wait=0"
        seen = await http.get(path + query)
        assert [each["value"] for each in seen.json()["signals"]] == [7]
        events = await http.get(f"{path}{query}&limit=1", headers={"Accept": "text/event-stream"})
        assert "forged" not in events.text
        assert purgatory.missing == []


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
