"""What others publish where workers ask each other: it neither ends nor changes anything."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.errors import SignalsUnavailableError
from purgatory.fastapi.dashboard.routes import WaitList, WaitsResponse
from purgatory.fastapi.dashboard.snapshots import Snapshots, Workers
from purgatory.signals.redis import RedisSignals
from purgatory.signals.redis.peers import MAX_MESSAGE, MAX_REPLIES
from tests.patience import PATIENCE_S, until
from tests.valkey_server import ValkeyServer

pytestmark = pytest.mark.anyio

PREFIX = "/purgatory"
CHANNEL = "{purgatory:signals:0}:peers"
NAME = b'"0123456789ab"'
MESSAGES = {
    "nothing": b"",
    "no JSON": b"hello",
    "no list": b"{}",
    "nested": b"[" * 100_000,
    "a nested argument": b'[%b, 1, "waiting", %b]' % (NAME, b"[" * 100_000 + b"]" * 100_000),
    "a name that is none": b'["x", 1, "waiting", "k"]',
    "a list as question": b'[%b, 1, [], "k"]' % NAME,
    "a list as argument": b'[%b, 1, "waiting", ["k"]]' % NAME,
    "a number with 300 digits": b'[%b, %b, "waiting", "k"]' % (NAME, b"9" * 300),
    "NaN": b'[%b, NaN, "waiting", "k"]' % NAME,
    "no UTF-8": b'[%b, 1, "waiting", "\xff"]' % NAME,
    "too large": b'[%b, 1, "waiting", "%b"]' % (NAME, b"k" * MAX_MESSAGE),
    "an unknown question": b'[%b, 1, "who", "k"]' % NAME,
    "a time with 5,000 digits": b'[%b, 1, "supersede-wait /purgatory", "%b w"]'
    % (NAME, b"9" * 5_000),
    "a filter that is none": b'[%b, 1, "waits /purgatory", "[]"]' % NAME,
    "a filter without a limit": b'[%b, 1, "waits /purgatory", "%b"]'
    % (NAME, json.dumps({"limit": 10**9}).replace('"', '\\"').encode()),
}
SNAPSHOTS = {
    "no JSON": "x",
    "no object": "[]",
    "nested": "[" * 100_000,
    "nested JSON": '{"worker":' * 65 + "1" + "}" * 65,
    "fields that are missing": "{}",
    "fields of another type": '{"worker": 1}',
    "NaN": "NaN",
}
ROWS = {
    "no JSON": "x",
    "no list": "{}",
    "nested": "[" * 100_000,
    "no rows": "[1]",
    "rows without fields": "[{}]",
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    with ValkeyServer(tmp_path) as running:
        yield running


class Worker:
    """One of the workers that share the server."""

    def __init__(self, url: str) -> None:
        self.signals = RedisSignals(url, timeout=PATIENCE_S / 4)
        self.purgatory = Purgatory(signals=self.signals)
        self.workers = Workers(self.purgatory, PREFIX)
        self.waits = WaitList(self.purgatory, self.workers)
        self.snapshots = Snapshots(self.purgatory, self.workers)


async def entered(stack: AsyncExitStack, server: ValkeyServer, count: int) -> list[Worker]:
    workers = [Worker(server.url) for _ in range(count)]
    for worker in workers:
        await stack.enter_async_context(worker.purgatory)
    with server.client() as client:
        await until(lambda: client.pubsub_numsub(CHANNEL) == [(CHANNEL.encode(), count)])
    return workers


async def test_what_is_no_message_is_passed_over(
    server: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The subscription goes on, and the next question is answered."""
    async with AsyncExitStack() as stack:
        first, second = await entered(stack, server, 2)
        with server.client() as client:
            for message in MESSAGES.values():
                client.publish(CHANNEL, message)
                client.publish(first.signals.peers._own_channel, message)
            flood = b'[%b, 1, "waits /purgatory", "{}"]' % NAME
            for _ in range(10 * MAX_REPLIES):
                client.publish(CHANNEL, flood)
        waiting = asyncio.create_task(second.purgatory.park("k", timeout=PATIENCE_S))
        await until(lambda: second.purgatory.parked == 1)
        most = 0
        # Behind the flood, of which the most is left without an answer.
        while await first.purgatory.waiting_everywhere("k") != 1:
            most = max(most, len(second.signals.peers._replies))
        assert most <= MAX_REPLIES
        await second.purgatory.cancel("k")
        await waiting
        actions = [getattr(each, "action", None) for each in caplog.records]
        # Once each; the others are exceptions of answers, which are logged.
        assert actions.count("signals-malformed") <= 2
        assert {each.levelno for each in caplog.records} <= {logging.WARNING, logging.ERROR}
        assert "signals-away" not in actions


@pytest.mark.parametrize("text", SNAPSHOTS.values(), ids=SNAPSHOTS.keys())
async def test_a_malformed_snapshot_ends_no_dashboard(server: ValkeyServer, text: str) -> None:
    """Its viewers see the others, and a note."""
    async with AsyncExitStack() as stack:
        first, second = await entered(stack, server, 2)
        second.signals.peers.answers[f"snapshot {PREFIX}"] = _saying(text)
        shown = json.loads(await first.snapshots.latest())
        assert [each["token"] for each in shown["workers"]] == [first.workers.token]
        assert shown["notes"] == ["1 other workers cannot be shown: see the log."]


async def test_a_dashboard_that_cannot_ask_the_others_says_so(
    server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows its own worker."""

    async def fail(*_: object) -> list[str]:
        raise SignalsUnavailableError("nobody listens")

    async with AsyncExitStack() as stack:
        [first] = await entered(stack, server, 1)
        monkeypatch.setattr(first.signals.peers, "ask", fail)
        shown = json.loads(await first.snapshots.latest())
        assert len(shown["workers"]) == 1
        assert shown["notes"] == ["The other workers cannot be shown: nobody listens"]


async def test_malformed_rows_are_left_out(server: ValkeyServer) -> None:
    """A list of waits has those of the others; so has the end of waits by their ids."""
    async with AsyncExitStack() as stack:
        first, second = await entered(stack, server, 2)
        for name, text in ROWS.items():
            for question in ("waits", "cancel-listed-waits"):
                second.signals.peers.answers[f"{question} {PREFIX}"] = _saying(text)
            assert await first.waits.list_waits() == WaitsResponse(waits=[], next=None), name
            assert await first.waits.cancel(["x"]) == (set(), "the wait is over"), name


def _saying(text: str) -> Any:
    async def answer(argument: str) -> str:
        return text

    return answer
