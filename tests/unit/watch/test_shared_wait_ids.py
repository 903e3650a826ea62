"""Waits in two processes that share signals: the later request keeps a Wait-Id."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import NamedTuple

import pytest
from fastapi import FastAPI

from purgatory import Purgatory
from purgatory.fastapi import ALLOW_ANYONE, install
from tests.patience import until_in_turns
from tests.unit.exchange import Exchange
from tests.unit.shared_logs import Logs

WAIT_ID = "0b1d6c5e-7d0c-4a53-9b0e-2d1c9f0a1b2c"


class Worker(NamedTuple):
    """One of the processes, on the clock of both."""

    app: FastAPI
    purgatory: Purgatory
    logs: Logs

    async def parked(self) -> Exchange:
        """Park a request under the id."""
        exchange = Exchange("/purgatory/watch/k", {"Wait-Id": WAIT_ID}, query_string=b"wait=50")
        exchange.begin(self.app)
        await until_in_turns(lambda: self.purgatory.parked == 1)
        return exchange

    def hear(self, other: Worker) -> None:
        """Receive what the other process has told since."""
        told, other.logs.told[:] = other.logs.told[:], []
        for question, argument in told:
            self.logs.answers[question](argument)


@pytest.fixture
async def workers(make_purgatory: Callable[..., Purgatory]) -> AsyncIterator[list[Worker]]:
    """Two processes."""
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(2):
            app, logs = FastAPI(), Logs()
            purgatory = await stack.enter_async_context(make_purgatory(signals=logs))
            install(app, purgatory, authorize=ALLOW_ANYONE)
            found.append(Worker(app, purgatory, logs))
        yield found


@pytest.mark.parametrize("wait", [0, 50])
async def test_no_request_waits_before_each_log_was_read(workers: list[Worker], wait: int) -> None:
    """What it would wait for may have fired: 503, and the client tries again."""
    worker = workers[0]
    worker.logs.forget_load("of any log")
    exchange = Exchange("/purgatory/watch/k", query_string=b"wait=%d" % wait).begin(worker.app)
    reply = await exchange.reply()
    assert (reply.status, reply.json()["type"]) == (503, "/purgatory/problems/signals-unavailable")
    assert worker.purgatory.parked == 0


async def test_the_later_request_supersedes_that_of_another_process(workers: list[Worker]) -> None:
    """In whatever order the messages of both arrive."""
    first, second = workers
    older = await first.parked()
    await asyncio.sleep(0.001)
    newer = await second.parked()
    second.hear(first)
    first.hear(second)
    assert (await older.reply()).status == 409
    assert (first.purgatory.parked, second.purgatory.parked) == (0, 1)
    await second.purgatory.drain()
    assert (await newer.reply()).status == 200


async def test_requests_of_the_same_millisecond_do_not_end_each_other(
    workers: list[Worker],
) -> None:
    """None of them is the later one, and one has to remain."""
    first, second = workers
    waiting = [await worker.parked() for worker in workers]
    first.hear(second)
    second.hear(first)
    assert [worker.purgatory.parked for worker in workers] == [1, 1]
    for worker, exchange in zip(workers, waiting, strict=True):
        await worker.purgatory.drain()
        assert (await exchange.reply()).status == 200


@pytest.mark.parametrize("argument", ["", f"soon {WAIT_ID}", "9999999999999 unknown"])
async def test_a_message_that_concerns_no_wait_ends_none(
    workers: list[Worker], argument: str
) -> None:
    """Such as one of another version, or for an id that is parked elsewhere."""
    first, _ = workers
    waiting = await first.parked()
    assert first.logs.answers["supersede-wait /purgatory"](argument) == 0
    assert first.purgatory.parked == 1
    await first.purgatory.drain()
    assert (await waiting.reply()).status == 200


async def test_a_wait_is_cancelled_by_another_process(workers: list[Worker]) -> None:
    """It is asked for by its id; a process that has no such wait counts none."""
    first, second = workers
    waiting = await first.parked()
    asked = [worker.logs.answers["cancel-wait /purgatory"](WAIT_ID) for worker in (second, first)]
    assert asked == [0, 1]
    reply = await waiting.reply()
    assert (reply.status, reply.json()["reason"]) == (200, "cancelled")
    assert first.logs.answers["cancel-wait /purgatory"](WAIT_ID) == 0
