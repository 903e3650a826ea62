"""A client that floods what all clients share evicts its own, and nothing of another's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi import FastAPI

from purgatory import Limits, Purgatory
from purgatory.fastapi import BearerTokens, install
from purgatory.fastapi.http import idempotency
from tests.acceptance.client import Connection, Reply
from tests.acceptance.thread_server import KINDS_BY_DAY, ServerKind, ThreadServer, serve

LOW, VICTIM = "token-of-low-for-tests", "token-of-victim-for-tests"
TOKENS = BearerTokens.from_text(f"{LOW} fire:low:* wait:low:*; {VICTIM} fire:v:* wait:v:*")
KEPT = 64 * 1024


@pytest.fixture(params=KINDS_BY_DAY, ids=str)
def server(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ThreadServer]:
    """A server whose memories are small."""
    kind: ServerKind = request.param
    monkeypatch.setattr(idempotency, "MAX_RESPONSES", 20)
    app = FastAPI()
    purgatory = Purgatory(limits=Limits(max_signal_bytes=KEPT, max_value_bytes=1024))
    install(app, purgatory, authorize=TOKENS)
    with serve(app, purgatory, kind) as running:
        yield running


async def ask(
    connection: Connection, token: str, method: str, path: str, value: object = None, **more: str
) -> Reply:
    headers = {"Authorization": f"Bearer {token}", **more}
    body = None if value is None else {"value": value}
    return await connection.request(method, f"/purgatory{path}", body, headers)


async def test_idempotency_keys(server: ThreadServer) -> None:
    """A repeat fires nothing, however many keys another token has used since."""
    async with await Connection.open(server.address) as connection:
        name = {"Idempotency-Key": "order-1"}
        first = await ask(connection, VICTIM, "POST", "/keys/v:a", 1, **name)
        for number in range(50):
            flood = {"Idempotency-Key": f"flood-{number}"}
            reply = await ask(connection, LOW, "POST", "/keys/low:a", 1, **flood)
            assert reply.status == 201
        again = await ask(connection, VICTIM, "POST", "/keys/v:a", 1, **name)
        assert (first.status, again.json()) == (201, first.json())
        # The last repeats of the flooder are known, too; its first one is not.
        last = await ask(connection, LOW, "POST", "/keys/low:a", 1, **flood)
        assert last.json() == reply.json()
        forgotten = {"Idempotency-Key": "flood-0"}
        fired = await ask(connection, LOW, "POST", "/keys/low:a", 1, **forgotten)
        assert fired.json()["seq"] == 51


async def test_signals(server: ThreadServer) -> None:
    """A cursor is good, however much another token has fired since; that one's is not."""
    async with await Connection.open(server.address) as connection:
        cursors = {}
        for token, key in ((VICTIM, "v:a"), (LOW, "low:a")):
            state = await ask(connection, token, "GET", f"/keys/{key}")
            cursors[key] = state.json()["cursor"]
            for number in range(10):
                await ask(connection, token, "POST", f"/keys/{key}", f"{number}" * 1000)
        for number in range(100):
            await ask(connection, LOW, "POST", f"/keys/low:{number}", "x" * 1000)
        kept = await ask(connection, VICTIM, "GET", f"/watch/v:a?wait=0&cursor={cursors['v:a']}")
        values = [signal["value"] for signal in kept.json()["signals"]]
        assert values == [f"{number}" * 1000 for number in range(10)]
        gone = await ask(connection, LOW, "GET", f"/watch/low:a?wait=0&cursor={cursors['low:a']}")
        assert gone.status == 410
        assert server.purgatory.statistics().signals.bytes <= KEPT
